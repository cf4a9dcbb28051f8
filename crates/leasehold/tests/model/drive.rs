//! Drives a store through guided histories of two names, beside the contract: both must give the same answers, views,
//! wake-ups and rows.
//!
//! The store uses the test's clock, so that a call comes exactly when something ends, and a seed repeats a run.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::backend::{Backend, Claim, Query, Release, Renewal};
use leasehold::state::{Answer, Now};
use leasehold::{LeaseId, Name};
use tokio::runtime::Runtime;

use super::history::{Clocks, History, PROFILES, Profile, Rng, Verb};
use super::reach::{LEAST, Reached, add, count, count_verb, too_rare};
use super::spec::{Planted, Spec};
use super::{Id, Said, Seen, differ, from_env, said, seed, seen};

/// Rows are compared after every step. With more rows than this, only after every n-th step.
const MANY_ROWS: usize = 40;
const SELDOM: usize = 12;

/// What only a long queue or a crowd of holders reaches.
const OF_CROWDS: [&str; 5] = [
    "128 woken and more wait",
    "a queue of more than 128",
    "dozens woken at once",
    "more than 100 holders",
    "try_acquire 5: the 129th, behind 128 who may enter",
];

/// How many seeds a run may try to meet everything that it must.
const ROUNDS: u64 = 20;

/// A store under test, and its clock.
pub(crate) trait Store {
    /// Times above this count as this.
    const LONGEST: Duration;
    const CLOCKS: Clocks;
    /// Whether a sweep forgets counters that are no longer needed.
    const FORGETS: bool;

    fn runtime(&self) -> &Runtime;
    fn backend(&self) -> &dyn Backend;

    /// Forgets everything before a new history.
    fn begin(&mut self);
    fn set_clock(&mut self, now: Now);
    /// Called before a verb.
    fn before(&mut self, _: &Verb) {}
    /// Called after a verb, before its answer is compared.
    fn after(&mut self, _: &Verb, _: &Said) {}
    /// Checks that exactly the right waiters were woken since the last call.
    fn check_woken(&mut self, woken: &[(Name, LeaseId)], names: &[Kept<'_>]) -> Result<(), String>;
    /// Checks that the stored rows are what the contract keeps.
    fn check_rows(&mut self, names: &[Kept<'_>]) -> Result<(), String>;
}

/// A name, and what the contract keeps of it.
pub(crate) type Kept<'a> = (&'a Name, &'a Spec);

/// One name's history.
struct Side<'a> {
    name: Name,
    spec: Spec,
    history: History<'a>,
}

struct World<'a, S> {
    store: &'a mut S,
    rng: Rng,
    sides: Vec<Side<'a>>,
    /// Leases that verbs found expired since the last sweep, which reports them.
    expired: u64,
    steps: usize,
    /// What was asked and answered last.
    last: VecDeque<String>,
}

/// A disagreement.
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) step: usize,
    pub(crate) report: String,
}

/// The names of a history: one whose key has to be escaped, and one that begins with it.
fn names() -> [Name; 2] {
    ["a}{b", "a}{b/c%d"].map(|name| Name::new(name).expect("a name"))
}

impl<'a, S: Store> World<'a, S> {
    fn new(store: &'a mut S, profile: usize, seed: u64, history: usize) -> Self {
        store.begin();
        let side = |(at, name): (usize, Name)| {
            let rng = Rng::new(seed.wrapping_add(at as u64), profile, history);
            let mut spec = Spec::new(Planted::Nothing);
            spec.clock_can_be_set_back = S::CLOCKS == Clocks::One;
            Side { history: History::new(&PROFILES[profile], name.clone(), rng, S::CLOCKS), name, spec }
        };
        let mut sides: Vec<Side<'a>> = names().into_iter().enumerate().map(side).collect();
        // Only one name has a long queue.
        sides.truncate(if PROFILES[profile].depth > 0 { 1 } else { 2 });
        let rng = Rng::new(!seed, profile, history);
        World { store, rng, sides, expired: 0, steps: 0, last: VecDeque::new() }
    }

