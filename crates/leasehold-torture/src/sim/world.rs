//! Shared by everything in a simulation: true time, randomness, the store, and the record of all that happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::chance::Chance;
use super::count::{Count, Counts};
use super::plan::Plan;
use super::store::Store;
use super::time::{MachineClock, Time};
use crate::history::record::{Fault, Kind, Record};

/// The number of the fault injector in the records.
pub(crate) const SUPERVISOR: u32 = 0;

/// The number of the protected resource.
pub(crate) const RESOURCE: u32 = 1;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) time: Arc<Time>,
    pub(crate) plan: Plan,
    /// The clock of the store's machine.
    pub(crate) store_clock: Arc<MachineClock>,
    /// No more work is started.
    pub(crate) ending: AtomicBool,
    /// Notified when the store's condition changes.
    pub(crate) changed: Notify,
    /// The number of the next session.
    pub(crate) sessions: AtomicU64,
    /// Numbers the faults that have no target.
    faults: AtomicU64,
    chance: Mutex<Chance>,
    /// What concerns several names is drawn apart, so that a simulation without any stays as it is.
    multi_chance: Mutex<Chance>,
    book: Mutex<BTreeMap<u32, Vec<Record>>>,
    store: Mutex<Store>,
    counts: Mutex<Counts>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let time = Time::new();
        let (mut chance, mut multi_chance) = (Chance::new(seed), Chance::new(!seed));
        let plan = Plan::new(&mut chance, &mut multi_chance, super::through_server(seed));
        Arc::new(World {
            store_clock: MachineClock::new(&time, 0),
            time,
            plan,
            ending: AtomicBool::new(false),
            changed: Notify::new(),
            sessions: AtomicU64::new(1),
            faults: AtomicU64::new(0),
            chance: Mutex::new(chance),
            multi_chance: Mutex::new(multi_chance),
            book: Mutex::default(),
            store: Mutex::default(),
            counts: Mutex::default(),
        })
    }

    /// The randomness. Do not keep the guard.
    pub(crate) fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock()
    }

    /// The randomness of what concerns several names. Do not keep the guard.
    pub(crate) fn multi_chance(&self) -> MutexGuard<'_, Chance> {
        self.multi_chance.lock()
    }

    /// The store. Do not keep the guard.
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock()
    }

    /// Counts that this happened.
    pub(crate) fn count(&self, what: Count) {
        self.counts().add(what, 1);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// A record with the current time.
    pub(crate) fn record(&self, kind: Kind, worker: u32) -> Record {
        Record::new(kind, worker, self.time.now())
    }

    /// Writes a record down.
    pub(crate) fn write(&self, record: Record) {
        self.book.lock().entry(record.worker).or_default().push(record);
    }

    /// Records that a fault begins: of a process, or with its own number.
    pub(crate) fn begin_fault(&self, fault: Fault, process: Option<u32>) -> Record {
        let own = || self.faults.fetch_add(1, Ordering::Relaxed);
        let value = process.map_or_else(own, u64::from);
        let claim = process.map_or(0, u64::from);
        let record = Record { fault, value, claim, ..self.record(Kind::FaultBegin, SUPERVISOR) };
        self.write(record);
        record
    }

    /// Records that a single call of a process is disturbed.
    pub(crate) fn begin_fault_on(&self, fault: Fault, process: u32) -> Record {
        let value = self.faults.fetch_add(1, Ordering::Relaxed);
        let claim = u64::from(process);
        let record = Record { fault, value, claim, ..self.record(Kind::FaultBegin, SUPERVISOR) };
        self.write(record);
        record
    }

    /// Records that it is over, and whether it hit a holder of a lock.
    pub(crate) fn end_fault(&self, begun: Option<Record>, landed: bool) {
        if let Some(begun) = begun {
            let Record { kind, at, .. } = self.record(Kind::FaultEnd, SUPERVISOR);
            self.write(Record { kind, at, deadline: u64::from(landed), ..begun });
        }
    }

    /// All records, by their writer.
    pub(crate) fn histories(&self) -> Vec<Vec<Record>> {
        self.book.lock().values().cloned().collect()
    }

    /// Sleeps, unless the time is zero.
    pub(crate) async fn sleep(&self, time: Duration) {
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }
}
