//! The state machine of one name against `docs/contract.md`.
//!
//! `spec.rs` is the contract as naive code, written without a look at `state.rs`. Random histories run on
//! both, every answer and everything visible must be the same after each step, and what must hold whatever
//! the rules say is checked on its own (`watch.rs`).
//!
//! `LEASEHOLD_SEED` repeats a run, `LEASEHOLD_STEPS` makes it longer.

#[path = "model/history.rs"]
mod history;
#[path = "model/spec.rs"]
mod spec;
#[path = "model/watch.rs"]
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use leasehold::backend::{Attempt, Busy, Claim, Grant, Released, Renewed};
use leasehold::state::{Answer, Now, Op, State};
use leasehold::{ErrorKind, Fence, Gone, LeaseId, Mode, Name};

use history::{History, PROFILES, Profile, Rng, Verb};
use spec::{Planted, Spec};
use watch::Watch;

/// Steps of a run in all, unless `LEASEHOLD_STEPS` says otherwise.
const STEPS: usize = 160_000;
/// Within so many steps of one of the profiles a planted fault must have been seen.
const STEPS_TO_SEE: usize = 2_000;

// What is compared.

/// A lease id that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Id(LeaseId);

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0.expose().trim_start_matches('0'))
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
enum Said {
    Granted(Grant),
    /// `holders`: owner and time left of the lease it speaks of; several if the contract leaves the choice.
    Busy {
        place: Option<u64>,
        queue_length: u64,
        holders: Vec<(Arc<str>, Duration)>,
    },
    Held(Grant),
    Gone(Gone),
    Done,
    Revoked {
        leases: u64,
    },
    Swept {
        expired: u64,
        tickets: u64,
        counters: u64,
        held: u64,
        waiting: u64,
    },
    Kept(bool),
    Error(ErrorKind),
    /// What no contract allows.
    Odd(&'static str),
    /// Nothing was asked.
    Nothing,
}

impl Said {
    fn agrees_with(&self, spec: &Said) -> bool {
        match (self, spec) {
            (
                Said::Busy { place, queue_length, holders },
                Said::Busy { place: other_place, queue_length: other_length, holders: tied },
            ) => {
                place == other_place
                    && queue_length == other_length
                    && holders.is_empty() == tied.is_empty()
                    && holders.iter().all(|h| tied.contains(h))
            }
            _ => self == spec,
        }
    }
}

/// Everything visible.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    version: u64,
    last_fence: Fence,
    holders: Vec<HolderSeen>,
    holder_count: u64,
    /// The holders shown to one who asks by each of these ids, where not all are shown.
    asked: Vec<Vec<Id>>,
    waiters: Vec<WaiterSeen>,
    queue_length: u64,
    /// Those of the ids asked about that hold a lease or wait.
    known: Vec<Id>,
    at_rest: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct HolderSeen {
    id: Id,
    owner: Arc<str>,
    metadata: Option<Arc<str>>,
    grant: Grant,
    revoked: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct WaiterSeen {
    id: Id,
    owner: Arc<str>,
    mode: Mode,
    waited: Duration,
}

/// Something that does what the contract says, or should.
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
        let said = match (State::apply(self, now, op, &mut woken), op) {
            (Err(error), _) => Said::Error(error.kind()),
            (Ok(Answer::Acquired(Attempt::Granted(grant))), Op::Acquire(_)) => Said::Granted(grant),
            (Ok(Answer::Acquired(Attempt::Gone(why))), Op::Acquire(_)) => Said::Gone(why),
            (Ok(Answer::Acquired(Attempt::Busy(busy))), Op::Acquire(claim)) => said_busy(busy, claim.queue),
            (Ok(Answer::Renewed(Renewed::Held(grant))), Op::Renew(_)) => Said::Held(grant),
            (Ok(Answer::Renewed(Renewed::Gone(why))), Op::Renew(_)) => Said::Gone(why),
            (Ok(Answer::Released(Released::Done)), Op::Release(_)) => Said::Done,
            (Ok(Answer::Released(Released::Gone(why))), Op::Release(_)) => Said::Gone(why),
            (Ok(Answer::Revoked(revoked)), Op::Revoke { .. }) => Said::Revoked { leases: revoked.leases },
            (Ok(Answer::Swept(s)), Op::Sweep) => Said::Swept {
                expired: s.expired,
                tickets: s.tickets,
                counters: s.counters,
                held: s.held,
                waiting: s.waiting,
            },
            (Ok(Answer::Kept(kept)), Op::Keep(_)) => Said::Kept(kept),
            (answer, op) => panic!("{op:?} was answered with {answer:?}"),
        };
        (said, woken)
    }

