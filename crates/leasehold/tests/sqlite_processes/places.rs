//! The places of a process that is alive are kept; those of one that was killed or stopped lapse together.

use std::pin::pin;
use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Query, Release, Wake};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{Mode, Name};
use rustix::process::Signal;
use testkit::blocked::send;
use testkit::until::until_async;

use crate::support::{Log, directory, lines, runtime, start, told};

const TTL: Duration = Duration::from_secs(3600);
/// Long enough for a busy machine to keep places in time.
const TICKET: Duration = Duration::from_secs(4);
const WAITERS: usize = 20;

fn claim() -> Claim {
    Claim::new(Name::new("x").unwrap(), Mode::Exclusive, TTL, "waits")
}

/// The child: many waiters, each in its `wait`, until the test ends it.
pub(crate) fn wait() {
    let (_, directory) = told();
    runtime().block_on(async {
        let store = Sqlite::open(directory.join("locks.db")).await.unwrap();
        let claims: Vec<_> = (0..WAITERS).map(|_| claim().queued(TICKET)).collect();
        for claim in &claims {
            assert!(matches!(store.try_acquire(claim).await.unwrap(), Attempt::Busy(_)));
        }
        let mut waiting = pin!(futures_util::future::join_all(claims.iter().map(|claim| store.wait(claim))));
        send(waiting.as_mut()).await;
        Log::append(&directory.join("log")).line("waiting");
        waiting.await;
    });
}

/// The child: one waiter, which looks by itself only after an hour.
pub(crate) fn wait_for_push() {
    let (_, directory) = told();
    let log = Log::append(&directory.join("log"));
    runtime().block_on(async {
        let builder = Sqlite::builder(directory.join("locks.db")).look_every(Duration::from_secs(3600));
        let store = builder.open().await.unwrap();
        let claim = claim().queued(TTL);
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Busy(_)));
        let mut waiting = pin!(store.wait(&claim));
        send(waiting.as_mut()).await;
        log.line("waiting");
        assert!(matches!(waiting.await.unwrap(), Wake::Granted(_)));
        log.line("granted");
    });
}

#[test]
fn a_release_wakes_a_waiter_in_another_process_by_push_alone() {
    let directory = directory();
    let log = directory.path().join("log");
    runtime().block_on(async {
        let store = Sqlite::open(directory.path().join("locks.db")).await.unwrap();
        let held = claim();
        assert!(matches!(store.try_acquire(&held).await.unwrap(), Attempt::Granted(_)));
        let _child = start("push", "", directory.path());
        until_async("it waits", async || lines(&log) == ["waiting"]).await;
        store.release(&Release::new(held.name.clone(), held.id)).await.unwrap();
        until_async("it is woken", async || lines(&log) == ["waiting", "granted"]).await;
    });
}

async fn length(store: &Sqlite) -> u64 {
    let query = Query::Name(Name::new("x").unwrap());
    store.inspect(&query).await.unwrap().items[0].queue_length
}

#[test]
fn places_live_as_long_as_their_process_and_a_ticket_longer() {
    runtime().block_on(async { tokio::join!(places_until(Signal::KILL), places_until(Signal::STOP)) });
}

async fn places_until(end: Signal) {
    let directory = directory();
    let store = Sqlite::open(directory.path().join("locks.db")).await.unwrap();
    assert!(matches!(store.try_acquire(&claim()).await.unwrap(), Attempt::Granted(_)));
    let child = start("wait", "", directory.path());
    let log = directory.path().join("log");
    until_async("they wait", async || !lines(&log).is_empty()).await;
    // Longer than a ticket lasts, and no waiter in the child comes back to keep its place.
    tokio::time::sleep(TICKET * 3 / 2).await;
    assert_eq!(length(&store).await, WAITERS as u64, "a waiter lost its place");
    child.signal(end);
    let ended = Instant::now();
    until_async("the places lapse", async || {
        let late = ended.elapsed().saturating_sub(TICKET);
        let none = length(&store).await == 0;
        assert!(none || late < Duration::from_secs(1), "they outlive their process by a ticket and {late:?}");
        none
    })
    .await;
}
