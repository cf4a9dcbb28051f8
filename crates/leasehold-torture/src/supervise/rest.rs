//! The store at rest: when everybody has finished, nothing may be left in it but fence counters.

use std::io;
use std::time::{Duration, Instant};

use leasehold::Locks;

use crate::history::record::{Kind, Leftover, Log, Mode, Record};
use crate::history::setting::Name;
use crate::worker::now;

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Waits until nothing is left, at most so long, and writes down what is.
pub(super) async fn look(url: &str, names: &[Name], patience: Duration, log: &Log) -> io::Result<u64> {
    let started = Instant::now();
    loop {
        let over = started.elapsed() > patience;
        match left(url, names).await {
            Ok(left) if left.is_empty() || over => {
                for (name, value, mode) in &left {
                    let value = *value as u64;
                    log.write(Record { name: *name, mode: *mode, value, ..Record::new(Kind::Left, 0, now()) })?;
                }
                return Ok(left.len() as u64);
            }
            Err(error) if over => return Err(io::Error::other(format!("the store cannot be looked at: {error}"))),
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
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
