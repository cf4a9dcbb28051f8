//! A reader-writer lock: readers share it, a writer has it alone.
//!
//! `cargo run -p leasehold --example rwlock [URL]`

use leasehold::Locks;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let config = locks.rwlock("example/rwlock");

    let first = config.read().await?;
    let second = config.read().await?;
    println!("two readers at once");
    assert!(config.try_write().await?.is_none(), "no writer while there are readers");
    first.release().await?;
    second.release().await?;

    let writer = config.write().await?;
    println!("one writer, with fence {}", writer.fence());
    assert!(config.try_read().await?.is_none(), "no reader while there is a writer");
    writer.release().await?;

    locks.close().await;
    Ok(())
}
