//! What must have happened for a run to prove anything: a run below its floors proves nothing, even without
//! violations.

use std::fmt;

use serde::Serialize;

use crate::check::{Figures, Invariant};
use crate::history::record::Fault;
use crate::history::setting::Promises;
use crate::plan::Plan;
use crate::store::{Front, Profile, Store};
use crate::supervise::{Faults, Looks};

/// One thing that must have happened often enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Floor {
    /// What must have happened.
    pub what: String,
    /// How often it must have happened.
    pub least: u64,
    /// How often it did.
    pub seen: u64,
}

impl Floor {
    /// Whether it is enough.
    pub fn is_met(&self) -> bool {
        self.seen >= self.least
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of at least {}", self.what, self.seen, self.least)
    }
}

/// Hand-overs in 20 calm seconds; a store on an otherwise idle machine has two to four times as many.
const CALM_HANDOVERS: u64 = 1_500;

/// Leases that were certainly held while another client wanted them, in 20 calm seconds.
const CALM_JUDGED: u64 = 500;

/// Fail-overs in [`FAILOVER_SECS`].
const FAILOVERS: u64 = 20;

/// The default length of a run with fail-overs.
pub const FAILOVER_SECS: u64 = 200;

/// How many fail-overs a run has to land, in proportion to its length. It continues until it has them, for up to [this
/// many](FAILOVER_TIMES) times as long.
pub(crate) fn failovers(plan: &Plan) -> u64 {
    match plan.profile {
        Profile::Failover => (FAILOVERS * plan.lasts_ms / (FAILOVER_SECS * 1_000)).max(2),
        _ => 0,
    }
}

/// A machine that needs more than this many times the planned time proves nothing.
pub(crate) const FAILOVER_TIMES: u32 = 3;

