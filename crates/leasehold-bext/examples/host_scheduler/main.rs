//! Three nodes whose clocks are half a second apart, and a job that must run once for every tick.
//!
//! `cargo run -p leasehold-bext --example host_scheduler -- redis://127.0.0.1/` uses another store than `memory:`.

mod scheduler;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use bext_plugin_api::locking::LockingPlugin;
use bext_plugin_api::scheduled::{LockingHint, MissedRunPolicy, Schedule, ScheduledPlugin, ScheduledRunCtx};
use leasehold::blocking::Locks;
use leasehold_bext::{LeaseholdPlugin, PluginOptions};
use scheduler::{Event, Scheduler};

/// Nodes look at the same ticks.
const INTERVAL_MS: u64 = 6000;
const TICKS: usize = 2;
/// More than the clocks differ, and less than the interval minus that.
const MIN_HOLD: Duration = Duration::from_secs(4);

/// A job that writes down its runs.
struct Report(Arc<Mutex<BTreeMap<u64, usize>>>);

impl ScheduledPlugin for Report {
    fn name(&self) -> &str {
        "reports"
    }

    fn schedules(&self) -> Result<Vec<Schedule>, String> {
        Ok(vec![Schedule {
            id: "often".into(),
            description: "a report that must not be sent twice".into(),
            cron: format!("{}s", INTERVAL_MS / 1000),
            jitter_ms: 0,
            missed_run_policy: MissedRunPolicy::Skip,
            locking: LockingHint::RequireGlobal,
            config_json: String::new(),
        }])
    }

    fn run(&self, ctx: &ScheduledRunCtx) -> Result<(), String> {
        scheduler::fuel::burn(1000)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(ctx.scheduled_at_ms).or_default() += 1;
        Ok(())
    }
}

/// What a node's clock shows.
fn clock_ms(offset_ms: i64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_add_signed(offset_ms)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    // In one process one client is enough; each node would have its own.
    let client = Locks::connect(&url)?;
    let runs = Arc::new(Mutex::new(BTreeMap::new()));
    let mut nodes = Vec::new();
    for offset_ms in [-500, 0, 500] {
        // Renews while a job runs; after the job, keeps the lock until every clock has passed the tick.
        let options = PluginOptions::default().keep_alive(Duration::from_secs(60)).min_hold(MIN_HOLD);
        let locking: Arc<dyn LockingPlugin> = Arc::new(LeaseholdPlugin::new(client.clone(), options)?);
        let report: Arc<dyn ScheduledPlugin> = Arc::new(Report(Arc::clone(&runs)));
        let mut scheduler = Scheduler::new([report], Some(locking), 30_000, clock_ms(offset_ms))?;
        nodes.push(thread::spawn(move || {
            for _ in 0..TICKS {
                let wait = scheduler.next_ms().unwrap_or_default().saturating_sub(clock_ms(offset_ms));
                thread::sleep(Duration::from_millis(wait));
                for event in scheduler.tick(clock_ms(offset_ms)) {
                    println!("node {offset_ms:+5} ms: {}", told(&event));
                }
            }
            scheduler.stop();
        }));
    }
    for node in nodes {
        node.join().map_err(|_| "a node panicked")?;
    }
    let runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{} ticks, {} runs", runs.len(), runs.values().sum::<usize>());
    // A node that starts between two ticks may see one more than the others.
    assert!(runs.len() >= TICKS && runs.values().all(|runs| *runs == 1), "one run for every tick: {runs:?}");
    Ok(())
}

fn told(event: &Event) -> String {
    match event {
        Event::Ran { key, due_ms, is_catchup: false, result: Ok(()) } => {
            format!("ran {key} for tick {due_ms}")
        }
        Event::Ran { key, due_ms, result, .. } => {
            format!("{key} for tick {due_ms}, late or failed: {result:?}")
        }
        Event::Contended { key } => format!("skipped {key}: another node runs it"),
        Event::LockFailed { key, error } => format!("skipped {key}, or did not release it: {error}"),
    }
}
