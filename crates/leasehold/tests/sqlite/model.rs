//! Guided histories on the store and on the contract: both give the same answers, views, wake-ups and rows. And a file
//! that loses what is written to it, which the test must notice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::backend::{Attempt, Backend, Claim, Gone, Release};
use leasehold::backends::sqlite::Sqlite;
use leasehold::state::{Answer, Now, Op, Row, State};
use leasehold::{LeaseId, Name};
use tokio::runtime::Runtime;

use crate::support::{HandClock, Place, name, place};

#[path = "../model/mod.rs"]
mod contract;

use contract::Said;
use contract::drive::{self, Kept, Store};
use contract::history::{Clocks, Verb};

/// Steps of a run, and in how many steps of each profile the test must notice a fault of the file.
const STEPS: usize = 2_500;
const STEPS_TO_SEE: usize = 400;

/// A trigger in the file that loses something.
type Planted = (&'static str, &'static str);

struct File {
    runtime: Runtime,
    planted: Option<Planted>,
    clock: Arc<HandClock>,
    place: Place,
    store: Sqlite,
    /// The waiters: claims whose last attempt has joined the queue or kept a place.
    claims: HashMap<LeaseId, Claim>,
}

impl File {
    fn start(planted: Option<Planted>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (clock, place) = (HandClock::new(), place());
        let store = runtime.block_on(open(&clock, &place, planted));
        File { runtime, planted, clock, place, store, claims: HashMap::new() }
    }
}

async fn open(clock: &Arc<HandClock>, place: &Place, planted: Option<Planted>) -> Sqlite {
    // The store never looks by itself: the contract would have to know when.
    let store = Sqlite::builder(&place.path).clock(Arc::clone(clock) as _).look_every(Duration::MAX).open();
    let store = store.await.unwrap();
    if let Some((_, trigger)) = planted {
        rusqlite::Connection::open(&place.path).unwrap().execute_batch(trigger).unwrap();
    }
    store
}

