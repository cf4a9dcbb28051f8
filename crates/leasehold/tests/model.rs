//! The state machine of one name against `docs/contract.md`.
//!
//! `spec.rs` is the contract as naive code, written without a look at `state.rs`. Random histories run on
//! both, every answer and everything visible must be the same after each step, and what must hold whatever
//! the rules say is checked on its own (`watch.rs`).
//!
//! `LEASEHOLD_SEED` repeats a run, `LEASEHOLD_STEPS` makes it longer.

#[path = "model/mod.rs"]
mod contract;
#[path = "model/watch.rs"]
mod watch;

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use leasehold::backend::Claim;
use leasehold::state::{Now, Op, Row, State};
use leasehold::{LeaseId, Mode, Name};

use contract::history::{Clocks, History, PROFILES, Profile, Rng};
use contract::reach::{LEAST, Reached, add, count, count_verb, too_rare};
use contract::spec::{Planted, Spec};
use contract::{Id, Said, Seen, Step, differ, from_env, ids, said, seed, seen};
use watch::Watch;

/// Steps of a run in all, unless `LEASEHOLD_STEPS` says otherwise.
const STEPS: usize = 160_000;
/// Within this many steps of one of the profiles a test must see a planted fault.
const STEPS_TO_SEE: usize = 2_000;
/// How many seeds it may try for that: a rule about a queue of 128 is met late.
const SEEDS_TO_SEE: u64 = 8;

/// An implementation of the contract, or what should be one.
trait Tested {
    fn apply(&mut self, now: Now, op: Op<'_>) -> (Said, Vec<LeaseId>);
    fn see(&self, now: Now, probes: &[LeaseId]) -> Seen;
    fn knows(&self, id: &LeaseId, now: Now) -> bool;
}

impl Tested for Spec {
    fn apply(&mut self, now: Now, op: Op<'_>) -> (Said, Vec<LeaseId>) {
        Spec::apply(self, now, op)
    }

    fn see(&self, now: Now, probes: &[LeaseId]) -> Seen {
        Spec::see(self, now, probes)
    }

    fn knows(&self, id: &LeaseId, now: Now) -> bool {
        !Spec::see(self, now, &[*id]).known.is_empty()
    }
}

fn name() -> Name {
    static NAME: LazyLock<Name> = LazyLock::new(|| Name::new("n").expect("a name"));
    NAME.clone()
}

impl Tested for State {
    fn apply(&mut self, now: Now, op: Op<'_>) -> (Said, Vec<LeaseId>) {
        let mut woken = Vec::new();
        let said = said(State::apply(self, now, op, &mut woken), op);
        (said, woken)
    }

    fn see(&self, now: Now, probes: &[LeaseId]) -> Seen {
        let view = self.view(&name(), now, None);
        assert_eq!(view.last_fence, self.last_fence());
        let asked = |id| self.view(&name(), now, Some(id)).holders.into_iter().map(|h| Id(h.id)).collect();
        let cut = view.holder_count as usize > view.holders.len();
        Seen {
            asked: probes.iter().filter(|_| cut).map(asked).collect(),
            known: probes.iter().filter(|id| State::knows(self, id, now)).copied().map(Id).collect(),
            at_rest: self.is_at_rest(),
            ..seen(view)
        }
    }

