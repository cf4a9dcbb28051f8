//! Random histories on the functions in the database and on the state machine: the same answers, the same rows.
//!
//! The server decides by its own clock, and its answers tell the reading: the state machine is given exactly that.
//! Time is made to pass by moving everything in the tables back.

use std::collections::HashMap;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release, Renewal, Swept};
use leasehold::backends::postgres::Postgres as Store;
use leasehold::state::{Answer, Now, Op, Row, State};
use leasehold::{Fence, Name};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::history::modes;

use crate::support::{Place, name, place};

/// A step of a history. Claims, leases and tickets are named by a number.
#[derive(Debug, Clone)]
enum Step {
    Acquire { who: usize, queue: bool, repeat: bool, nonce: u64, first: bool },
    Renew { whos: Vec<usize>, ttl: u64, shorten: Option<u64>, fence: u8, owner: bool, change: u8, raise: u8 },
    Release { who: usize, unanswered: bool, nonce: Option<u64>, fence: u8, owner: bool },
    Revoke { on: usize, now: bool, only: Option<usize> },
    Sweep,
    Advance { millis: u64 },
}

const WHO: usize = 10;
const NAMES: usize = 2;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..WHO, prop::bool::weighted(0.7), prop::bool::weighted(0.1), 0..2u64, any::<bool>())
            .prop_map(|(who, queue, repeat, nonce, first)| Step::Acquire { who, queue, repeat, nonce, first }),
        4 => (prop::collection::vec(0..WHO, 1..4), 1..40u64, prop::option::weighted(0.3, 0..2u64), 0..6u8,
              any::<bool>(), 0..8u8, 0..12u8)
            .prop_map(|(whos, ttl, shorten, fence, owner, change, raise)| Step::Renew {
                whos, ttl: ttl * 100, shorten, fence, owner, change, raise }),
        6 => (0..WHO, prop::bool::weighted(0.2), prop::option::weighted(0.2, 0..2u64), 0..6u8,
              prop::bool::weighted(0.2))
            .prop_map(|(who, unanswered, nonce, fence, owner)| Step::Release { who, unanswered, nonce, fence, owner }),
        2 => (0..NAMES, any::<bool>(), prop::option::of(0..WHO))
            .prop_map(|(on, now, only)| Step::Revoke { on, now, only }),
        1 => Just(Step::Sweep),
        3 => (1..3000u64).prop_map(|millis| Step::Advance { millis }),
        1 => Just(Step::Advance { millis: 70_000 }),
    ];
    prop::collection::vec(step, 1..60)
}