    fn step(&mut self, reached: &mut Reached) -> Result<(), String> {
        self.steps += 1;
        let at = self.rng.below(self.sides.len() as u64) as usize;
        let earlier = self.sides[at].history.now();
        let side = &mut self.sides[at];
        let now = side.history.pass(&side.spec);
        let ends_now = side.spec.ends().contains(&now.expiry);
        let verb = side.history.verb(&side.spec);
        let probes: Vec<LeaseId> = side.history.probes(&verb).into_iter().take(2).collect();
        let (before, rest) = self.sides.split_at_mut(at);
        let (this, after) = rest.split_first_mut().ok_or("no side")?;
        before.iter_mut().chain(after).for_each(|other| other.history.join(&this.history));
        add(reached, "a clock falls", u64::from(now.wall < earlier.wall));
        add(reached, "something ends in this instant", u64::from(ends_now));

        self.store.set_clock(now);
        self.store.before(&verb);
        let woken = match &verb {
            Verb::Renew(first) => self.renew(at, now, first, reached)?,
            Verb::Sweep => self.sweep(now)?,
            verb => self.ask(at, now, verb, reached)?,
        };
        let kept: Vec<Kept<'_>> = self.sides.iter().map(|side| (&side.name, &side.spec)).collect();
        self.store.check_woken(&woken, &kept).map_err(|what| format!("wake-ups: {what}"))?;
        let own = |side: &Side<'_>| if side.name == self.sides[at].name { &probes[..] } else { &[] };
        let looks = join_all(self.sides.iter().map(|side| look(self.store.backend(), &side.name, own(side))));
        for (side, seen) in self.sides.iter().zip(self.store.runtime().block_on(looks)) {
            let contract = Seen { at_rest: false, ..side.spec.see(now, own(side)) };
            if seen != contract {
                return Err(differ("the views", &seen, &contract));
            }
        }
        let rows: usize = self.sides.iter().map(|side| side.spec.rows().len()).sum();
        if rows <= MANY_ROWS || self.steps.is_multiple_of(SELDOM) {
            self.store.check_rows(&kept).map_err(|what| format!("rows: {what}"))?;
        }
        let side = &self.sides[at];
        let woken: Vec<LeaseId> = woken.into_iter().map(|(_, id)| id).collect();
        count(reached, &side.spec.see(now, &probes), &woken, &side.spec);
        let both = self.sides.len() > 1 && self.sides.iter().all(|side| !side.spec.is_at_rest());
        add(reached, "two names in use", u64::from(both));
        Ok(())
    }

    fn note(&mut self, now: Now, verb: &Verb, said: &Said) {
        self.last.push_back(format!("  {} (wall {}) {verb}\n      {said:?}", now.expiry, now.wall));
        if self.last.len() > 30 {
            self.last.pop_front();
        }
    }

    /// Asks the store, and the contract.
    fn ask(
        &mut self,
        at: usize,
        now: Now,
        verb: &Verb,
        reached: &mut Reached,
    ) -> Result<Vec<(Name, LeaseId)>, String> {
        let name = self.sides[at].name.clone();
        let backend = self.store.backend();
        let answer = match verb {
            Verb::Acquire(claim) => {
                self.store.runtime().block_on(backend.try_acquire(claim)).map(Answer::Acquired)
            }
            Verb::Release(release) => {
                self.store.runtime().block_on(backend.release(release)).map(Answer::Released)
            }
            Verb::Revoke { now, only } => {
                self.store.runtime().block_on(backend.revoke(&name, *now, *only)).map(Answer::Revoked)
            }
            _ => return Ok(Vec::new()),
        };
        let Some(op) = verb.op() else { return Ok(Vec::new()) };
        let said = said(answer, op);
        self.compare(at, now, verb, said, reached)
    }

    /// Renews one lease, or several of either name in one call.
    fn renew(
        &mut self,
        at: usize,
        now: Now,
        first: &Renewal,
        reached: &mut Reached,
    ) -> Result<Vec<(Name, LeaseId)>, String> {
        let mut batch = vec![(at, first.clone())];
        while batch.len() < 4 && self.rng.chance(300) {
            let at = self.rng.below(self.sides.len() as u64) as usize;
            let Side { history, spec, .. } = &mut self.sides[at];
            batch.push((at, history.renewal(spec)));
        }
        let renewals: Vec<Renewal> = batch.iter().map(|(_, renewal)| renewal.clone()).collect();
        add(reached, "a batch of renewals", u64::from(renewals.len() > 1));
        let answers = self.store.runtime().block_on(self.store.backend().renew(&renewals));
        if answers.len() != renewals.len() {
            return Err(format!("{} answers to {} renewals", answers.len(), renewals.len()));
        }
        let mut woken = Vec::new();
        for ((at, renewal), answer) in batch.into_iter().zip(answers) {
            let verb = Verb::Renew(renewal);
            let Some(op) = verb.op() else { continue };
            let said = said(answer.map(Answer::Renewed), op);
            woken.extend(self.compare(at, now, &verb, said, reached)?);
        }
        Ok(woken)
    }

