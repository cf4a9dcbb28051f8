//! Random histories on the store and on the state machine itself: the same answers, and the same things kept.
//!
//! The server's clock runs by itself, so every answer carries the time it was given at, and the state machine is asked
//! with exactly that.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::backend::{Attempt, Backend, Claim, Mode, NameInfo, Query, Release, Renewal};
use leasehold::backends::redis::Redis;
use leasehold::state::{Answer, Now, Op, Row, SpentRow, State};
use leasehold::{Fence, LeaseId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::aio::MultiplexedConnection;
use testkit::redis::Server;

use crate::support::name;

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
        1 => any::<bool>().prop_map(|now| Step::Revoke { now }),
        1 => Just(Step::Sweep),
        4 => (1..30u64).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Age),
    ];
    let rare = prop_oneof![100 => step, 1 => Just(Step::NearTheLimit), 1 => Just(Step::Flush)];
    prop::collection::vec(rare, 1..90)
}

fn modes(kind: u8) -> fn(usize) -> Mode {
    match kind {
        0 => |_| Mode::Exclusive,
        1 => |who| if who % 3 == 0 { Mode::Exclusive } else { Mode::Shared },
        2 => |_| Mode::Permit { limit: 3 },
        // Kinds that do not go together.
        _ => |who| if who % 5 == 0 { Mode::Permit { limit: 2 } } else { Mode::Shared },
    }
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
            let raw = client.get_multiplexed_async_connection().await.unwrap();
            let mut heard = client.get_async_pubsub().await.unwrap();
            heard.psubscribe("leasehold-wake:*").await.unwrap();
            (Redis::connect(&server.url()).await.unwrap(), raw, heard)
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
            let number: String = messages.next().await.unwrap().get_payload().unwrap();
            if number == "end" {
                return numbers;
            }
            numbers.push(number);
        }
    }
}

const ON: &str = "a}{b";
const KEY: &str = "leasehold:{/a%7D{b}";

/// Where these are in the head.
const FENCE: usize = 4;
const DUE: usize = FENCE + 3 * 8;

/// Overwrites a number of the head.
fn head_number(at: usize, number: u64) -> redis::Cmd {
    let mut set = redis::cmd("SETRANGE");
    set.arg(KEY).arg(at).arg(&(number as f64).to_be_bytes());
    set
}

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
            Step::Revoke { now } => {
                let ours = store.revoke(&name(ON), *now).await.map(Answer::Revoked);
                (ours, model.apply(store.last_time(), Op::Revoke { now: *now }))
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
        same_view(&seen, &model.0.view(&name(ON), Now { expiry: time, wall: time }))?;
        same_rows(&mut raw, &model).await?;
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
    prop_assert_eq!((a.version, a.last_fence, a.queue_length), (b.version, b.last_fence, b.queue_length));
    Ok(())
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { limit } => format!("p{limit}"),
        _ => unreachable!(),
    }
}

/// What the scripts pack: texts that end with a zero, and doubles.
struct Packed<'a>(&'a [u8]);

impl Packed<'_> {
    fn skip(&mut self, bytes: usize) -> String {
        let (skipped, rest) = self.0.split_at(bytes);
        self.0 = rest;
        String::from_utf8(skipped.to_vec()).unwrap()
    }

    fn text(&mut self) -> String {
        let text = self.skip(self.0.iter().position(|byte| *byte == 0).unwrap());
        self.0 = &self.0[1..];
        text
    }

    fn number(&mut self) -> String {
        let (number, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        format!("{}", f64::from_be_bytes(*number))
    }

    fn words(&mut self, numbers: usize, texts: usize) -> String {
        let mut words = vec![self.text()];
        words.extend((0..numbers).map(|_| self.number()));
        words.extend((0..texts).map(|_| self.text()));
        words.join(" ")
    }

    fn lease(mut self) -> String {
        assert_eq!(self.skip(1), "L");
        format!("{} {}", self.words(6, 2), self.skip(self.0.len()))
    }

    /// Without where it is woken, and the number there.
    fn ticket(mut self) -> (String, String) {
        assert_eq!(self.skip(1), "T");
        let words = self.words(3, 2);
        let (_channel, number) = (self.text(), self.text());
        (format!("{words} {}", self.skip(self.0.len())), number)
    }
}