/// What two answers must have in common: all but when to look again, which may be more or less exact.
fn text(answer: &leasehold::Result<Answer>) -> String {
    match answer {
        Ok(Answer::Acquired(Attempt::Busy(busy))) => {
            let left = busy.holder_left;
            format!("busy {:?} of {}, {:?} for {left:?}", busy.place, busy.queue_length, busy.owner)
        }
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

struct Run<'a> {
    place: &'a Place,
    store: &'a Store,
    /// A history's names are its own; the tables are shared by all.
    names: Vec<Name>,
    claims: Vec<Claim>,
    fences: [Fence; WHO],
    model: HashMap<Name, State>,
    /// How far the tables were moved back.
    passed: u64,
    /// Leases that were found expired since the last sweep.
    expired: u64,
}

impl Run<'_> {
    /// The reading of the last answer, on the clock of the state machine.
    fn now(&self) -> Now {
        Now { expiry: self.store.clock() + self.passed, wall: self.store.clock() }
    }

    /// None, the right one, or a wrong one.
    fn fence(&self, who: usize, choice: u8) -> Option<Fence> {
        match choice {
            0..3 => None,
            3 => Some(Fence::new(self.fences[who].get() + 1)),
            _ => Some(self.fences[who]),
        }
    }

    fn apply(&mut self, name: &Name, op: Op<'_>) -> leasehold::Result<Answer> {
        let now = self.now();
        let state = self.model.entry(name.clone()).or_default();
        self.expired += state.expired(now);
        state.apply(now, op, &mut Vec::new())
    }

    fn advance(&mut self, millis: u64) {
        self.passed += millis * 1000;
        let by = format!("interval '{millis} ms'");
        // Infinity stays where it is.
        self.place.sql(&format!(
            "BEGIN; UPDATE leasehold.names SET next_expiry = next_expiry - {by}, next_lapse = next_lapse - {by}, \
             next_forget = next_forget - {by}; UPDATE leasehold.shares SET expires = expires - {by}; \
             UPDATE leasehold.tickets SET lapses = lapses - {by}, joined = joined - {by}; \
             UPDATE leasehold.spent SET until = until - {by}; COMMIT"
        ));
    }

    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Advance { millis } => self.advance(*millis),
            Step::Acquire { who, queue, repeat, nonce, first } => {
                let mut claim = self.claims[*who].clone();
                claim.queue = queue.then_some(Duration::from_secs(2));
                (claim.repeat, claim.nonce, claim.first) = (*repeat, *nonce, *first);
                let ours = self.store.try_acquire(&claim).await.map(Answer::Acquired);
                let theirs = self.apply(&claim.name, Op::Acquire(&claim));
                prop_assert_eq!(text(&ours), text(&theirs), "{:?}", step);
                if let Ok(Answer::Acquired(Attempt::Granted(grant))) = ours {
                    self.fences[*who] = grant.fence;
                }
            }
            Step::Renew { whos, ttl, shorten, fence, owner, change, raise } => {
                let renewals: Vec<_> = whos
                    .iter()
                    .map(|who| {
                        let claim = &self.claims[*who];
                        let mut renewal =
                            Renewal::new(claim.name.clone(), claim.id, Duration::from_millis(*ttl));
                        renewal.shorten = *shorten;
                        renewal.fence = self.fence(*who, *fence);
                        renewal.owner = owner.then(|| "o\0".into());
                        renewal.mode = match change {
                            0 | 1 => Some(Mode::Shared),
                            2 => Some(claim.mode),
                            3 => Some(Mode::Permit { limit: 2 }),
                            _ => None,
                        };
                        renewal.raise_fence = match raise {
                            0 | 1 => Some(Fence::new(self.fences[*who].get() + 5)),
                            2 => Some(Fence::new(self.fences[*who].get() + 23 * 3600 * 256_000)),
                            3 => Some(Fence::new(self.fences[*who].get() + 25 * 3600 * 256_000)),
                            4 => Some(Fence::new(u64::MAX)),
                            _ => None,
                        };
                        renewal
                    })
                    .collect();
                let ours = self.store.renew(&renewals).await;
                for (ours, renewal) in ours.into_iter().zip(&renewals) {
                    let theirs = self.apply(&renewal.name, Op::Renew(renewal));
                    prop_assert_eq!(text(&ours.map(Answer::Renewed)), text(&theirs), "{:?}", step);
                }
            }
            Step::Release { who, unanswered, nonce, fence, owner } => {
                let claim = self.claims[*who].clone();
                let mut release = Release::new(claim.name.clone(), claim.id);
                release.unanswered = unanswered.then_some(claim.ttl);
                release.nonce = *nonce;
                release.fence = self.fence(*who, *fence);
                release.owner = owner.then(|| "o\0".into());
                let ours = self.store.release(&release).await.map(Answer::Released);
                let theirs = self.apply(&claim.name, Op::Release(&release));
                prop_assert_eq!(text(&ours), text(&theirs), "{:?}", step);
            }
            Step::Revoke { on, now, only } => {
                let only = only.map(|who| self.fences[who]);
                let name = self.names[*on].clone();
                let ours = self.store.revoke(&name, *now, only).await.map(Answer::Revoked);
                let theirs = self.apply(&name, Op::Revoke { now: *now, only });
                prop_assert_eq!(text(&ours), text(&theirs), "{:?}", step);
            }
            Step::Sweep => {
                let swept = self.store.sweep().await.unwrap();
                let mut expected = Swept::default();
                for name in self.names.clone() {
                    if let Ok(Answer::Swept(part)) = self.apply(&name, Op::Sweep) {
                        expected += part;
                    }
                }
                // It tells of all that was found expired since the last one, whatever verb found it.
                expected.expired = std::mem::take(&mut self.expired);
                expected.counters = swept.counters;
                prop_assert_eq!(swept, expected);
            }
        }
        // Whoever may go in now has been called, which the next verb would do as well.
        let ends = matches!(step, Step::Release { .. } | Step::Revoke { .. } | Step::Sweep);
        if ends && self.model.values().any(|state| state.queue_length() > 0) {
            self.check_rows()?;
        }
        self.look().await
    }

    async fn look(&mut self) -> Result<(), TestCaseError> {
        for name in self.names.clone() {
            let seen = self.store.inspect(&Query::Name(name.clone())).await.unwrap().items.remove(0);
            let now = self.now();
            let state = self.model.entry(name.clone()).or_default();
            let view = state.view(&name, now, None);
            // In the order of their grants.
            prop_assert_eq!(seen.holders, view.holders);
            prop_assert_eq!(seen.waiters, view.waiters);
            prop_assert_eq!(
                (seen.version, seen.last_fence, seen.holder_count, seen.queue_length),
                (view.version, view.last_fence, view.holder_count, view.queue_length)
            );
        }
        Ok(())
    }

    /// An id finds its name while it holds or waits, and not by what is left of it.
    async fn look_by_id(&mut self) -> Result<(), TestCaseError> {
        for claim in self.claims.clone() {
            let known = |run: &Self| {
                run.model.get(&claim.name).is_some_and(|state| state.knows(&claim.id, run.now()))
            };
            let before = known(self);
            let found = self.store.inspect(&Query::LeaseId(claim.id)).await.unwrap().items;
            // What is not found does not tell the time.
            self.store.inspect(&Query::Name(claim.name.clone())).await.unwrap();
            prop_assert!([before, known(self)].contains(&(found.len() == 1)), "{:?}", found);
            prop_assert!(found.iter().all(|item| item.name == claim.name));
        }
        Ok(())
    }

    /// What is in the tables is the state, row by row.
    fn check_rows(&self) -> Result<(), TestCaseError> {
        let mut expected = Vec::new();
        let micros = |at: u64| at - self.passed;
        for (name, state) in &self.model {
            let name = name.stored();
            let (mut holders, mut tickets) = (0, Vec::new());
            for id in state.ids() {
                let own = format!("{name}|{}", id.expose());
                match state.row(&id) {
                    Some(Row::Lease(l)) => {
                        holders += 1;
                        let marks = (l.repeated, l.revoked);
                        expected.push(format!(
                            "lease|{own}|{}|{}|{}|{}|{}|{marks:?}",
                            l.fence.get(),
                            l.ttl,
                            micros(l.expires),
                            l.renewals,
                            l.nonce
                        ));
                    }
                    Some(Row::Ticket(t)) => {
                        let marks = (t.repeated, t.woken);
                        let row =
                            format!("ticket|{own}|{}|{}|{}|{marks:?}", t.ttl, micros(t.lapses), t.nonce);
                        tickets.push((t.arrival, row));
                    }
                    Some(Row::Spent(s)) => {
                        expected.push(format!("spent|{own}|{}|{}", micros(s.until), s.why.as_str()));
                    }
                    _ => {}
                }
            }
            if state.version() > 0 || holders > 0 || !tickets.is_empty() {
                expected.push(format!("name|{name}|{holders}|{}", tickets.len()));
            }
            expected.extend(tickets.into_iter().map(|(_, row)| row));
        }
        let us = |column: &str| format!("(extract(epoch FROM {column}) * 1000000)::bigint");
        let flags = |a: &str, b: &str| format!("format('(%s, %s)', {a}::text, {b}::text)");
        let names: Vec<_> = self.names.iter().map(|name| format!("'{}'", name.stored())).collect();
        let names = names.join(", ");
        let rows = self.place.sql(&format!(
            "SELECT concat_ws('|', 'lease', name, id, fence, ttl, {}, renewals, nonce, {}) FROM leasehold.leases WHERE name IN ({names}) \
             UNION ALL SELECT concat_ws('|', 'ticket', name, id, ttl, {}, nonce, {}) FROM leasehold.tickets WHERE name IN ({names}) \
             UNION ALL SELECT concat_ws('|', 'spent', name, id, {}, why) FROM leasehold.spent WHERE name IN ({names}) \
             UNION ALL SELECT concat_ws('|', 'name', name, holders, waiters) FROM leasehold.names WHERE name IN ({names}) \
                AND (version > 0 OR holders > 0 OR waiters > 0)",
            us("expires"), flags("repeated", "revoked"), us("lapses"), flags("repeated", "woken"), us("until"),
        ));
        let mut rows: Vec<_> = rows.lines().map(str::to_owned).collect();
        rows.sort();
        expected.sort();
        prop_assert_eq!(rows, expected);
        Ok(())
    }
}

