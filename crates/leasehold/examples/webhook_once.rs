//! A webhook that several workers pick up and one delivers.
//!
//! The lock keeps two workers from delivering at the same time. The record of deliveries keeps the next one from
//! delivering again. A worker that dies between the two delivers twice: give the receiver an id to recognise that.
//!
//! `cargo run -p leasehold --example webhook_once [URL]`

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Error, Fence, Locks};

/// Delivered webhooks with the fence of their worker; a table in a real program.
type Delivered = Arc<Mutex<HashMap<u64, Fence>>>;

async fn deliver(worker: u32, id: u64, locks: Locks, delivered: Delivered) -> leasehold::Result<bool> {
    let known = || delivered.lock().unwrap_or_else(PoisonError::into_inner);
    let mutex = locks.mutex(format!("example/webhook/{id}"));
    mutex
        .with_lock(async |guard| {
            if known().contains_key(&id) {
                return Ok::<_, Error>(false);
            }
            println!("worker {worker} delivers {id}");
            tokio::time::sleep(Duration::from_millis(50)).await; // the request to the receiver
            guard.check()?; // an error if the lease was lost meanwhile
            known().insert(id, guard.fence());
            Ok(true)
        })
        .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let delivered = Delivered::default();

    let workers: Vec<_> =
        (1..=4).map(|n| tokio::spawn(deliver(n, 7, locks.clone(), Arc::clone(&delivered)))).collect();
    let mut deliveries = 0;
    for worker in workers {
        deliveries += u32::from(worker.await??);
    }

    assert_eq!(deliveries, 1, "one worker delivered it");
    locks.close().await;
    Ok(())
}
