//! Three nodes on one store, in time that only the test moves: their clocks are half a second apart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bext_plugin_api::locking::LockingPlugin;
use bext_plugin_api::scheduled::{Schedule, ScheduledPlugin, ScheduledRunCtx};
use leasehold::Locks;
use leasehold::backends::memory::Memory;
use leasehold::clock::Clock as _;
use leasehold_bext::{LeaseholdPlugin, PluginOptions};
use parking_lot::Mutex;
use testkit::hand::Hand;

use crate::Job;
use crate::scheduler::{Event, Scheduler};

pub(crate) const TICKS: usize = 200;
const OFFSETS_MS: [i64; 3] = [-500, 0, 500];
/// The true time at the start, between two ticks by every clock.
const START_MS: u64 = 1_000_000 + INTERVAL_MS / 2;
const INTERVAL_MS: u64 = 10_000;
/// How long a run takes: less than the clocks differ.
const RUN: Duration = Duration::from_millis(40);

/// How often each of the first ticks ran on all nodes together.
pub(crate) fn runs_of_each_tick(options: PluginOptions, jitter_ms: u64) -> Vec<usize> {
    let time = Hand::default();
    time.advance(Duration::from_millis(START_MS));
    let now_ms = || time.now().as_micros() / 1000;
    let store = Memory::with_clock(Arc::new(time.clone()));
    let runs: Arc<Mutex<BTreeMap<u64, usize>>> = Arc::default();
    let mut nodes = OFFSETS_MS.map(|offset| {
        let client = Locks::builder(Arc::new(store.clone())).clock(Arc::new(time.clone())).build();
        let locking: Arc<dyn LockingPlugin> =
            Arc::new(LeaseholdPlugin::new(client, options.clone()).unwrap());
        let schedule = Schedule { jitter_ms, ..crate::schedule("10s") };
        let (runs, time) = (Arc::clone(&runs), time.clone());
        let job: Arc<dyn ScheduledPlugin> =
            Arc::new(Job::new(schedule).doing(move |ctx: &ScheduledRunCtx| {
                time.advance(RUN);
                *runs.lock().entry(ctx.scheduled_at_ms).or_default() += 1;
                Ok(())
            }));
        (
            offset,
            Scheduler::new([job], Some(locking), 60_000, now_ms().saturating_add_signed(offset)).unwrap(),
        )
    });
    // Until the latest clock has dealt with the last tick.
    let last_ms = START_MS / INTERVAL_MS * INTERVAL_MS + TICKS as u64 * INTERVAL_MS;
    loop {
        // The node whose turn is next, by the true time.
        let due = |(offset, node): &(i64, Scheduler)| node.next_ms().unwrap().saturating_add_signed(-offset);
        let (offset, node) = nodes.iter_mut().min_by_key(|node| due(node)).unwrap();
        if node.next_ms().unwrap() > last_ms + jitter_ms {
            break;
        }
        let wait = node.next_ms().unwrap().saturating_add_signed(-*offset).saturating_sub(now_ms());
        time.advance(Duration::from_millis(wait));
        for event in node.tick(now_ms().saturating_add_signed(*offset)) {
            assert!(!matches!(event, Event::LockFailed { .. }), "{event:?}");
        }
    }
    let runs = runs.lock();
    assert!(runs.keys().all(|due| due.is_multiple_of(INTERVAL_MS)));
    runs.iter().filter(|(due, _)| **due <= last_ms).map(|(_, runs)| *runs).collect()
}
