//! A cache that one process rebuilds while the others wait for its result.
//!
//! `cargo run -p leasehold --example cache_rebuild [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Locks;
use tokio::sync::RwLock;

#[derive(Default)]
struct Cache {
    page: RwLock<Option<String>>,
    rebuilds: AtomicU32,
}

async fn front_page(locks: Locks, cache: Arc<Cache>) -> leasehold::Result<String> {
    if let Some(page) = cache.page.read().await.clone() {
        return Ok(page);
    }
    let guard = locks.mutex("example/front-page").lock().await?;
    // Look again under the lock: the holder before this one has probably rebuilt it.
    let found = cache.page.read().await.clone();
    let page = match found {
        Some(page) => page,
        None => {
            guard.run(tokio::time::sleep(Duration::from_millis(200))).await?; // the expensive part
            let rebuilt = cache.rebuilds.fetch_add(1, Ordering::SeqCst) + 1;
            let page = format!("page, rebuilt {rebuilt} time(s)");
            *cache.page.write().await = Some(page.clone());
            page
        }
    };
    guard.release().await?;
    Ok(page)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let cache = Arc::new(Cache::default());

    let requests: Vec<_> =
        (0..8).map(|_| tokio::spawn(front_page(locks.clone(), Arc::clone(&cache)))).collect();
    for request in requests {
        println!("{}", request.await??);
    }

    assert_eq!(cache.rebuilds.load(Ordering::SeqCst), 1, "one rebuilt it for all");
    locks.close().await;
    Ok(())
}
