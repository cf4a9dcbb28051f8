//! The store at rest: when all workers have finished, only fence counters may be left in it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold::Locks;
use serde::{Deserialize, Serialize};

use crate::history::record::{Kind, Leftover, Log, Mode, Record};
use crate::history::setting::Name;
use crate::worker::now;

/// How often it is looked at, and how often at least before something counts as left: a second is short for a store
/// whose calls take half of that. It gets at most this many times the patience.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS: u32 = 10;
const SLOW: u32 = 4;

/// What to check, by a process that can see the store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) url: String,
    pub(crate) names: Vec<Name>,
    pub(crate) patience_ms: u64,
    pub(crate) history: PathBuf,
}

impl Rest {
    /// Waits until nothing is left, at most for the time allowed, and records what still is.
    pub(crate) fn look(&self) -> io::Result<()> {
        let log = Log::append(&self.history)?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(self.until_nothing_is_left(&log))
    }

    async fn until_nothing_is_left(&self, log: &Log) -> io::Result<()> {
        let (started, patience) = (Instant::now(), Duration::from_millis(self.patience_ms));
        for looks in 0.. {
            let over = started.elapsed() > if looks < LOOKS { patience * SLOW } else { patience };
            match left(&self.url, &self.names).await {
                Ok(left) if left.is_empty() || over => {
                    for (name, value, mode) in &left {
                        let value = *value as u64;
                        log.write(Record {
                            name: *name,
                            mode: *mode,
                            value,
                            ..Record::new(Kind::Left, 0, now())
                        })?;
                    }
                    return Ok(());
                }
                Err(error) if over => {
                    return Err(io::Error::other(format!("the store cannot be looked at: {error}")));
                }
                _ => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
        Ok(())
    }
}

async fn left(url: &str, names: &[Name]) -> leasehold::Result<Vec<(u16, Leftover, Mode)>> {
    let locks = Locks::connect(url).await?;
    let mut all = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let seen = locks.inspect(&name.name).await?;
        let holders = seen.holders.iter().map(|holder| (Leftover::Holder, mode(holder.grant.mode)));
        let waiters = seen.waiters.iter().map(|waiter| (Leftover::Waiter, mode(waiter.mode)));
        all.extend(holders.chain(waiters).map(|(what, mode)| (place as u16, what, mode)));
    }
    Ok(all)
}

fn mode(mode: leasehold::Mode) -> Mode {
    match mode {
        leasehold::Mode::Shared => Mode::Shared,
        leasehold::Mode::Permit { .. } => Mode::Permit,
        _ => Mode::Exclusive,
    }
}
