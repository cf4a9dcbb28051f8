//! Random histories on two stores that share a file, and on the state machine: the same answers. Each wakes its own
//! waiters, which the guided histories of `model.rs` do not have.

use std::collections::HashMap;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, NameInfo, Query, Release, Renewal, Wake};
use leasehold::backends::sqlite::Sqlite;
use leasehold::clock::Clock;
use leasehold::state::{Answer, Now, Op, State};
use leasehold::{Fence, LeaseId, Name};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::history::modes;
use testkit::until::PATIENCE;

use crate::support::{HandClock, name, place};

/// A step of a history. A number identifies a claim, lease or ticket.
#[derive(Debug, Clone)]
enum Step {
    Acquire {
        who: usize,
        queue: bool,
        repeat: bool,
        nonce: u64,
        first: bool,
    },
    Renew {
        who: usize,
        ttl: u64,
        shorten: Option<u64>,
        fence: bool,
        owner: bool,
        downgrade: bool,
        raise: bool,
    },
    Release {
        who: usize,
        unanswered: bool,
        nonce: Option<u64>,
        fence: bool,
    },
    Revoke {
        on: usize,
        now: bool,
        only: Option<usize>,
    },
    Sweep,
    Advance {
        millis: u64,
    },
    JumpWall {
        seconds: i64,
    },
    /// The other store on the same file does the following steps.
    Switch,
}

const WHO: usize = 10;
const NAMES: usize = 2;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0..WHO, prop::bool::weighted(0.7), prop::bool::weighted(0.1), 0..2u64, any::<bool>())
            .prop_map(|(who, queue, repeat, nonce, first)| Step::Acquire { who, queue, repeat, nonce, first }),
        4 => (0..WHO, 1..40u64, prop::option::weighted(0.3, 0..2u64), any::<bool>(), any::<bool>(),
              prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(who, ttl, shorten, fence, owner, downgrade, raise)| Step::Renew {
                who, ttl: ttl * 100, shorten, fence, owner, downgrade, raise }),
        6 => (0..WHO, prop::bool::weighted(0.2), prop::option::weighted(0.2, 0..2u64), any::<bool>())
            .prop_map(|(who, unanswered, nonce, fence)| Step::Release { who, unanswered, nonce, fence }),
        2 => (0..NAMES, any::<bool>(), prop::option::of(0..WHO))
            .prop_map(|(on, now, only)| Step::Revoke { on, now, only }),
        1 => Just(Step::Sweep),
        4 => (1..3000u64).prop_map(|millis| Step::Advance { millis }),
        1 => Just(Step::Advance { millis: 70_000 }),
        1 => (-3600..3600i64).prop_map(|seconds| Step::JumpWall { seconds }),
        2 => Just(Step::Switch),
    ];
    prop::collection::vec(step, 1..80)
}

/// The waiters, and which of the two stores each waits on.
type Waiting = HashMap<LeaseId, (usize, Claim)>;

/// The state machine, and the waiters to wake. A store makes the attempts of claims whose `wait` is pending; there are
/// none here, because other tests cover them.
#[derive(Default)]
struct Model {
    /// Expired leases that no sweep has reported yet, by the store that found them.
    expired: [u64; 2],
    names: HashMap<Name, (State, Waiting)>,
    /// The store that runs a step: it wakes its own waiters itself.
    side: usize,
    /// The waiters to wake on the other side.
    elsewhere: Vec<(Name, LeaseId)>,
}

impl Model {
    fn apply(&mut self, now: Now, name: &Name, op: Op<'_>) -> leasehold::Result<Answer> {
        let (state, waiters) = self.names.entry(name.clone()).or_default();
        let mut wake = Vec::new();
        if let Ok(Answer::Swept(swept)) = state.clone().apply(now, Op::Sweep, &mut Vec::new()) {
            self.expired[self.side] += swept.expired;
        }
        let answer = state.apply(now, op, &mut wake);
        if let (Op::Acquire(claim), Ok(Answer::Acquired(Attempt::Busy(_)))) = (op, &answer)
            && claim.queue.is_some()
        {
            let mut claim = claim.clone();
            claim.first = false;
            waiters.insert(claim.id, (self.side, claim));
        }
        waiters.retain(|id, _| state.is_queued(id));
        let mut next = 0;
        while let Some(id) = wake.get(next).copied() {
            next += 1;
            match waiters.get(&id) {
                Some((side, _)) if *side == self.side => drop(waiters.remove(&id)),
                Some(_) => self.elsewhere.push((name.clone(), id)),
                None => {}
            }
        }
        answer
    }
}