    fn knows(&self, id: &LeaseId, now: Now) -> bool {
        State::knows(self, id, now)
    }
}

// Running.

/// A disagreement between the two, or something that must never be.
struct Failure {
    what: String,
    profile: &'static str,
    step: usize,
    report: String,
}

/// Runs histories of one profile on both sides.
fn run<T: Tested>(
    profile: usize,
    seed: u64,
    steps: usize,
    tested: impl Fn() -> T,
    planted: Planted,
) -> Result<Reached, Failure> {
    let mut reached = Reached::new();
    let mut done = 0;
    for history in 0.. {
        if done >= steps {
            break;
        }
        let length = PROFILES[profile].length.min(steps - done);
        let rng = Rng::new(seed, profile, history);
        let mut pair = Pair {
            tested: tested(),
            spec: Spec::new(planted),
            watch: Watch::default(),
            history: History::new(&PROFILES[profile], name(), rng, Clocks::Two),
            last: VecDeque::new(),
        };
        for step in 0..length {
            if let Err(what) = pair.step(&mut reached) {
                let report = pair.report(&what, &PROFILES[profile], seed, history, step);
                return Err(Failure { what, profile: PROFILES[profile].name, step: done + step + 1, report });
            }
        }
        pair.spec.reached.iter().for_each(|(what, count)| add(&mut reached, what, *count));
        done += length;
    }
    Ok(reached)
}

fn answer(tested: &mut impl Tested, now: Now, op: Op<'_>) -> (Said, Vec<LeaseId>) {
    let answer = panic::catch_unwind(AssertUnwindSafe(|| tested.apply(now, op)));
    answer.unwrap_or((Said::Odd("a panic"), Vec::new()))
}

/// Both sides of one history.
struct Pair<'a, T> {
    tested: T,
    spec: Spec,
    watch: Watch,
    history: History<'a>,
    last: VecDeque<Step>,
}

impl<T: Tested> Pair<'_, T> {
    fn step(&mut self, reached: &mut Reached) -> Result<(), String> {
        let earlier = self.history.now();
        let now = self.history.pass(&self.spec);
        add(reached, "the wall clock falls", u64::from(now.wall < earlier.wall));
        add(reached, "something ends in this instant", u64::from(self.spec.ends().contains(&now.expiry)));
        let verb = self.history.verb(&self.spec);
        let probes = self.history.probes(&verb);

        self.watch.forget_ended(now, &self.tested);
        let before = self.tested.see(now, &probes);
        let nothing = || (Said::Nothing, Vec::new());
        let (said, woken) = verb.op().map_or_else(nothing, |op| answer(&mut self.tested, now, op));
        let (spec_said, spec_woken) = verb.op().map_or_else(nothing, |op| self.spec.apply(now, op));
        let after = self.tested.see(now, &probes);
        let step = Step { now, verb, said: said.clone(), woken: woken.clone() };
        let verdict = self.watch.after(&step, &before, &after, &self.tested);
        self.last.push_back(step);
        if self.last.len() > 30 {
            self.last.pop_front();
        }

        verdict?;
        if !said.agrees_with(&spec_said) {
            return Err(differ("the answers", &said, &spec_said));
        }
        if woken != spec_woken {
            return Err(differ("the woken", &ids(&woken), &ids(&spec_woken)));
        }
        self.same_view("the views", now, &probes)?;
        if let Some(later) = self.history.later(&self.spec) {
            self.same_view("the later views", later, &probes)?;
        }
        count(reached, &after, &woken, &self.spec);
        if let Some(step) = self.last.back() {
            count_verb(reached, &step.verb, &step.said);
        }
        // The next verb settles what has ended since the last one, and shows which waiters that wakes.
        let settled = self.spec.ends().iter().all(|end| *end > now.expiry);
        if settled { self.keep(now, &probes, reached) } else { Ok(()) }
    }

    /// Now and then the store keeps a place, or tries to keep one that does not exist.
    fn keep(&mut self, now: Now, probes: &[LeaseId], reached: &mut Reached) -> Result<(), String> {
        for id in probes.iter().take((now.expiry % 3) as usize) {
            let nonce = self.spec.tickets.iter().find(|t| t.id == *id).map_or(1, |t| t.nonce);
            let ticket = Duration::from_micros(now.expiry % 5_000_000);
            let mut claim = Claim::new(name(), Mode::Exclusive, ticket, "ann").queued(ticket);
            (claim.id, claim.nonce) = (*id, if now.expiry.is_multiple_of(11) { nonce ^ 1 } else { nonce });
            let (said, woken) = answer(&mut self.tested, now, Op::Keep(&claim));
            let (spec_said, spec_woken) = self.spec.apply(now, Op::Keep(&claim));
            add(reached, "a place is kept", u64::from(said == Said::Kept(true)));
            if said != spec_said || woken != spec_woken {
                return Err(differ("what keeping a place did", &(said, ids(&woken)), &spec_said));
            }
            self.same_view("the views after keeping", now, probes)?;
        }
        Ok(())
    }

    fn same_view(&self, what: &str, at: Now, probes: &[LeaseId]) -> Result<(), String> {
        let (seen, spec_seen) = (self.tested.see(at, probes), self.spec.see(at, probes));
        watch::holders_fit(&seen)?;
        if seen == spec_seen { Ok(()) } else { Err(differ(what, &seen, &spec_seen)) }
    }

    fn report(&self, what: &str, profile: &Profile, seed: u64, history: usize, step: usize) -> String {
        let mut text = format!(
            "{what}\n\nLEASEHOLD_SEED={seed}, history {history} of \"{}\", step {step}; the last steps:\n",
            profile.name
        );
        for Step { now, verb, said, woken } in &self.last {
            let woken = if woken.is_empty() { String::new() } else { format!(", wakes {:?}", ids(woken)) };
            text += &format!("  {} (wall {}) {verb}\n      {said:?}{woken}\n", now.expiry, now.wall);
        }
        text
    }
}

