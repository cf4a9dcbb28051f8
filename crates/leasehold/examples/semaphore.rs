//! A semaphore: nine jobs, of which at most three run at the same time.
//!
//! `cargo run -p leasehold --example semaphore [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Locks;

const LIMIT: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));

    let mut jobs = Vec::new();
    for job in 1..=9 {
        // Every user of the name gives the same limit; a different one is an error.
        let semaphore = locks.semaphore("example/semaphore", LIMIT);
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        jobs.push(tokio::spawn(async move {
            let permit = semaphore.acquire().await?;
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            println!("job {job} runs, {now} at once");
            tokio::time::sleep(Duration::from_millis(50)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            permit.release().await
        }));
    }
    for job in jobs {
        job.await??;
    }

    assert!(most.load(Ordering::SeqCst) <= LIMIT, "never more than the limit");
    locks.close().await;
    Ok(())
}