/// All floors of a run.
pub(crate) fn of(
    plan: &Plan,
    promises: &Promises,
    faults: &Faults,
    looks: &Looks,
    figures: &Figures,
) -> Vec<Floor> {
    let mut floors = Vec::new();
    // They are given for 20 seconds; a shorter run needs proportionally fewer.
    let mut at_least = |what: &str, in_twenty: u64, seen: u64| {
        let least = (in_twenty * plan.lasts_ms / 20_000).max(1);
        floors.push(Floor { what: what.into(), least, seen });
    };
    // The histories show whether a worker felt it.
    let landed = |fault: Fault| {
        let felt = figures.felt.get(&format!("{fault:?}")).copied().unwrap_or(0);
        faults.get(fault).landed.min(felt)
    };
    // Faults make everything slow; without some work in between they show nothing.
    let part = match plan.profile {
        Profile::Calm => 1,
        Profile::Cancel | Profile::Clock | Profile::Leak | Profile::Logs | Profile::Many => 4,
        // A queue stands still for a ticket ttl, half a run, when a waiter in it is killed.
        Profile::All => 25,
        // For half of the time no server can grant anything.
        Profile::Failover => 25,
        _ => 10,
    };
    // Three nodes, each behind a lock server, or of which two wait for the disk.
    let slow = plan.store == Store::MixedQuorum || plan.store.is_quorum() && plan.front.is_server();
    let part = if slow { part * 5 } else { part };
    // Workers of an SDK use fewer parts of the API, and their language may be slower.
    let sdk = plan.language.is_some();
    let part = if sdk { part * 4 } else { part };
    at_least("hand-overs", CALM_HANDOVERS / part, figures.handovers);
    at_least("leases judged by I1", CALM_JUDGED / part, figures.judged_by(Invariant::I1));
    if sdk {
        at_least("grants to readers", CALM_USED / part, figures.readers);
        at_least("grants of permits", CALM_USED / part, figures.permits);
    } else if plan.profile != Profile::Crowd {
        used(plan, promises, figures, part, &mut at_least);
    }
    if matches!(plan.profile, Profile::Calm | Profile::Kill | Profile::Cancel | Profile::Crowd) {
        // With other profiles something explains nearly every delay.
        at_least("waits judged by J1", if sdk { 10 } else { 50 }, figures.judged_by(Invariant::J1));
    }
    match plan.profile {
        Profile::Calm => {}
        Profile::Many => {
            at_least("sweeps", 5, looks.sweeps);
            at_least("pages of a list", 3, looks.lists);
        }
        // Session locks are not renewed.
        Profile::Crowd if promises.session => {}
        Profile::Crowd => at_least("guards judged by J10", 100, figures.judged_by(Invariant::J10)),
        Profile::Logs => {
            if !promises.session {
                at_least("guards judged by J10", 10, figures.judged_by(Invariant::J10));
            }
            at_least("pauses of holders", 3, faults.get(Fault::Pause).holders);
        }
        // A new process in another language may take longer to start than it then lives.
        Profile::Kill if sdk => at_least("kills of holders", 4, faults.get(Fault::Kill).holders),
        Profile::Kill => {
            at_least("kills", 40, landed(Fault::Kill));
            at_least("kills of holders", 30, faults.get(Fault::Kill).holders);
        }
        Profile::Pause => {
            let pauses = faults.get(Fault::Pause);
            at_least("pauses of holders", 40, pauses.holders);
            if !promises.session {
                at_least("pauses of holders past their ttl", 40, pauses.past_ttl);
            }
        }
        Profile::Net => {
            use Fault::{Blackhole, Cut, Delay, Hold, Reset, Swallow};
            for fault in [Delay, Reset, Blackhole, Cut, Swallow, Hold] {
                at_least(&format!("{fault:?}"), 2, landed(fault));
            }
            // In a quorum a failing minority costs nothing.
            let unknown = match plan.store {
                store if store.is_quorum() => 40,
                // There are fewer faults, each for one worker.
                Store::Advisory => 5,
                _ if plan.front == Front::Tls || sdk => 40,
                _ => 100,
            };
            at_least("unknown outcomes", unknown, figures.unknowns + figures.failed);
        }
        Profile::Restart => {
            at_least("restarts of the store", 4, landed(Fault::RestartStore));
            at_least("pauses of the store", 4, landed(Fault::PauseStore));
        }
        Profile::Clock => {
            at_least("steps of the workers' clocks", 8, landed(Fault::ClockWorker));
            if plan.store.has_server() {
                at_least("steps of the store's clock", 4, landed(Fault::ClockStore));
            }
        }
        Profile::Cancel => at_least("acquires given up", 500, figures.dropped),
        Profile::Leak => {
            at_least("acquires given up", 200, figures.dropped);
            if faults.get(Fault::Delay).planned > 0 {
                at_least("Delay", 10, landed(Fault::Delay));
            }
        }
        Profile::Resources => {
            for fault in [Fault::Descriptors, Fault::Memory, Fault::DiskFull] {
                if faults.get(fault).planned > 0 {
                    at_least(&format!("{fault:?}"), 4, landed(fault));
                }
            }
        }
        Profile::Failover => {
            let kinds = [Fault::CrashPrimary, Fault::FreezePrimary, Fault::SwitchPrimary];
            let seen = kinds.into_iter().map(landed).sum();
            floors.push(Floor { what: "fail-overs".into(), least: failovers(plan), seen });
            let works = figures.judged_by(Invariant::J9);
            let least = failovers(plan) * 20;
            floors.push(Floor { what: "names that work again, by worker (J9)".into(), least, seen: works });
        }
        Profile::All => {
            at_least("kills of holders", 10, faults.get(Fault::Kill).holders);
            at_least("pauses of holders", 10, faults.get(Fault::Pause).holders);
            at_least("unknown outcomes", 50, figures.unknowns + figures.failed + figures.dropped);
            if faults.get(Fault::PauseStore).planned > 0 {
                at_least("pauses of the store", 2, landed(Fault::PauseStore));
            }
        }
    }
    for invariant in needed(plan, promises) {
        let what = format!("judged by {invariant:?}");
        floors.push(Floor { what, least: 1, seen: figures.judged_by(invariant) });
    }
    if plan.profile == Profile::Pause && !promises.session {
        // Without these no lease was ever in danger, and the absence of violations proves nothing.
        floors.push(Floor {
            what: "overlaps without fences".into(),
            least: 1,
            seen: figures.unfenced_overlaps,
        });
        if !sdk {
            // A worker of an SDK writes while it holds the lock, and hardly ever pauses between its look and its write.
            floors.push(Floor { what: "stale writes rejected".into(), least: 1, seen: figures.fenced_saves });
        }
    }
    floors
}