    fn see(&self, now: Now, probes: &[LeaseId]) -> Seen {
        let view = self.view(&name(), now, None);
        assert_eq!(view.last_fence, self.last_fence());
        let asked = |id| self.view(&name(), now, Some(id)).holders.into_iter().map(|h| Id(h.id)).collect();
        let cut = view.holder_count as usize > view.holders.len();
        Seen {
            version: view.version,
            last_fence: view.last_fence,
            holders: view
                .holders
                .into_iter()
                .map(|h| HolderSeen {
                    id: Id(h.id),
                    owner: h.owner,
                    metadata: h.metadata,
                    grant: h.grant,
                    revoked: h.revoked,
                })
                .collect(),
            holder_count: view.holder_count,
            asked: probes.iter().filter(|_| cut).map(asked).collect(),
            waiters: view
                .waiters
                .into_iter()
                .map(|w| WaiterSeen { id: Id(w.id), owner: w.owner, mode: w.mode, waited: w.waited })
                .collect(),
            queue_length: view.queue_length,
            known: probes.iter().filter(|id| State::knows(self, id, now)).copied().map(Id).collect(),
            at_rest: self.is_at_rest(),
        }
    }

    fn knows(&self, id: &LeaseId, now: Now) -> bool {
        State::knows(self, id, now)
    }
}

fn said_busy(busy: Busy, queue: Option<Duration>) -> Said {
    // When to look again is the store's business, as long as it says so, and in time to keep the place.
    let Some(retry_in) = busy.retry_in else {
        return Said::Odd("busy, and not when to look again");
    };
    if queue.is_some_and(|ticket| retry_in > Duration::from_micros(spec::micros(ticket).div_ceil(3))) {
        return Said::Odd("to look again after more than a third of the ticket's time");
    }
    if busy.owner.is_some() != busy.holder_left.is_some() {
        return Said::Odd("a holder with half of what is known of it");
    }
    let holders = busy.owner.into_iter().zip(busy.holder_left).collect();
    Said::Busy { place: busy.place, queue_length: busy.queue_length, holders }
}

// Running.

/// How often what happened.
type Reached = BTreeMap<&'static str, u64>;

fn add(reached: &mut Reached, what: &'static str, count: u64) {
    *reached.entry(what).or_default() += count;
}

/// A disagreement, or something that must never be.
struct Failure {
    what: String,
    profile: &'static str,
    step: usize,
    report: String,
}

/// Runs histories of one profile on both.
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
            history: History::new(&PROFILES[profile], name(), rng),
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

