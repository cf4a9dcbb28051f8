//! Random histories on the store and on the state machine itself: the same answers, and the same things kept.
//!
//! The server's clock runs by itself, so every answer carries the time it was given at, and the state machine is asked
//! with exactly that.

use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::backend::{Attempt, Backend, Claim, Mode, NameInfo, Query, Release, Renewal};
use leasehold::backends::redis::Redis;
use leasehold::state::{Answer, Now, Op, Row, SpentRow, State};
use leasehold::{Fence, LeaseId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::aio::MultiplexedConnection;
use testkit::history::modes;
use testkit::redis::Server;
use testkit::until::{PATIENCE, in_time};

use crate::kept::{DUE, FENCE, KEY, Packed, head_number, same_rows};
use crate::support::{LONG, name, own_connection};

#[derive(Debug, Clone)]
enum Step {
    Acquire {
        who: usize,
        queue: Option<u64>,
        repeat: bool,
        nonce: u64,
        first: bool,
        ttl: u64,
        other_mode: bool,
    },
    Renew {
        who: usize,
        ttl: u64,
        shorten: Option<u64>,
        fence: u8,
        owner: u8,
        downgrade: bool,
        raise: u8,
    },
    Release {
        who: usize,
        unanswered: Option<u64>,
        nonce: Option<u64>,
        fence: u8,
        owner: u8,
    },
    Revoke {
        now: bool,
        only: Option<usize>,
    },
    Sweep,
    Pass {
        millis: u64,
    },
    /// The minute of the refused ids is over.
    Age,
    /// The counter is just below its limit.
    NearTheLimit,
    Flush,
}

const WHO: usize = 10;

fn millis() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..30u64, 3 => Just(60_000u64), 1 => Just(86_400_000u64)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let yes = prop::bool::weighted;
    let maybe = |share| prop::option::weighted(share, 0..2u64);
    let step = prop_oneof![
        24 => (0..WHO, prop::option::weighted(0.7, millis()), yes(0.1), 0..2u64, any::<bool>(), millis(), yes(0.05))
            .prop_map(|(who, queue, repeat, nonce, first, ttl, other_mode)| {
                Step::Acquire { who, queue, repeat, nonce, first, ttl, other_mode }
            }),
        8 => (0..WHO, millis(), maybe(0.3), 0..6u8, 0..6u8, yes(0.2), 0..12u8)
            .prop_map(|(who, ttl, shorten, fence, owner, downgrade, raise)| {
                Step::Renew { who, ttl, shorten, fence, owner, downgrade, raise }
            }),
        12 => (0..WHO, prop::option::weighted(0.2, millis()), maybe(0.2), 0..6u8, 0..6u8)
            .prop_map(|(who, unanswered, nonce, fence, owner)| {
                Step::Release { who, unanswered, nonce, fence, owner }
            }),
        2 => (any::<bool>(), prop::option::of(0..WHO)).prop_map(|(now, only)| Step::Revoke { now, only }),
        1 => Just(Step::Sweep),
        4 => (1..30u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Age),
    ];
    let rare = prop_oneof![100 => step, 1 => Just(Step::NearTheLimit), 1 => Just(Step::Flush)];
    prop::collection::vec(rare, 1..90)
}