// The tests.

/// Runs `steps` of all profiles together, and counts what they met.
fn histories(seed: u64, steps: usize) -> Reached {
    let shares: usize = PROFILES.iter().map(|p| p.share).sum();
    let results: Vec<_> = thread::scope(|scope| {
        let start = |(i, p): (usize, &Profile)| {
            let steps = steps * p.share / shares;
            scope.spawn(move || run(i, seed, steps, State::new, Planted::Nothing))
        };
        let running: Vec<_> = PROFILES.iter().enumerate().map(start).collect();
        running.into_iter().map(|r| r.join().expect("a history ends with an answer")).collect()
    });
    let mut reached = Reached::new();
    for result in results {
        match result {
            Ok(part) => part.into_iter().for_each(|(what, count)| add(&mut reached, what, count)),
            Err(failure) => panic!("{}", failure.report),
        }
    }
    reached
}

/// The state machine, taken apart into rows and put together again before every verb, as in a store that keeps rows.
/// Places are kept all at once.
#[derive(Default)]
struct Rebuilt(State);

impl Rebuilt {
    fn rows(&self) -> Vec<(LeaseId, Row)> {
        self.0.ids().map(|id| (id, self.0.row(&id).expect("an id that is listed has a row"))).collect()
    }
}

impl Tested for Rebuilt {
    fn apply(&mut self, now: Now, op: Op<'_>) -> (Said, Vec<LeaseId>) {
        let note = self.0.note().cloned();
        self.0 = State::from_rows(self.0.last_fence(), self.0.version(), self.rows()).with_note(note);
        let Op::Keep(claim) = op else { return Tested::apply(&mut self.0, now, op) };
        // Keeping settles nothing; a store has already done that.
        let (_, woken) = Tested::apply(&mut self.0, now, Op::Sweep);
        let own = matches!(self.0.row(&claim.id), Some(Row::Ticket(row)) if row.nonce == claim.nonce);
        let until = now.expiry + claim.queue.map_or(0, |ticket| ticket.as_micros() as u64);
        self.0.keep_places(|id| (own && *id == claim.id).then_some(until));
        (Said::Kept(own), woken)
    }

    fn see(&self, now: Now, probes: &[LeaseId]) -> Seen {
        self.0.see(now, probes)
    }

    fn knows(&self, id: &LeaseId, now: Now) -> bool {
        Tested::knows(&self.0, id, now)
    }
}

#[test]
fn a_name_kept_as_rows_answers_as_the_contract_does() {
    let seed = seed();
    println!("LEASEHOLD_SEED={seed}");
    for profile in 0..PROFILES.len() {
        if let Err(failure) = run(profile, seed, STEPS_TO_SEE, Rebuilt::default, Planted::Nothing) {
            panic!("{}", failure.report);
        }
    }
}