/// What workers of an SDK cannot show, because it needs a part of the API that they do not use.
const BEYOND_SDKS: &[Invariant] =
    &[Invariant::I6, Invariant::I8, Invariant::I10, Invariant::I14, Invariant::I15, Invariant::J4];

/// What must have been judged at all: otherwise the absence of violations proves nothing.
fn needed(plan: &Plan, promises: &Promises) -> Vec<Invariant> {
    use Invariant::{I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12, I13, I14, I15, J2, J3, J4, J6, J7};
    let Promises { session, fenced, fifo, durable, .. } = *promises;
    let (profile, store) = (plan.profile, plan.store);
    [
        (I2, true),
        (I3, fenced),
        (I4, fenced),
        (I5, true),
        (I6, !session),
        (I7, !session),
        // A writer waits for seconds, and a reader has to have died before.
        (I8, profile == Profile::Kill && !session && plan.lasts_ms >= 15_000),
        (I9, profile != Profile::Crowd && has_permits(store)),
        (I10, !session && store != Store::Quorum),
        (I11, true),
        (I12, profile == Profile::Restart && durable),
        (I13, profile == Profile::Calm),
        // A revoke at once is rare, and a request about its lease must follow.
        (
            I14,
            plan.lasts_ms >= 15_000
                && !matches!(profile, Profile::Crowd | Profile::All)
                && !session
                && !store.is_quorum(),
        ),
        (I15, profile != Profile::Crowd),
        (J2, profile == Profile::Kill),
        (J3, true),
        (J4, profile == Profile::Calm && fifo && fenced),
        (J6, profile.cancels()),
        (J7, true),
    ]
    .into_iter()
    .filter(|(invariant, _)| plan.language.is_none() || !BEYOND_SDKS.contains(invariant))
    .filter_map(|(invariant, is_needed)| is_needed.then_some(invariant))
    .collect()
}

/// Whether it has semaphores.
fn has_permits(store: Store) -> bool {
    !matches!(store, Store::Quorum | Store::Advisory)
}

/// How often each part of the API was used, in 20 calm seconds.
const CALM_USED: u64 = 100;

