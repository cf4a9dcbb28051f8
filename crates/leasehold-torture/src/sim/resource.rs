//! What the locks protect: a table that accepts no write with a lower fence than it has seen.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::count::Count;
use super::worker::Claiming;
use super::world::RESOURCE;
use crate::history::record::{Fault, Kind, Record};

#[derive(Debug, Default)]
pub(crate) struct Resource {
    highest: Mutex<BTreeMap<usize, u64>>,
    writes: AtomicU64,
}

impl Resource {
    /// A holder's write: it arrives after a while, even if the holder no longer holds the lock.
    pub(crate) async fn write(&self, claiming: &Claiming, fence: u64) {
        let world = claiming.world();
        let number = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        world.write(Record { fence, value: number, ..claiming.record(Kind::WriteCall) });
        let delay = world.chance().millis(0, world.plan.delay);
        world.sleep(delay).await;
        let before = {
            let mut highest = self.highest.lock();
            let highest = highest.entry(claiming.lock).or_default();
            let before = *highest;
            *highest = before.max(fence);
            before
        };
        let taken = fence >= before;
        let fault = if taken { Fault::ALL[1] } else { Fault::None };
        let name = claiming.lock as u16;
        let seen = world.record(Kind::FencedWrite, RESOURCE);
        world.write(Record { name, fence, value: before, fault, ..seen });
        world.count(if taken { Count::WriteTaken } else { Count::WriteRejected });
        let kind = if taken { Kind::WriteTaken } else { Kind::WriteRejected };
        world.write(Record { fence, value: number, ..claiming.record(kind) });
    }
}
