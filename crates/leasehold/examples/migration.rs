//! A migration at start-up: several instances start, one migrates, the others wait for it and go on.
//!
//! `cargo run -p leasehold --example migration [URL]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::Locks;

/// The version of the schema that this program needs.
const WANTED: u32 = 2;

#[derive(Default)]
struct Database {
    version: AtomicU32,
    migrations: AtomicU32,
}

async fn start(instance: u32, locks: Locks, database: Arc<Database>) -> leasehold::Result<()> {
    let guard = locks.mutex("example/migration").lock().await?;
    // Look again under the lock: another instance may have done it while this one waited.
    if database.version.load(Ordering::SeqCst) < WANTED {
        println!("instance {instance} migrates");
        // Stops if the lease is lost, before another instance can begin.
        guard.run(tokio::time::sleep(Duration::from_millis(200))).await?;
        database.version.store(WANTED, Ordering::SeqCst);
        database.migrations.fetch_add(1, Ordering::SeqCst);
    }
    guard.release().await?;
    println!("instance {instance} serves");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any store will do: pass its URL as the first argument.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let database = Arc::new(Database::default());

    let instances: Vec<_> =
        (1..=5).map(|n| tokio::spawn(start(n, locks.clone(), Arc::clone(&database)))).collect();
    for instance in instances {
        instance.await??;
    }

    assert_eq!(database.migrations.load(Ordering::SeqCst), 1, "one instance migrated");
    assert_eq!(database.version.load(Ordering::SeqCst), WANTED);
    locks.close().await;
    Ok(())
}