    fn compare(
        &mut self,
        at: usize,
        now: Now,
        verb: &Verb,
        said: Said,
        reached: &mut Reached,
    ) -> Result<Vec<(Name, LeaseId)>, String> {
        self.note(now, verb, &said);
        self.store.after(verb, &said);
        let side = &mut self.sides[at];
        self.expired += side.spec.leases.iter().filter(|l| l.expires <= now.expiry).count() as u64;
        let bounded = bounded(verb, S::LONGEST);
        let Some(op) = bounded.op() else { return Ok(Vec::new()) };
        let (contract, woken) = side.spec.apply(now, op);
        if !said.agrees_with(&contract) {
            return Err(differ("the answers", &said, &contract));
        }
        count_verb(reached, verb, &said);
        Ok(woken.into_iter().map(|id| (side.name.clone(), id)).collect())
    }

    /// A sweep covers all names. It reports all leases found expired since the last one, whichever verb found them.
    fn sweep(&mut self, now: Now) -> Result<Vec<(Name, LeaseId)>, String> {
        let swept = self.store.runtime().block_on(self.store.backend().sweep());
        let said = said(swept.map(Answer::Swept), leasehold::state::Op::Sweep);
        self.note(now, &Verb::Sweep, &said);
        let mut woken = Vec::new();
        let (mut expired, mut tickets, mut counters, mut held, mut waiting) =
            (std::mem::take(&mut self.expired), 0, 0, 0, 0);
        for side in &mut self.sides {
            let (contract, ids) = side.spec.apply(now, leasehold::state::Op::Sweep);
            woken.extend(ids.into_iter().map(|id| (side.name.clone(), id)));
            if let Said::Swept { expired: e, tickets: t, held: h, waiting: w, .. } = contract {
                (expired, tickets, held, waiting) = (expired + e, tickets + t, held + h, waiting + w);
            }
            counters += u64::from(S::FORGETS && side.spec.forget(now.wall));
        }
        // A name that was never granted has no counter, and may have a row all the same, which is forgotten too.
        if let Said::Swept { counters: told, .. } = said
            && S::FORGETS
        {
            counters = counters.max(told);
        }
        let contract = Said::Swept { expired, tickets, counters, held, waiting };
        if said == contract { Ok(woken) } else { Err(differ("the answers", &said, &contract)) }
    }

    fn report(&self, what: &str, profile: &Profile, seed: u64, history: usize, step: usize) -> String {
        let last: Vec<&str> = self.last.iter().map(String::as_str).collect();
        let name = profile.name;
        format!(
            "{what}\n\nLEASEHOLD_SEED={seed} repeats it: history {history} of \"{name}\", step {step}; the last steps:\n{}",
            last.join("\n")
        )
    }
}

/// What there is to see of a name, and by these ids.
async fn look(backend: &dyn Backend, name: &Name, probes: &[LeaseId]) -> Seen {
    let queries = probes.iter().map(|id| Query::LeaseId(*id)).chain([Query::Name(name.clone())]);
    let pages = join_all(queries.map(async |query| backend.inspect(&query).await.expect("a look"))).await;
    let mut found: Vec<_> = pages.into_iter().map(|page| page.items.into_iter().next()).collect();
    let mut all = seen(found.pop().flatten().expect("the name that was asked for"));
    let cut = all.holder_count as usize > all.holders.len();
    for (id, found) in probes.iter().zip(found) {
        if found.is_some() {
            all.known.push(Id(*id));
        }
        if cut {
            // An id that is not known shows nothing: then the name does.
            let holders = found.map(|info| info.holders.into_iter().map(|h| Id(h.id)).collect());
            all.asked.push(holders.unwrap_or_else(|| all.holders.iter().map(|h| h.id).collect()));
        }
    }
    all
}

/// The verb, for a store that cuts times at this length.
fn bounded(verb: &Verb, longest: Duration) -> Verb {
    let mut verb = verb.clone();
    match &mut verb {
        Verb::Acquire(Claim { ttl, queue, .. }) => {
            *ttl = longest.min(*ttl);
            *queue = queue.map(|queue| queue.min(longest));
        }
        Verb::Renew(Renewal { ttl, .. }) => *ttl = longest.min(*ttl),
        Verb::Release(Release { unanswered, .. }) => *unanswered = unanswered.map(|ttl| ttl.min(longest)),
        _ => {}
    }
    verb
}