/// What the workers must have used, as far as the store has it.
fn used(
    plan: &Plan,
    promises: &Promises,
    figures: &Figures,
    part: u64,
    at_least: &mut impl FnMut(&str, u64, u64),
) {
    let operations = |kind: &str| figures.operations.get(kind).copied().unwrap_or(0);
    let faces = |face: &str| figures.faces.get(face).copied().unwrap_or(0);
    let least = CALM_USED / part;
    at_least("grants to readers", 5 * least, figures.readers);
    if has_permits(plan.store) {
        at_least("grants of permits", 5 * least, figures.permits);
    }
    at_least("acquires by with_lock and its like", least, faces("With"));
    at_least("acquires by blocking faces", least, faces("Blocking"));
    at_least("work inside of run", least, operations("RunEnded"));
    at_least("acquires of one of several names", least * 2 / 5, faces("Multi"));
    if plan.profile == Profile::All {
        // Half of the time everybody waits behind a dead waiter: what is rare may not happen at all.
        return;
    }
    if plan.store != Store::File {
        at_least("downgrades", least * 2 / 5, operations("Downgraded"));
    }
    at_least("adoptions", least * 2 / 5, operations("Adopted"));
    if !promises.session {
        at_least("leases revoked at once", least / 10, figures.revoked);
        at_least("shortenings", least / 10, operations("Shortened"));
        if plan.profile != Profile::Leak {
            at_least("adoptions by another process", least / 10, figures.adopted);
        }
    }
    if promises.fifo {
        at_least("lists with waiters", least / 10, figures.lists);
        if plan.profile == Profile::Calm {
            at_least("grants judged by a list (J4)", CALM_USED, figures.judged_by(Invariant::J4));
        }
    }
    if matches!(plan.store, Store::Http | Store::Memory) {
        at_least("bare HTTP clients that waited", least / 10, faces("Raw"));
    }
    at_least("clients closed in the middle", (least / 20).max(1), operations("Closed"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Judged;
    use crate::history::setting::Losses;
    use crate::supervise::Landed;

    const PROMISES: Promises = Promises {
        session: false,
        notices_within: 0,
        fenced: true,
        fifo: true,
        push: true,
        ticket: 0,
        durable: true,
        steady: true,
        keeps: false,
        losses: Losses::Nothing,
    };

    #[test]
    fn a_fault_that_no_worker_felt_did_not_land() {
        for (profile, fault) in [
            (Profile::Net, Fault::Reset),
            (Profile::Resources, Fault::Memory),
            (Profile::Kill, Fault::Kill),
            (Profile::Clock, Fault::ClockWorker),
        ] {
            let plan = Plan::new(1, (Store::Redis, Front::None), true, profile, 20_000, 12);
            let mut faults = Faults::default();
            let some = Landed { planned: 200, landed: 200, ..Landed::default() };
            faults.0.insert(format!("{fault:?}"), some);
            let mut figures = Figures::default();
            let met = |figures: &Figures| {
                let floors = of(&plan, &PROMISES, &faults, &Looks::default(), figures);
                floors.iter().filter(|floor| floor.is_met()).count()
            };
            assert_eq!(met(&figures), 0, "{fault:?}");
            figures.felt.insert(format!("{fault:?}"), 200);
            assert_eq!(met(&figures), 1, "{fault:?}");
        }
    }

    #[test]
    fn an_empty_run_is_below_the_floors_of_every_profile() {
        let promises = PROMISES;
        for profile in Profile::ALL {
            let plan = Plan::new(1, (Store::Redis, Front::None), true, *profile, 5_000, 8);
            let floors = of(&plan, &promises, &Faults::default(), &Looks::default(), &Figures::default());
            assert!(floors.iter().all(|floor| !floor.is_met()), "{profile}: {floors:?}");
        }
        let plan = Plan::new(1, (Store::Redis, Front::None), true, Profile::Calm, 5_000, 8);
        let judged = |judged| Judged { judged, ..Judged::default() };
        let mut figures = Figures { handovers: 375, ..Figures::default() };
        assert!(
            !of(&plan, &promises, &Faults::default(), &Looks::default(), &figures).iter().all(Floor::is_met)
        );
        let often = |of: &[&str]| of.iter().map(|what| ((*what).into(), 25)).collect();
        figures.judged =
            [("I1".into(), judged(125)), ("J1".into(), judged(13)), ("J4".into(), judged(25))].into();
        let unmet = |figures: &Figures| -> Vec<String> {
            let floors = of(&plan, &promises, &Faults::default(), &Looks::default(), figures);
            floors.into_iter().filter(|floor| !floor.is_met()).map(|floor| floor.what).collect()
        };
        assert!(unmet(&figures).contains(&"judged by I5".into()), "{:?}", unmet(&figures));
        for invariant in Invariant::JUDGED {
            figures.judged.entry(format!("{invariant:?}")).or_insert(judged(1));
        }
        assert!(unmet(&figures).contains(&"grants to readers".into()), "{:?}", unmet(&figures));
        (figures.readers, figures.permits) = (125, 125);
        (figures.revoked, figures.adopted, figures.lists) = (7, 13, 7);
        figures.operations = often(&["Downgraded", "Adopted", "Shortened", "RunEnded", "Closed"]);
        figures.faces = often(&["With", "Blocking", "Multi"]);
        assert!(
            of(&plan, &promises, &Faults::default(), &Looks::default(), &figures).iter().all(Floor::is_met)
        );
    }
}