async fn run(place: &Place, store: &Store, steps: &[Step], kind: u8) -> Result<(), TestCaseError> {
    let own = leasehold::LeaseId::random();
    let names: Vec<Name> = (0..NAMES).map(|n| name(&format!("{}{n}", own.expose()))).collect();
    let mode = modes(kind);
    let claims = (0..WHO)
        .map(|who| {
            let ttl = Duration::from_millis(500 * (who as u64 + 1));
            // Two on either name.
            let owner = if (who / NAMES).is_multiple_of(2) { "o\0" } else { "o\u{1}" };
            let mut claim = Claim::new(names[who % NAMES].clone(), mode(who), ttl, owner);
            claim.metadata = (who % 3 == 0).then(|| format!("m\0{who}").into());
            claim
        })
        .collect();
    let fences = [Fence::UNFENCED; WHO];
    let mut run = Run { place, store, names, claims, fences, model: HashMap::new(), passed: 0, expired: 0 };
    // Whatever earlier histories have left ends here, and is not counted.
    place.sql("TRUNCATE leasehold.names, leasehold.shares, leasehold.tickets, leasehold.spent");
    store.sweep().await.unwrap();
    for step in steps {
        run.step(step).await?;
    }
    run.check_rows()?;
    run.look_by_id().await
}

