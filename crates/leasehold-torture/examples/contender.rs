//! One process of the mixed test of all languages, in Rust: `docs/sdk-protocol.md` says what it does.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::{Clock as _, SystemClock};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Task {
    url: String,
    lock: String,
    ttl_ms: u64,
    rounds: u32,
    log: PathBuf,
    me: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: contender TASK")?;
    let task: Task = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut log = File::options().append(true).create(true).open(&task.log)?;
    let locks = Locks::connect(&task.url).await?;
    let mutex = locks.mutex(&task.lock).ttl(Duration::from_millis(task.ttl_ms));
    for _ in 0..task.rounds {
        let guard = mutex.lock().await?;
        let mut note = |what: &str| {
            let line =
                format!("{} {what} {} {}\n", task.me, guard.fence().get(), SystemClock.now().as_nanos());
            // One write, so that lines of several processes do not mix.
            log.write_all(line.as_bytes())
        };
        note("enter")?;
        tokio::time::sleep(Duration::from_millis(3)).await;
        note(if guard.check().is_ok() { "leave" } else { "lost" })?;
        guard.release().await?;
    }
    locks.close().await;
    Ok(())
}