/// Times and nonces as the file stores them.
fn time(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

impl Store for File {
    const LONGEST: Duration = Duration::MAX;
    const CLOCKS: Clocks = Clocks::Two;
    const FORGETS: bool = true;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn backend(&self) -> &dyn Backend {
        &self.store
    }

    fn begin(&mut self) {
        (self.clock, self.place) = (HandClock::new(), place());
        self.store = self.runtime.block_on(open(&self.clock, &self.place, self.planted));
        self.claims.clear();
    }

    fn set_clock(&mut self, now: Now) {
        self.clock.set(now.expiry, now.wall);
    }

    fn after(&mut self, verb: &Verb, said: &Said) {
        let Verb::Acquire(claim) = verb else { return };
        self.claims.remove(&claim.id);
        if matches!(said, Said::Busy { .. }) && claim.queue.is_some() {
            self.claims.insert(claim.id, claim.clone());
        }
    }

    /// The wait of a woken claim ends at once. Other waits are not tested here: the store keeps the place of a claim
    /// whose wait is pending, which the contract leaves to the store; and the rows show which waiters were woken.
    fn check_woken(&mut self, woken: &[(Name, LeaseId)], _: &[Kept<'_>]) -> Result<(), String> {
        for (_, id) in woken {
            let Some(claim) = self.claims.get(id) else { continue };
            let wait = async { self.store.wait(claim).now_or_never() };
            if self.runtime.block_on(wait).is_none() {
                return Err(format!("{id:?} was to be woken, and waits"));
            }
        }
        Ok(())
    }

    fn check_rows(&mut self, names: &[Kept<'_>]) -> Result<(), String> {
        let mut expected = Vec::new();
        for (name, spec) in names {
            let (stored, mut order) = (name.stored(), 0);
            for (id, row) in spec.rows() {
                let own = format!("{stored}|{}", id.expose());
                expected.push(match row {
                    Row::Lease(l) => format!(
                        "lease|{own}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
                        l.mode,
                        l.fence.get(),
                        l.granted.get(),
                        time(l.ttl),
                        time(l.expires),
                        l.acquired_wall,
                        l.renewals,
                        l.nonce.cast_signed(),
                        u8::from(l.repeated),
                        u8::from(l.revoked)
                    ),
                    Row::Ticket(t) => {
                        order += 1;
                        format!(
                            "ticket|{own}|{order}|{}|{}|{}|{}|{}|{}|{}",
                            t.mode,
                            time(t.ttl),
                            time(t.lapses),
                            t.joined,
                            t.nonce.cast_signed(),
                            u8::from(t.repeated),
                            u8::from(t.woken)
                        )
                    }
                    Row::Spent(s) => format!("spent|{own}|{}|{}", time(s.until), s.why.as_str()),
                    other => return Err(format!("{other:?}")),
                });
            }
            if spec.version > 0 {
                expected.push(format!("name|{stored}|{}|{}", spec.last_fence, spec.version));
            }
        }
        let mode = "iif(permits IS NULL, mode, 'permit of ' || permits)";
        let db = rusqlite::Connection::open(&self.place.path).unwrap();
        let sql = format!(
            "SELECT concat_ws('|', 'lease', name, id, {mode}, fence, granted_fence, ttl_us, expires_us, granted_at_us, \
                renewals, nonce, repeated, revoked) FROM leases \
             UNION ALL SELECT concat_ws('|', 'ticket', name, id, row_number() OVER (PARTITION BY name ORDER BY arrival), \
                {mode}, ttl_us, lapses_us, joined_us, nonce, repeated, woken) FROM places \
             UNION ALL SELECT concat_ws('|', 'spent', name, id, until_us, why) FROM spent \
             UNION ALL SELECT concat_ws('|', 'name', name, fence, version) FROM names WHERE version > 0"
        );
        let mut statement = db.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        let mut rows: Vec<String> = rows.map(Result::unwrap).collect();
        rows.sort();
        expected.sort();
        if rows == expected { Ok(()) } else { Err(format!("stored:   {rows:#?}\ncontract: {expected:#?}")) }
    }
}

#[test]
fn the_store_answers_and_keeps_as_the_contract_says() {
    drive::agrees(&mut File::start(None), STEPS);
}

/// What a file may lose.
const FAULTS: &[Planted] = &[
    (
        "the nonce of a lease",
        "CREATE TRIGGER t AFTER INSERT ON leases BEGIN UPDATE leases SET nonce = 0 WHERE id = new.id; END",
    ),
    (
        "that a lease was repeated",
        "CREATE TRIGGER t AFTER INSERT ON leases BEGIN UPDATE leases SET repeated = 0 WHERE id = new.id; END",
    ),
    (
        "the order of the queue",
        "CREATE TRIGGER t AFTER INSERT ON tickets BEGIN UPDATE tickets SET arrival = -new.arrival WHERE id = new.id; END",
    ),
    (
        "how long an id is spent",
        "CREATE TRIGGER t AFTER INSERT ON spent BEGIN UPDATE spent SET until_us = until_us - 1 WHERE id = new.id; END",
    ),
    (
        "the fence",
        "CREATE TRIGGER t AFTER INSERT ON names BEGIN UPDATE names SET fence = fence - 1 WHERE name = new.name; END",
    ),
];

#[test]
fn a_file_that_does_not_keep_something_is_seen() {
    for fault in FAULTS {
        let seen = drive::first_failure(&mut File::start(Some(*fault)), STEPS_TO_SEE);
        let seen = seen.unwrap_or_else(|| panic!("{} was not missed", fault.0));
        println!("{}: step {}: {}", fault.0, seen.step, seen.what.lines().next().unwrap_or_default());
    }
}

#[test]
fn a_state_taken_apart_and_put_together_is_the_same() {
    // `Gone` is part of what is kept.
    let now = Now { expiry: 5, wall: 5 };
    let mut state = State::new();
    let claims: Vec<_> = (0..4).map(|_| crate::support::claim("x", Duration::from_secs(1))).collect();
    for claim in &claims {
        let claim = claim.clone().queued(Duration::from_secs(1));
        state.apply(now, Op::Acquire(&claim), &mut Vec::new()).unwrap();
    }
    let mut release = Release::new(name("x"), claims[1].id);
    release.unanswered = Some(Duration::from_secs(1));
    state.apply(now, Op::Release(&release), &mut Vec::new()).unwrap();
    let rows: Vec<_> = state.ids().map(|id| (id, state.row(&id).unwrap())).collect();
    assert_eq!(rows.len(), 4);
    let mut again = State::from_rows(state.last_fence(), state.version(), rows);
    assert_eq!(again.view(&name("x"), now, None), state.view(&name("x"), now, None));
    let answer = again.apply(now, Op::Acquire(&claims[1]), &mut Vec::new()).unwrap();
    assert!(matches!(answer, Answer::Acquired(Attempt::Gone(Gone::Superseded))));
    let mut wake = Vec::new();
    again.apply(now, Op::Release(&Release::new(name("x"), claims[0].id)), &mut wake).unwrap();
    assert_eq!(wake, [claims[2].id]);
}

#[test]
fn places_that_are_kept_all_at_once_are_kept_as_one_by_one() {
    let (now, second) = (Now { expiry: 5, wall: 5 }, Duration::from_secs(1));
    let mut one_by_one = State::new();
    let claims: Vec<_> = (0..5).map(|_| crate::support::claim("x", second * 60).queued(second)).collect();
    for claim in &claims {
        one_by_one.apply(now, Op::Acquire(claim), &mut Vec::new()).unwrap();
    }
    let mut at_once = one_by_one.clone();
    let later = Now { expiry: 700_005, wall: 5 };
    for claim in &claims[2..] {
        one_by_one.apply(later, Op::Keep(claim), &mut Vec::new()).unwrap();
    }
    // One of them claims less than is already true.
    let until = |id: &LeaseId| match claims.iter().position(|claim| claim.id == *id) {
        Some(2..) => Some(1_700_005),
        Some(1) => Some(7),
        _ => None,
    };
    at_once.keep_places(until);
    for id in one_by_one.ids() {
        assert_eq!(at_once.row(&id), one_by_one.row(&id));
    }
    assert_eq!(at_once.due(), 1_000_005, "the first who is not kept");
    at_once.apply(Now { expiry: 1_000_005, wall: 5 }, Op::Sweep, &mut Vec::new()).unwrap();
    assert_eq!((at_once.queue_length(), at_once.due()), (3, 1_700_005));
}
