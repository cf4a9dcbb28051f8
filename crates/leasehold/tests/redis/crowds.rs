//! Crowds of holders and waiters on the real store, by its own clock, give the same answers as the state machine.
//! Every answer contains its time, and the state machine gets exactly that.

use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold::backend::{Attempt, Backend, Claim, Mode, NameInfo, Query, Release, Renewal};
use leasehold::backends::redis::Redis;
use leasehold::state::{Answer, Now, Op, Row, State};
use leasehold::{Fence, LeaseId};
use proptest::prelude::*;
use redis::aio::MultiplexedConnection;
use testkit::redis::Server;
use testkit::until::{PATIENCE, in_time};

use crate::kept::{Packed, same_rows};
use crate::support::{LONG, name, own_connection};

/// The name of all these tests, whose key has to be escaped, and that key.
const ON: &str = "a}{b";
const KEY: &str = "leasehold:{/a%7D{b}";

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

/// The state machine, taken apart and put together, so that its hints when to try again are exact; the waiters that
/// the latest verb woke; and how many leases were found expired since the last sweep.
struct Model(State, Vec<LeaseId>, u64);

impl Model {
    fn rows(&self) -> Vec<(LeaseId, Row)> {
        self.0.ids().map(|id| (id, self.0.row(&id).unwrap())).collect()
    }

    fn apply(&mut self, time: u64, op: Op<'_>) -> leasehold::Result<Answer> {
        let note = self.0.note().cloned();
        self.0 = State::from_rows(self.0.last_fence(), self.0.version(), self.rows()).with_note(note);
        self.1.clear();
        let now = Now { expiry: time, wall: time };
        self.2 += self.0.expired(now);
        let mut answer = self.0.apply(now, op, &mut self.1);
        // A store reports all leases found expired since the last sweep, whichever verb found them.
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

    /// The wake numbers published since the last call.
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

/// Checks that exactly the right waiters were woken, in the order of the queue, each once.
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

/// Of more than a hundred holders both show the same, by name and by id.
#[test]
fn a_crowd_of_holders_is_shown_as_by_the_state_machine() {
    let place = Place::start();
    let mut model = Model(State::new(), Vec::new(), 0);
    // Some end early, and most of those unnoticed: inspecting settles nothing.
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
        same_rows(&mut place.raw.clone(), KEY, model.rows()).await.unwrap();
        let asked = [0, 3, 98, 104, 105, 106, 107, 130, 148].map(|i: usize| Query::LeaseId(claims[i].id));
        for query in [Query::Name(name(ON))].into_iter().chain(asked) {
            let seen = store.inspect(&query).await.unwrap().items.remove(0);
            let now = Now { expiry: store.last_time(), wall: store.last_time() };
            let id = if let Query::LeaseId(id) = &query { Some(id) } else { None };
            same_view(&seen, &model.0.view(&name(ON), now, id)).unwrap();
            assert_eq!(seen.holders.len(), 100);
        }
        // Leases from before the order of grants was stored are not in it, and are shown all the same.
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
        same_rows(&mut place.raw.clone(), KEY, model.rows()).await.unwrap();
    });
}