#[test]
fn random_histories_get_the_answers_of_the_contract() {
    let (seed, steps) = (seed(), from_env("LEASEHOLD_STEPS").map_or(STEPS, |n| n as usize));
    println!("LEASEHOLD_SEED={seed} LEASEHOLD_STEPS={steps}");
    let mut reached = histories(seed, steps);
    // One seed may rarely meet something; ten of them meet everything, unless the histories no longer lead there.
    for more in 1..10 {
        if steps < STEPS || too_rare(&reached, LEAST).is_empty() {
            break;
        }
        let seed = seed.wrapping_add(more);
        println!("too rare so far: {:?}; LEASEHOLD_SEED={seed} as well", too_rare(&reached, LEAST));
        histories(seed, steps).into_iter().for_each(|(what, count)| add(&mut reached, what, count));
    }
    println!("{reached:#?}");
    assert!(
        reached.keys().all(|what| LEAST.iter().any(|(listed, _)| what == listed)),
        "LEAST lacks something"
    );
    assert!(
        steps < STEPS || too_rare(&reached, LEAST).is_empty(),
        "too rare: {:?}",
        too_rare(&reached, LEAST)
    );
}

/// Every planted fault, and the general rule that it breaks, if any.
const FAULTS: &[(Planted, Option<&str>)] = &[
    (Planted::ExpiryIsLate, Some("renewed after its end")),
    (Planted::TryOvertakesTheQueue, Some("overtook the queue")),
    (Planted::RepeatRearms, Some("re-armed")),
    (Planted::ReleaseIgnoresTheNonce, None),
    (Planted::FenceStays, Some("is not above")),
    (Planted::ReaderPassesAWaitingWriter, Some("before its turn")),
    (Planted::SpentIsForgotten, Some("spent id")),
    (Planted::ShortenIgnoresTheCount, None),
    (Planted::WakesTwice, Some("woken twice")),
    (Planted::WakesOnlyTheFirst, Some("was not woken")),
    (Planted::WalksTooFar, None),
    (Planted::OnePermitTooMany, Some("these leases conflict")),
    (Planted::RefreshLosesThePlace, None),
    (Planted::RevokedRenews, None),
    (Planted::RaisedFenceIsForgotten, Some("is not above")),
    (Planted::FencesRiseWithoutBound, None),
    (Planted::RevokeMeetsAnybody, None),
    (Planted::AskingByIdIsCutToo, None),
    (Planted::OnlyTheShownAreCounted, None),
    (Planted::AnyNoteReplaces, None),
    (Planted::RefusalsWriteNotes, None),
];

/// The first failure in some steps of each profile, with so many seeds.
fn first_failure<T: Tested>(tested: impl Fn() -> T + Copy, planted: Planted, seeds: u64) -> Option<Failure> {
    let runs = (1..=seeds).flat_map(|seed| (0..PROFILES.len()).map(move |profile| (seed, profile)));
    let mut runs = runs.map(|(seed, profile)| run(profile, seed, STEPS_TO_SEE, tested, planted));
    runs.find_map(Result::err)
}

#[test]
fn a_contract_with_one_wrong_rule_disagrees() {
    assert!(first_failure(State::new, Planted::Nothing, 1).is_none());
    for (planted, _) in FAULTS {
        let seen = first_failure(State::new, *planted, SEEDS_TO_SEE)
            .unwrap_or_else(|| panic!("{planted:?} was not seen"));
        println!("{planted:?}: {}, step {}: {}", seen.profile, seen.step, seen.what);
    }
}

#[test]
fn forbidden_states_are_seen_without_the_contract() {
    for (planted, broken) in FAULTS {
        let Some(broken) = broken else { continue };
        let seen = first_failure(|| Spec::new(*planted), *planted, SEEDS_TO_SEE);
        let seen = seen.unwrap_or_else(|| panic!("{planted:?} was not seen"));
        println!("{planted:?}: {}, step {}: {}", seen.profile, seen.step, seen.what);
        assert!(seen.what.contains(broken), "{planted:?} was seen as: {}", seen.report);
    }
}