/// One step of a history: when, what was asked of the tested side, its answer, and whom it woke.
struct Step {
    now: Now,
    verb: Verb,
    said: Said,
    woken: Vec<LeaseId>,
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
        // What has ended since the last verb is the next one's to settle, and whom that wakes its to show.
        let settled = self.spec.ends().iter().all(|end| *end > now.expiry);
        if settled { self.keep(now, &probes, reached) } else { Ok(()) }
    }

    /// Now and then the store keeps a place, or tries to keep what is no place.
    fn keep(&mut self, now: Now, probes: &[LeaseId], reached: &mut Reached) -> Result<(), String> {
        for id in probes.iter().take((now.expiry % 3) as usize) {
            let nonce = self.spec.tickets.iter().find(|t| t.id == *id).map_or(1, |t| t.nonce);
            let ticket = Duration::from_micros(now.expiry % 5_000_000);
            let mut claim = Claim::new(name(), Mode::Exclusive, ticket, "ann").queued(ticket);
            (claim.id, claim.nonce) = (*id, if now.expiry.is_multiple_of(11) { nonce + 1 } else { nonce });
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

fn ids(of: &[LeaseId]) -> Vec<Id> {
    of.iter().copied().map(Id).collect()
}

fn differ(what: &str, tested: &dyn fmt::Debug, spec: &dyn fmt::Debug) -> String {
    format!("{what} differ\nhere:     {tested:?}\ncontract: {spec:?}")
}

fn count(reached: &mut Reached, after: &Seen, woken: &[LeaseId], spec: &Spec) {
    let called = spec.tickets.iter().filter(|t| t.woken).count();
    let mode = after.holders.first().map(|h| h.grant.mode);
    let permits = Mode::Permit { limit: after.holder_count as u32 };
    add(reached, "steps", 1);
    add(reached, "woken", woken.len() as u64);
    add(reached, "several woken at once", u64::from(woken.len() > 1));
    add(reached, "dozens woken at once", u64::from(woken.len() > 24));
    add(reached, "128 woken and more wait", u64::from(called == 128 && spec.tickets.len() > 128));
    add(reached, "a queue of more than 128", u64::from(after.queue_length > 128));
    add(reached, "ten readers at once", u64::from(mode == Some(Mode::Shared) && after.holders.len() >= 10));
    add(reached, "more than 100 holders", u64::from(after.holder_count > 100));
    add(reached, "all permits taken", u64::from(mode == Some(permits)));
    add(reached, "at rest", u64::from(after.at_rest));
}

// The tests.

/// How often each thing must have happened in a run: what was never reached was never tested.
const LEAST: &[(&str, u64)] = &[
    ("a place is kept", 1000),
    ("128 woken and more wait", 20),
    ("a queue of more than 128", 500),
    ("all permits taken", 3000),
    ("at rest", 500),
    ("dozens woken at once", 2),
    ("more than 100 holders", 500),
    ("release 1: superseded", 200),
    ("release 2: done", 2000),
    ("release 2: other fence", 100),
    ("release 2: other owner", 100),
    ("release 2: spent", 500),
    ("release 3: a fence", 100),
    ("release 3: done", 300),
    ("release 3: other owner", 10),
    ("release 3: spent", 100),
    ("release 4: becomes spent", 500),
    ("release 4: expired", 300),
    ("release 4: not found", 3000),
    ("release 4: spent", 1000),
    ("renew 1: expired", 300),
    ("renew 1: not found", 2000),
    ("renew 1: spent", 500),
    ("renew 2: other fence", 100),
    ("renew 2: other owner", 100),
    ("renew 3: revoked", 100),
    ("renew 4: above the limit", 30),
    ("renew 4: superseded", 50),
    ("renew 5: mismatch", 200),
    ("renew 6: renewed meanwhile", 100),
    ("renew 7: downgraded", 100),
    ("renew 7: fence raised", 200),
    ("renew 7: renewed", 2000),
    ("renew 7: shortened", 500),
    ("revoke: another holds it", 30),
    ("revoke: ended", 100),
    ("revoke: marked", 100),
    ("revoke: one of several", 30),
    ("settle: lease dropped", 5000),
    ("settle: repeated lease spent", 500),
    ("settle: repeated ticket spent", 500),
    ("settle: spent forgotten", 3000),
    ("settle: ticket dropped", 3000),
    ("several woken at once", 100),
    ("something ends in this instant", 1000),
    ("steps", 100_000),
    ("ten readers at once", 2000),
    ("the wall clock falls", 300),
    ("try_acquire 1: spent", 3000),
    ("try_acquire 2: mismatch", 500),
    ("try_acquire 3: superseded", 300),
    ("try_acquire 3: the same grant", 3000),
    ("try_acquire 4: other mode", 100),
    ("try_acquire 4: superseded", 500),
    ("try_acquire 5: granted as the last of the queue", 5000),
    ("try_acquire 5: granted by its ticket", 1000),
    ("try_acquire 5: granted past an empty queue", 2000),
    ("try_acquire 5: overflow", 100),
    ("try_acquire 6: busy, no ticket", 3000),
    ("try_acquire 6: busy, queued", 5000),
    ("try_acquire 6: busy, the ticket stays", 500),
    ("try_acquire 6: joins", 5000),
    ("try_acquire 6: keeps its place", 2000),
    ("woken", 2000),
];

fn from_env(var: &str) -> Option<u64> {
    std::env::var(var).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{var} must be a number")))
}

fn seed() -> u64 {
    from_env("LEASEHOLD_SEED").unwrap_or_else(|| RandomState::new().hash_one("seed"))
}

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

/// What happened less often than it must.
fn too_rare(reached: &Reached) -> Vec<(&'static str, u64)> {
    let count = |what| reached.get(what).copied().unwrap_or(0);
    LEAST.iter().filter(|(what, least)| count(what) < *least).map(|(what, _)| (*what, count(what))).collect()
}

#[test]
fn random_histories_get_the_answers_of_the_contract() {
    let (seed, steps) = (seed(), from_env("LEASEHOLD_STEPS").map_or(STEPS, |n| n as usize));
    println!("LEASEHOLD_SEED={seed} LEASEHOLD_STEPS={steps}");
    let mut reached = histories(seed, steps);
    // One seed may meet something seldom; ten of them meet everything, unless the histories no longer lead there.
    for more in 1..10 {
        if steps < STEPS || too_rare(&reached).is_empty() {
            break;
        }
        let seed = seed.wrapping_add(more);
        println!("too rare so far: {:?}; LEASEHOLD_SEED={seed} as well", too_rare(&reached));
        histories(seed, steps).into_iter().for_each(|(what, count)| add(&mut reached, what, count));
    }
    println!("{reached:#?}");
    assert!(
        reached.keys().all(|what| LEAST.iter().any(|(listed, _)| what == listed)),
        "LEAST lacks something"
    );
    assert!(steps < STEPS || too_rare(&reached).is_empty(), "too rare: {:?}", too_rare(&reached));
}

/// Every planted fault, and what is broken by it whatever the contract says, if anything.
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
];

/// The first failure in some steps of each profile.
fn first_failure<T: Tested>(tested: impl Fn() -> T + Copy, planted: Planted) -> Option<Failure> {
    (0..PROFILES.len()).find_map(|profile| run(profile, 1, STEPS_TO_SEE, tested, planted).err())
}

#[test]
fn a_contract_with_one_wrong_rule_disagrees() {
    assert!(first_failure(State::new, Planted::Nothing).is_none());
    for (planted, _) in FAULTS {
        let seen = first_failure(State::new, *planted).unwrap_or_else(|| panic!("{planted:?} was not seen"));
        println!("{planted:?}: {}, step {}: {}", seen.profile, seen.step, seen.what);
    }
}

#[test]
fn what_must_never_be_is_seen_without_the_contract() {
    for (planted, broken) in FAULTS {
        let Some(broken) = broken else { continue };
        let seen = first_failure(|| Spec::new(*planted), *planted);
        let seen = seen.unwrap_or_else(|| panic!("{planted:?} was not seen"));
        println!("{planted:?}: {}, step {}: {}", seen.profile, seen.step, seen.what);
        assert!(seen.what.contains(broken), "{planted:?} was seen as: {}", seen.report);
    }
}