/// Runs some steps of one profile.
fn run(store: &mut impl Store, profile: usize, seed: u64, steps: usize) -> Result<Reached, Failure> {
    let mut reached = Reached::new();
    let mut done = 0;
    for history in 0.. {
        if done >= steps {
            break;
        }
        let length = PROFILES[profile].length.min(steps - done);
        let mut world = World::new(store, profile, seed, history);
        for step in 0..length {
            if let Err(what) = world.step(&mut reached) {
                let report = world.report(&what, &PROFILES[profile], seed, history, step);
                return Err(Failure { what, step: done + step + 1, report });
            }
        }
        for side in &world.sides {
            side.spec.reached.iter().for_each(|(what, count)| add(&mut reached, what, *count));
        }
        done += length;
    }
    Ok(reached)
}

/// How often each thing must have happened with this store: once, of all that the contract has.
fn least<S: Store>() -> Vec<(&'static str, u64)> {
    // No caller keeps a place; a single clock is set back, of two clocks one falls.
    let of_the_machine = ["a place is kept", "steps", "the wall clock falls"];
    let of_all = LEAST.iter().map(|(what, _)| *what).filter(|what| !of_the_machine.contains(what));
    let of_stores = ["a batch of renewals", "a clock falls", "two names in use"];
    of_all.chain(of_stores).map(|what| (what, 1)).collect()
}

/// Runs a store beside the contract for this many steps, or for `LEASEHOLD_STEPS`, and goes on with other seeds until
/// every rule was reached.
pub(crate) fn agrees(store: &mut impl Store, steps: usize) {
    let agreed = try_agree(store, seed(), from_env("LEASEHOLD_STEPS").map_or(steps, |n| n as usize));
    if let Err(report) = agreed {
        panic!("{report}");
    }
}

fn try_agree<S: Store>(store: &mut S, seed: u64, steps: usize) -> Result<(), String> {
    println!("LEASEHOLD_SEED={seed} LEASEHOLD_STEPS={steps}");
    let shares: usize = PROFILES.iter().map(|p| p.share).sum();
    let least = least::<S>();
    let mut reached = Reached::new();
    for round in 0..ROUNDS {
        let rare = too_rare(&reached, &least);
        let crowds = round == 0 || rare.iter().any(|(what, _)| OF_CROWDS.contains(what));
        for (at, profile) in PROFILES.iter().enumerate().filter(|(_, p)| crowds || p.depth == 0) {
            // A queue of 128 takes some steps to form.
            let enough = if profile.depth > 0 { 3 * profile.depth } else { 0 };
            let steps = (steps * profile.share / shares).max(enough);
            let part = run(store, at, seed.wrapping_add(round), steps).map_err(|failure| failure.report)?;
            part.into_iter().for_each(|(what, count)| add(&mut reached, what, count));
        }
        let rare = too_rare(&reached, &least);
        if rare.is_empty() {
            println!("{reached:#?}");
            return Ok(());
        }
        println!(
            "never reached so far: {:?}; one seed more",
            rare.iter().map(|(what, _)| what).collect::<Vec<_>>()
        );
    }
    Err(format!("never reached: {:?}", too_rare(&reached, &least)))
}

/// Chooses the planted faults of this run: all of them if the steps are set, as by `make model`; otherwise every
/// fifth, beginning with another one in every run.
pub(crate) fn some_of<T>(faults: &[T]) -> impl Iterator<Item = &T> {
    let all = from_env("LEASEHOLD_STEPS").is_some();
    let (first, step) = if all { (0, 1) } else { ((seed() % 5) as usize, 5) };
    faults.iter().skip(first).step_by(step)
}

/// What reveals a planted fault in a store: most are seen soon, some only in a crowd, some only after many steps.
pub(crate) fn first_failure(store: &mut impl Store, steps: usize) -> Option<Failure> {
    let all = || PROFILES.iter().enumerate();
    let soon = all().filter(|(_, profile)| profile.depth == 0).map(|(at, _)| (at, 1, 150));
    let crowds = all().filter(|(_, profile)| profile.depth > 0).map(|(at, _)| (at, 1, steps));
    let late = all().flat_map(|(at, _)| (2..6).map(move |seed| (at, seed, steps)));
    soon.chain(crowds).chain(late).find_map(|(at, seed, steps)| run(store, at, seed, steps).err())
}