#[test]
fn the_functions_answer_as_the_state_machine_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = place();
    let store = runtime.block_on(place.open());
    let cases = std::env::var("LEASEHOLD_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80);
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 100,
        max_shrink_time: 30_000,
        ..Config::default()
    })
    .run(&(steps(), 0..4u8), |(steps, kind)| runtime.block_on(run(&place, &store, &steps, kind)))
    .unwrap();
}

/// Of more than a hundred holders both show the same, by name and by id.
#[test]
fn a_crowd_of_holders_is_shown_as_by_the_state_machine() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = place();
    let store = runtime.block_on(place.open());
    let (on, mut model) = (name("crowd"), State::new());
    // Some end early, and some of those unnoticed: looking settles nothing.
    let ttl = |i: usize| Duration::from_millis(if i % 20 == 19 { 1 } else { 3_600_000 });
    let claims: Vec<Claim> =
        (0..150).map(|i| Claim::new(on.clone(), Mode::Permit { limit: 200 }, ttl(i), "x")).collect();
    runtime.block_on(async {
        let now = || Now { expiry: store.clock(), wall: store.clock() };
        for claim in &claims {
            let ours = store.try_acquire(claim).await.map(Answer::Acquired);
            assert_eq!(text(&ours), text(&model.apply(now(), Op::Acquire(claim), &mut Vec::new())));
        }
        let mut raise = Renewal::new(on.clone(), claims[3].id, Duration::from_secs(3600));
        raise.raise_fence = Some(Fence::new(model.last_fence().get() + 500));
        store.renew(std::slice::from_ref(&raise)).await.remove(0).unwrap();
        model.apply(now(), Op::Renew(&raise), &mut Vec::new()).unwrap();
        let release = Release::new(on.clone(), claims[5].id);
        store.release(&release).await.unwrap();
        model.apply(now(), Op::Release(&release), &mut Vec::new()).unwrap();
        let asked = [0, 3, 98, 104, 105, 106, 107, 130, 148].map(|i: usize| Query::LeaseId(claims[i].id));
        for query in [Query::Name(on.clone())].into_iter().chain(asked) {
            let seen = store.inspect(&query).await.unwrap().items.remove(0);
            let id = if let Query::LeaseId(id) = &query { Some(id) } else { None };
            assert_eq!(seen, model.view(&on, now(), id));
            assert_eq!(seen.holders.len(), 100);
        }
    });
}