/// Everything that is kept, and every index of it.
async fn same_rows(raw: &mut MultiplexedConnection, model: &Model) -> Result<(), TestCaseError> {
    let mut ask = redis::pipe();
    ask.cmd("GET").arg(KEY).cmd("HGETALL").arg(format!("{KEY}:rows"));
    for index in ["leases", "queue", "places", "spent"] {
        ask.cmd("ZRANGE").arg(format!("{KEY}:{index}")).arg(0).arg(-1).arg("WITHSCORES");
    }
    for key in ["", ":rows", ":leases", ":queue", ":places", ":spent"] {
        ask.cmd("PTTL").arg(format!("{KEY}{key}"));
    }
    type Index = HashMap<String, u64>;
    type Times = (i64, i64, i64, i64, i64, i64);
    type Kept = (Option<Vec<u8>>, HashMap<String, Vec<u8>>, Index, Index, Index, Index);
    let ((head, rows, leases, queue, places, spent), times): (Kept, Times) = {
        let (a, b, c, d, e, f, g, h, i, j, k, l) = ask.query_async(raw).await.unwrap();
        ((a, b, c, d, e, f), (g, h, i, j, k, l))
    };
    // -2: there is none.
    let lasting = [times.1, times.2, times.3, times.4, times.5];
    prop_assert!(times.0 != -1 && lasting.iter().all(|time| *time != -1 && *time <= times.0), "{:?}", times);
    let mut counts = [0, 0, 0];
    let (mut alone, mut alone_row) = (String::new(), String::new());
    if let Some(head) = &head {
        let mut packed = Packed(head);
        if packed.skip(4) == "LH0:" {
            for _fence_version_keep in 0..3 {
                packed.number();
            }
            if !packed.0.is_empty() {
                alone = packed.skip(22);
                let [fence, ttl, since] = [(); 3].map(|()| packed.number());
                let ends = ttl.parse::<u64>().unwrap() + since.parse::<u64>().unwrap();
                let (nonce, marks) = (packed.text(), packed.text());
                let label = packed.skip(packed.0.len());
                alone_row = format!("x {fence} {fence} {ttl} {ends} {since} 0 {nonce} {marks} {label}");
            }
        } else {
            let mut numbers = (0..8).map(|_| packed.number()).collect::<Vec<_>>().into_iter().skip(4);
            counts = [(); 3].map(|()| numbers.next().unwrap().parse().unwrap());
            packed.text();
            if !packed.0.is_empty() {
                (alone, alone_row) = (packed.skip(22), packed.lease());
            }
        }
    }
    let kept = |id: &str| Packed(rows.get(id).map_or(&b""[..], Vec::as_slice));
    let mark = |set: bool, mark: &'static str| if set { mark } else { "" };
    let label = |owner: &str, metadata: Option<&str>| {
        let metadata = metadata.map(|metadata| format!("+{metadata}")).unwrap_or_default();
        format!("{}:{owner}{metadata}", owner.len())
    };
    let (mut exclusive, mut held, mut waiting, mut spents) = (String::new(), 0, Vec::new(), 0);
    for (id, row) in model.rows() {
        let id = id.expose().to_owned();
        match row {
            Row::Lease(l) => {
                let expected = format!(
                    "{} {} {} {} {} {} {} {} {}{} {}",
                    mode(l.mode),
                    l.fence.get(),
                    l.granted.get(),
                    l.ttl,
                    l.expires,
                    l.acquired_wall,
                    l.renewals,
                    l.nonce,
                    mark(l.repeated, "r"),
                    mark(l.revoked, "v"),
                    label(&l.owner, l.metadata.as_deref()),
                );
                if l.mode == Mode::Exclusive {
                    prop_assert_eq!(&alone_row, &expected);
                    exclusive = id;
                } else {
                    prop_assert_eq!(kept(&id).lease(), expected);
                    prop_assert_eq!(leases.get(&id), Some(&l.expires));
                    held += 1;
                }
            }
            Row::Ticket(t) => {
                let expected = format!(
                    "{} {} {} {} {} {}{} {}",
                    mode(t.mode),
                    t.ttl,
                    t.lapses,
                    t.joined,
                    t.nonce,
                    mark(t.repeated, "r"),
                    mark(t.woken, "w"),
                    label(&t.owner, None),
                );
                let kept = kept(&id).ticket().0;
                prop_assert!(kept.starts_with(&expected), "{} is not {}", kept, expected);
                prop_assert_eq!(places.get(&id), Some(&t.lapses));
                waiting.push((t.arrival, id));
            }
            Row::Spent(s) => {
                prop_assert_eq!(kept(&id).0.strip_prefix(b"S"), Some(s.why.as_str().as_bytes()));
                prop_assert_eq!(spent.get(&id), Some(&s.until));
                spents += 1;
            }
            _ => unreachable!(),
        }
    }
    let order = |mut ids: Vec<(u64, String)>| {
        ids.sort();
        ids.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    prop_assert_eq!((alone, leases.len(), spent.len()), (exclusive, held, spents));
    prop_assert_eq!(places.len(), waiting.len());
    prop_assert_eq!(order(queue.into_iter().map(|(id, at)| (at, id)).collect()), order(waiting.clone()));
    prop_assert_eq!(counts, [held, waiting.len(), spents]);
    prop_assert_eq!(rows.len(), held + waiting.len() + spents, "{:?}", rows.keys());
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
        same_rows(&mut place.raw.clone(), &model).await.unwrap();
    });
}