/// Which of several holders that end together is shown is left open.
fn text(answer: &leasehold::Result<Answer>) -> String {
    match answer {
        Ok(Answer::Acquired(Attempt::Busy(busy))) => {
            format!("busy {:?} of {}, {:?}", busy.place, busy.queue_length, busy.holder_left)
        }
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

/// The state machine, taken apart and put together, so that its hints when to look again are exact; whom the latest verb
/// woke; and how many leases were found expired since the last sweep.
struct Model(State, Vec<LeaseId>, u64);

impl Model {
    fn rows(&self) -> Vec<(LeaseId, Row)> {
        self.0.ids().map(|id| (id, self.0.row(&id).unwrap())).collect()
    }

    fn rebuild(&mut self, fence: Fence, change: impl Fn(&mut Row)) {
        let mut rows = self.rows();
        rows.iter_mut().for_each(|(_, row)| change(row));
        self.0 = State::from_rows(fence, self.0.version(), rows);
    }

    fn apply(&mut self, time: u64, op: Op<'_>) -> leasehold::Result<Answer> {
        self.rebuild(self.0.last_fence(), |_| {});
        self.1.clear();
        let now = Now { expiry: time, wall: time };
        self.2 += self.0.expired(now);
        let mut answer = self.0.apply(now, op, &mut self.1);
        // A store tells of all that it found expired since it was last asked, whatever verb found it.
        if let Ok(Answer::Swept(swept)) = &mut answer {
            swept.expired = std::mem::take(&mut self.2);
        }
        answer
    }
}

struct Place {
    runtime: tokio::runtime::Runtime,
    _server: Server,
    store: Redis,
    raw: MultiplexedConnection,
    /// Hears all wake-ups.
    heard: tokio::sync::Mutex<redis::aio::PubSub>,
}

impl Place {
    fn start() -> Self {
        let server = Server::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (store, raw, heard) = runtime.block_on(async {
            let client = redis::Client::open(server.url()).unwrap();
            let raw = own_connection(&server.url()).await;
            let mut heard = client.get_async_pubsub().await.unwrap();
            heard.psubscribe("leasehold-wake:*").await.unwrap();
            let patient = Redis::builder(&server.url()).unwrap().response_timeout(PATIENCE);
            (patient.connect().await.unwrap(), raw, heard)
        });
        Place { runtime, _server: server, store, raw, heard: tokio::sync::Mutex::new(heard) }
    }

    /// The wake numbers that were published since the last time.
    async fn numbers(&self) -> Vec<String> {
        let mut raw = self.raw.clone();
        // What was published before this comes before it.
        let mut end = redis::cmd("PUBLISH");
        let _: () = end.arg("leasehold-wake:end").arg("end").query_async(&mut raw).await.unwrap();
        let mut heard = self.heard.lock().await;
        let mut messages = heard.on_message();
        let mut numbers = Vec::new();
        loop {
            let message = in_time("a message", messages.next()).await;
            let number: String = message.unwrap().get_payload().unwrap();
            if number == "end" {
                return numbers;
            }
            numbers.push(number);
        }
    }
}

/// The name that all is about: one whose key has to be escaped.
const ON: &str = "a}{b";

async fn run(place: &Place, steps: &[Step], kind: u8) -> Result<(), TestCaseError> {
    let (store, mut raw) = (&place.store, place.raw.clone());
    let _: () = redis::cmd("FLUSHALL").query_async(&mut raw).await.unwrap();
    // What the last history left untold.
    store.sweep().await.unwrap();
    let mut model = Model(State::new(), Vec::new(), 0);
    let mode = modes(kind);
    let claims: Vec<Claim> = (0..WHO)
        .map(|who| Claim::new(name(ON), mode(who), Duration::from_secs(1), format!("o:{}", who % 2)))
        .collect();
    let mut fences = [Fence::UNFENCED; WHO];
    for step in steps {
        let mut about = None;
        let owner = |which: u8| match which {
            0 => Some("o:0".into()),
            1 => Some("o:1".into()),
            _ => None,
        };
        let (ours, theirs) = match step {
            Step::Pass { millis } => {
                tokio::time::sleep(Duration::from_millis(*millis)).await;
                continue;
            }
            Step::Flush => {
                let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut raw).await.unwrap();
                continue;
            }
            Step::Age => {
                for (id, row) in model.rows() {
                    if let Row::Spent(SpentRow { until, .. }) = row {
                        let earlier = until - 60_000_000;
                        let mut age = redis::pipe();
                        age.cmd("ZADD").arg(format!("{KEY}:spent")).arg(earlier).arg(id.expose());
                        age.add_command(head_number(DUE, 1));
                        let _: Vec<redis::Value> = age.query_async(&mut raw).await.unwrap();
                    }
                }
                model.rebuild(model.0.last_fence(), |row| {
                    if let Row::Spent(spent) = row {
                        spent.until -= 60_000_000;
                    }
                });
                continue;
            }
            Step::NearTheLimit => {
                let fence = Fence::new(Fence::MAX.get() - 2);
                if model.0.last_fence().is_unfenced() || model.0.last_fence() >= fence {
                    continue;
                }
                let _: () = head_number(FENCE, fence.get()).query_async(&mut raw).await.unwrap();
                model.rebuild(fence, |_| {});
                continue;
            }
            Step::Acquire { who, queue, repeat, nonce, first, ttl, other_mode } => {
                let mut claim = claims[*who].clone();
                if *other_mode {
                    claim.mode = if claim.mode == Mode::Shared { Mode::Exclusive } else { Mode::Shared };
                }
                claim.ttl = Duration::from_millis(*ttl);
                claim.queue = queue.map(Duration::from_millis);
                claim.metadata = (who % 3 == 0).then(|| "+seen 5:x".into());
                (claim.repeat, claim.nonce, claim.first) = (*repeat, nonce * u64::MAX, *first);
                about = Some(*who);
                let ours = store.try_acquire(&claim).await.map(Answer::Acquired);
                (ours, model.apply(store.last_time(), Op::Acquire(&claim)))
            }
            Step::Renew { who, ttl, shorten, fence, owner: which, downgrade, raise } => {
                let claim = &claims[*who];
                let mut renewal = Renewal::new(claim.name.clone(), claim.id, Duration::from_millis(*ttl));
                renewal.shorten = *shorten;
                renewal.fence = (*fence == 0).then_some(fences[*who]);
                renewal.owner = owner(*which);
                renewal.mode = downgrade.then_some(Mode::Shared);
                renewal.raise_fence = match raise {
                    0 => Some(Fence::new(fences[*who].get() + 5)),
                    1 => Some(Fence::new(fences[*who].get().saturating_sub(1))),
                    2 => Some(Fence::new(u64::MAX)),
                    3 => Some(Fence::new(fences[*who].get() + 23 * 3600 * 256_000)),
                    4 => Some(Fence::new(fences[*who].get() + 25 * 3600 * 256_000)),
                    _ => None,
                };
                let ours = store.renew(std::slice::from_ref(&renewal)).await.remove(0);
                (ours.map(Answer::Renewed), model.apply(store.last_time(), Op::Renew(&renewal)))
            }
            Step::Release { who, unanswered, nonce, fence, owner: which } => {
                let claim = &claims[*who];
                let mut release = Release::new(claim.name.clone(), claim.id);
                release.unanswered = unanswered.map(Duration::from_millis);
                release.nonce = nonce.map(|nonce| nonce * u64::MAX);
                release.fence = (*fence == 0).then_some(fences[*who]);
                release.owner = owner(*which);
                let ours = store.release(&release).await.map(Answer::Released);
                (ours, model.apply(store.last_time(), Op::Release(&release)))
            }
            Step::Revoke { now, only } => {
                let only = only.map(|who| fences[who]);
                let ours = store.revoke(&name(ON), *now, only).await.map(Answer::Revoked);
                (ours, model.apply(store.last_time(), Op::Revoke { now: *now, only }))
            }
            Step::Sweep => {
                // Of a name that has no key there is nothing to sweep.
                let exists: bool = redis::cmd("EXISTS").arg(KEY).query_async(&mut raw).await.unwrap();
                if !exists {
                    continue;
                }
                let ours = store.sweep().await.map(Answer::Swept);
                (ours, model.apply(store.last_time(), Op::Sweep))
            }
        };
        prop_assert_eq!(text(&ours), text(&theirs), "{:?}", step);
        if let (Ok(Answer::Acquired(Attempt::Busy(a))), Ok(Answer::Acquired(Attempt::Busy(b)))) =
            (&ours, &theirs)
        {
            // The state machine knows the earliest lapse only about; the store exactly, and that is later.
            let exact = a.holder_left.is_some() && a.place.is_none_or(|place| place == 0);
            prop_assert!(a.retry_in == b.retry_in || !exact && a.retry_in > b.retry_in, "{:?} {:?}", a, b);
        }
        if let (Some(who), Ok(Answer::Acquired(Attempt::Granted(grant)))) = (about, &ours) {
            fences[who] = grant.fence;
        }
        let seen = store.inspect(&Query::Name(name(ON))).await.unwrap().items.remove(0);
        let time = store.last_time();
        same_view(&seen, &model.0.view(&name(ON), Now { expiry: time, wall: time }, None))?;
        same_rows(&mut raw, model.rows()).await?;
        same_wakes(place, &model).await?;
    }
    Ok(())
}

/// Those were woken who were to be, in the order of the queue, and each once.
async fn same_wakes(place: &Place, model: &Model) -> Result<(), TestCaseError> {
    let mut numbers = Vec::new();
    for id in &model.1 {
        let mut ask = redis::cmd("HGET");
        let row: Vec<u8> = ask
            .arg(format!("{KEY}:rows"))
            .arg(id.expose())
            .query_async(&mut place.raw.clone())
            .await
            .unwrap();
        numbers.push(Packed(&row).ticket().1);
    }
    prop_assert_eq!(place.numbers().await, numbers);
    Ok(())
}

fn same_view(a: &NameInfo, b: &NameInfo) -> Result<(), TestCaseError> {
    prop_assert_eq!(&a.holders, &b.holders);
    prop_assert_eq!(&a.waiters, &b.waiters);
    prop_assert_eq!((a.holder_count, a.queue_length), (b.holder_count, b.queue_length));
    prop_assert_eq!((a.version, a.last_fence), (b.version, b.last_fence));
    Ok(())
}

#[test]
fn redis_answers_and_keeps_as_the_state_machine_does() {
    let place = Place::start();
    TestRunner::new(Config {
        cases: 80,
        failure_persistence: None,
        max_shrink_iters: 300,
        max_shrink_time: 15_000,
        ..Config::default()
    })
    .run(&(steps(), 0..4u8), |(steps, kind)| place.runtime.block_on(run(&place, &steps, kind)))
    .unwrap();
}

/// Of more than a hundred holders both show the same, by name and by id.
#[test]
fn a_crowd_of_holders_is_shown_as_by_the_state_machine() {
    let place = Place::start();
    let mut model = Model(State::new(), Vec::new(), 0);
    // Some end early, and most of those unnoticed: looking settles nothing.
    let ttl = |i: usize| Duration::from_millis(if i % 20 == 19 { 1 } else { 3_600_000 });
    let claims: Vec<Claim> =
        (0..150).map(|i| Claim::new(name(ON), Mode::Permit { limit: 200 }, ttl(i), "x")).collect();
    place.runtime.block_on(async {
        let store = &place.store;
        for claim in &claims {
            let ours = store.try_acquire(claim).await.map(Answer::Acquired);
            assert_eq!(text(&ours), text(&model.apply(store.last_time(), Op::Acquire(claim))));
        }
        let mut raise = Renewal::new(name(ON), claims[3].id, LONG);
        raise.raise_fence = Some(Fence::new(model.0.last_fence().get() + 500));
        store.renew(std::slice::from_ref(&raise)).await.remove(0).unwrap();
        model.apply(store.last_time(), Op::Renew(&raise)).unwrap();
        let release = Release::new(name(ON), claims[5].id);
        store.release(&release).await.unwrap();
        model.apply(store.last_time(), Op::Release(&release)).unwrap();
        same_rows(&mut place.raw.clone(), model.rows()).await.unwrap();
        let asked = [0, 3, 98, 104, 105, 106, 107, 130, 148].map(|i: usize| Query::LeaseId(claims[i].id));
        for query in [Query::Name(name(ON))].into_iter().chain(asked) {
            let seen = store.inspect(&query).await.unwrap().items.remove(0);
            let now = Now { expiry: store.last_time(), wall: store.last_time() };
            let id = if let Query::LeaseId(id) = &query { Some(id) } else { None };
            same_view(&seen, &model.0.view(&name(ON), now, id)).unwrap();
            assert_eq!(seen.holders.len(), 100);
        }
        // Leases from before there was an order of grants are in none, and shown all the same.
        let _: () =
            redis::cmd("DEL").arg(format!("{KEY}:grants")).query_async(&mut place.raw.clone()).await.unwrap();
        let seen = store.inspect(&Query::LeaseId(claims[148].id)).await.unwrap().items.remove(0);
        assert_eq!((seen.holders.len(), seen.holder_count), (100, 142));
        assert!(seen.holders.iter().any(|holder| holder.id == claims[148].id));
    });
}

#[test]
fn at_most_128_are_let_in_at_a_time_as_by_the_state_machine() {
    let place = Place::start();
    let mut model = Model(State::new(), Vec::new(), 0);
    let claim =
        |mode| Claim::new(name(ON), mode, Duration::from_secs(3600), "x").queued(Duration::from_secs(3600));
    let writer = claim(Mode::Exclusive);
    let readers: Vec<Claim> = (0..200).map(|_| claim(Mode::Shared)).collect();
    let late = claim(Mode::Shared);
    place.runtime.block_on(async {
        let acquire = async |model: &mut Model, claim: &Claim| {
            let ours = place.store.try_acquire(claim).await.map(Answer::Acquired);
            let theirs = model.apply(place.store.last_time(), Op::Acquire(claim));
            assert_eq!(text(&ours), text(&theirs));
            same_wakes(&place, model).await.unwrap();
            matches!(ours, Ok(Answer::Acquired(Attempt::Granted(_))))
        };
        for claim in [&writer].into_iter().chain(&readers) {
            acquire(&mut model, claim).await;
        }
        let release = Release::new(name(ON), writer.id);
        place.store.release(&release).await.unwrap();
        model.apply(place.store.last_time(), Op::Release(&release)).unwrap();
        assert_eq!(model.1.len(), 128);
        same_wakes(&place, &model).await.unwrap();
        for (reader, enters) in
            [(128, false), (150, false), (127, true), (128, true), (130, false), (0, true)]
        {
            assert_eq!(acquire(&mut model, &readers[reader]).await, enters, "{reader}");
        }
        assert!(!acquire(&mut model, &late).await, "more than 128 are before it");
        same_rows(&mut place.raw.clone(), model.rows()).await.unwrap();
    });
}
