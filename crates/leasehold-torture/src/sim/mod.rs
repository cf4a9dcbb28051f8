//! A deterministic simulation: the library's own wait loop, renewal loop, guards and state machine, on a simulated
//! store and network, in paused time.
//!
//! Everything derives from one number, the seed: the same seed gives the same history, byte for byte. Some seconds
//! with some hundred operations take some milliseconds, so that thousands of seeds are tried where real stores and
//! processes try one; and a seed can be replayed as often as needed.

mod bare;
mod chance;
mod count;
mod faults;
mod multi;
mod network;
mod plan;
mod process;
mod report;
mod resource;
mod served;
mod session;
mod show;
mod store;
mod time;
mod worker;
mod world;

pub use count::{Count, Counts};
pub use report::{Failure, Options, SimReport, judge, run};

use crate::history::record::Record;
use crate::history::setting::{Losses, Promises, Setting};

/// Whether clients of this seed use the lock server, all of them or half.
pub fn through_server(seed: u64) -> bool {
    seed % 4 == 1
}

/// One simulated seed: its setting and what happened.
#[derive(Debug)]
pub struct SimRun {
    /// Its setting.
    pub setting: Setting,
    /// One history for each process.
    pub histories: Vec<Vec<Record>>,
    /// Counts of what happened.
    pub counts: Counts,
}

/// Simulates one seed.
///
/// # Panics
/// If the runtime cannot be started, or if time stands still because a task loops without waiting.
pub fn simulate(seed: u64) -> SimRun {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    #[allow(clippy::expect_used)] // without one there is nothing to be done
    let runtime = runtime.expect("a runtime of one thread can always be had");
    leasehold::seed_chance(Some(seed));
    let seen = runtime.block_on(async {
        let world = world::World::new(seed);
        let begin = world.time.now();
        faults::Supervisor::new(&world).run().await;
        let end = world.time.now();
        assert!(!world.time.stood_still(), "a task looped without waiting");
        let setting = setting(seed, &world.plan, (begin, end));
        let seen = SimRun { setting, histories: world.histories(), counts: world.counts().clone() };
        // The store refers to the wires, and the wires to the store: break the cycle.
        *world.store() = store::Store::default();
        seen
    });
    drop(runtime);
    leasehold::seed_chance(None);
    seen
}

fn setting(seed: u64, plan: &plan::Plan, span: (u64, u64)) -> Setting {
    let pushes = plan.waits != plan::Waits::Poll;
    Setting {
        seed,
        profile: "simulation".into(),
        store: "simulation".into(),
        configuration: format!("{plan:?}"),
        promises: Promises {
            session: plan.session,
            notices_within: if plan.session { session::NOTICES.as_nanos() as u64 } else { 0 },
            fenced: true,
            fifo: pushes,
            push: pushes,
            ticket: 10_000_000_000,
            durable: true,
            steady: plan.steady,
            keeps: false,
            losses: Losses::Nothing,
        },
        names: plan.names.clone(),
        sides: 0,
        span,
    }
}