/// What two answers must have in common. Which of several holders is shown is open, and so is when to try again after
/// a state was read from the file.
fn text(answer: &leasehold::Result<Answer>) -> String {
    match answer {
        Ok(Answer::Acquired(Attempt::Busy(busy))) => {
            format!("busy {:?} of {}", busy.place, busy.queue_length)
        }
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

fn same_view(a: &NameInfo, b: &NameInfo) -> Result<(), TestCaseError> {
    let holders = |info: &NameInfo| {
        let mut holders = info.holders.clone();
        holders.sort_by_key(|holder| (holder.grant.fence, holder.id));
        holders
    };
    prop_assert_eq!(holders(a), holders(b));
    prop_assert_eq!(&a.waiters, &b.waiters);
    prop_assert_eq!((a.holder_count, a.queue_length), (b.holder_count, b.queue_length));
    prop_assert_eq!((a.version, a.last_fence), (b.version, b.last_fence));
    Ok(())
}

async fn run(steps: &[Step], kind: u8) -> Result<(), TestCaseError> {
    let (place, clock) = (place(), HandClock::new());
    // The stores never look by themselves: the model would have to know when.
    let never = Duration::MAX;
    let open = || Sqlite::builder(&place.path).clock(clock.clone()).look_every(never).open();
    let stores = [open().await.unwrap(), open().await.unwrap()];
    let mut model = Model::default();
    let mode = modes(kind);
    let claims: Vec<Claim> = (0..WHO)
        .map(|who| {
            let ttl = Duration::from_millis(500 * (who as u64 + 1));
            Claim::new(name(&format!("n{}", who % NAMES)), mode(who), ttl, format!("o{}", who % 2))
        })
        .collect();
    let mut fences = [Fence::UNFENCED; WHO];
    for step in steps {
        let now = Now { expiry: clock.micros(), wall: clock.wall_micros() };
        let store = &stores[model.side];
        let mut about = None;
        let (ours, theirs) = match step {
            Step::Switch => {
                model.side = (model.side + 1) % 2;
                continue;
            }
            Step::Advance { millis } => {
                clock.advance(Duration::from_millis(*millis));
                continue;
            }
            Step::JumpWall { seconds } => {
                clock.jump_wall(seconds * 1_000_000);
                continue;
            }
            Step::Acquire { who, queue, repeat, nonce, first } => {
                let mut claim = claims[*who].clone();
                claim.queue = queue.then_some(Duration::from_secs(2));
                (claim.repeat, claim.nonce, claim.first) = (*repeat, *nonce, *first);
                about = Some(*who);
                // A claim lives in one process; any process may renew or release.
                model.side = who / NAMES % 2;
                let store = &stores[model.side];
                let ours = store.try_acquire(&claim).await.map(Answer::Acquired);
                (ours, model.apply(now, &claim.name, Op::Acquire(&claim)))
            }
            Step::Renew { who, ttl, shorten, fence, owner, downgrade, raise } => {
                let claim = &claims[*who];
                let mut renewal = Renewal::new(claim.name.clone(), claim.id, Duration::from_millis(*ttl));
                renewal.shorten = *shorten;
                renewal.fence = fence.then_some(fences[*who]);
                renewal.owner = owner.then(|| "o0".into());
                renewal.mode = downgrade.then_some(Mode::Shared);
                renewal.raise_fence = raise.then(|| Fence::new(fences[*who].get() + 5));
                let ours = store.renew(std::slice::from_ref(&renewal)).await.remove(0);
                (ours.map(Answer::Renewed), model.apply(now, &claim.name, Op::Renew(&renewal)))
            }
            Step::Release { who, unanswered, nonce, fence } => {
                let claim = &claims[*who];
                let mut release = Release::new(claim.name.clone(), claim.id);
                release.unanswered = unanswered.then_some(claim.ttl);
                release.nonce = *nonce;
                release.fence = fence.then_some(fences[*who]);
                let ours = store.release(&release).await.map(Answer::Released);
                (ours, model.apply(now, &claim.name, Op::Release(&release)))
            }
            Step::Revoke { on, now: at_once, only } => {
                let (name, only) = (name(&format!("n{on}")), only.map(|who| fences[who]));
                let ours = store.revoke(&name, *at_once, only).await.map(Answer::Revoked);
                (ours, model.apply(now, &name, Op::Revoke { now: *at_once, only }))
            }
            Step::Sweep => {
                let swept = store.sweep().await.unwrap();
                let mut tickets = 0;
                for name in (0..NAMES).map(|n| name(&format!("n{n}"))) {
                    if let Ok(Answer::Swept(part)) = model.apply(now, &name, Op::Sweep) {
                        tickets += part.tickets;
                    }
                }
                // A store reports all leases found expired since the last sweep, whichever verb found them.
                let expired = std::mem::take(&mut model.expired[model.side]);
                prop_assert_eq!((swept.expired, swept.tickets), (expired, tickets));
                settle_elsewhere(&mut model, &stores, now).await?;
                continue;
            }
        };
        prop_assert_eq!(text(&ours), text(&theirs), "{:?}", step);
        if let (Some(who), Ok(Answer::Acquired(Attempt::Granted(grant)))) = (about, &ours) {
            fences[who] = grant.fence;
        }
        // The waiters woken on the other side try again, and the model lets them.
        settle_elsewhere(&mut model, &stores, now).await?;
        for name in (0..NAMES).map(|n| name(&format!("n{n}"))) {
            let page = store.inspect(&Query::Name(name.clone())).await.unwrap();
            let (state, _) = model.names.entry(name.clone()).or_default();
            same_view(&page.items[0], &state.view(&name, now, None))?;
        }
    }
    check_stored(&place.path, &model)
}

/// The other store wakes its own waiters, and makes the attempts of those in `wait`; the others try by themselves.
async fn settle_elsewhere(model: &mut Model, stores: &[Sqlite; 2], now: Now) -> Result<(), TestCaseError> {
    // They come in the order of the queue.
    while !model.elsewhere.is_empty() {
        let (name, id) = model.elsewhere.remove(0);
        let Some((_, waiters)) = model.names.get_mut(&name) else { continue };
        let Some((side, claim)) = waiters.get(&id).cloned() else { continue };
        let wake = tokio::time::timeout(PATIENCE, stores[side].wait(&claim)).await;
        prop_assert!(wake.is_ok(), "the waiter was not woken");
        if matches!(wake, Ok(Ok(Wake::Retry))) {
            let _ = stores[side].try_acquire(&claim).await;
        }
        let here = std::mem::replace(&mut model.side, side);
        model.names.get_mut(&name).unwrap().1.remove(&id);
        let _ = model.apply(now, &name, Op::Acquire(&claim));
        model.side = here;
    }
    Ok(())
}

/// Checks that the file contains the model's state, row by row.
fn check_stored(path: &std::path::Path, model: &Model) -> Result<(), TestCaseError> {
    let db = rusqlite::Connection::open(path).unwrap();
    let count = |sql: &str| -> u32 { db.query_row(sql, [], |row| row.get(0)).unwrap() };
    let (mut leases, mut tickets, mut spent) = (0, 0, 0);
    for (state, _) in model.names.values() {
        for id in state.ids() {
            match state.row(&id) {
                Some(leasehold::state::Row::Lease(_)) => leases += 1,
                Some(leasehold::state::Row::Ticket(_)) => tickets += 1,
                Some(leasehold::state::Row::Spent(_)) => spent += 1,
                _ => {}
            }
        }
    }
    prop_assert_eq!(count("SELECT count(*) FROM leases"), leases);
    prop_assert_eq!(count("SELECT count(*) FROM tickets"), tickets);
    prop_assert_eq!(count("SELECT count(*) FROM spent"), spent);
    Ok(())
}

fn check(cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        max_shrink_time: 15_000,
        ..Config::default()
    })
    .run(&(steps(), 0..4u8), |(steps, kind)| runtime.block_on(run(&steps, kind)))
    .unwrap();
}

#[test]
fn two_stores_on_one_file_answer_as_one_state_machine_does() {
    check(120);
}
