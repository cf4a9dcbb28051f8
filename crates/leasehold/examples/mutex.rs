//! A mutex: ten tasks add to one counter, one at a time.
//!
//! `cargo run -p leasehold --example mutex [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::Locks;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let counter = Arc::new(AtomicU32::new(0));

    let mut tasks = Vec::new();
    for _ in 0..10 {
        let (mutex, counter) = (locks.mutex("example/mutex"), Arc::clone(&counter));
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await?; // waits its turn
            // Reading and writing in two steps would lose updates without the lock.
            let seen = counter.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            counter.store(seen + 1, Ordering::SeqCst);
            println!("fence {}: {} -> {}", guard.fence(), seen, seen + 1);
            guard.release().await
        }));
    }
    for task in tasks {
        task.await??;
    }

    assert_eq!(counter.load(Ordering::SeqCst), 10, "no update was lost");
    locks.close().await;
    Ok(())
}
