//! Fencing: a writer that was paused for longer than its lease is refused.
//!
//! `cargo run -p leasehold --example fenced_writer [URL]`, with a store that has a ttl

use std::time::Duration;

use leasehold::{Fence, Locks};

/// What the lock protects. It remembers the highest fence that it has seen.
#[derive(Default)]
struct Account {
    balance: i64,
    highest: Fence,
}

impl Account {
    fn write(&mut self, balance: i64, fence: Fence) -> Result<(), String> {
        if fence < self.highest {
            return Err(format!("fence {fence} is older than {}", self.highest));
        }
        (self.balance, self.highest) = (balance, fence);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let mut account = Account::default();

    // The first writer. Nothing renews its lease, as if its whole process had stopped right after the grant.
    let ttl = Duration::from_secs(1);
    let paused = locks.leasing("example/account").ttl(ttl).acquire().await?;
    println!("first writer: fence {}, then a pause that outlasts its lease", paused.fence);

    // The second writer waits until that lease has expired, and writes.
    let guard = locks.mutex("example/account").max_wait(Duration::from_secs(10)).lock().await?;
    account.write(200, guard.fence())?;
    println!("second writer: fence {}, writes 200", guard.fence());

    // The first writer wakes up and believes that it still holds the lock.
    let refused = account.write(100, paused.fence);
    println!("first writer: {refused:?}");
    assert!(refused.is_err(), "the paused writer is refused");
    assert_eq!(account.balance, 200, "the newer write is still there");

    guard.release().await?;
    locks.close().await;
    Ok(())
}
