//! The places of a process that is alive are kept; those of one that was killed or stopped lapse together.

use std::time::{Duration, Instant};

use leasehold::backend::{Attempt, Backend, Claim, Query, Release, Wake};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{Mode, Name};
use rustix::process::Signal;

use crate::support::{Log, lines, runtime, start, told};

const TTL: Duration = Duration::from_secs(3600);
const TICKET: Duration = Duration::from_secs(2);
const WAITERS: usize = 20;

fn claim() -> Claim {
    Claim::new(Name::new("x").unwrap(), Mode::Exclusive, TTL, "waits")
}

/// The child: many that wait, each in its `wait`, until somebody ends it.
pub(crate) fn wait() {
    let (child, directory) = told();
    runtime().block_on(async {
        let store = Sqlite::open(directory.join("locks.db")).await.unwrap();
        let claims: Vec<_> = (0..WAITERS).map(|_| claim().queued(TICKET)).collect();
        for claim in &claims {
            assert!(matches!(store.try_acquire(claim).await.unwrap(), Attempt::Busy(_)));
        }
        Log::append(&directory.join(format!("log-{child}"))).line("waiting");
        futures_util::future::join_all(claims.iter().map(|claim| store.wait(claim))).await;
    });
}

/// The child: one that waits, and looks by itself only after an hour.
pub(crate) fn wait_for_push() {
    let (_, directory) = told();
    let log = Log::append(&directory.join("log-push"));
    runtime().block_on(async {
        let builder = Sqlite::builder(directory.join("locks.db")).look_every(Duration::from_secs(3600));
        let store = builder.open().await.unwrap();
        let claim = claim().queued(TTL);
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Busy(_)));
        log.line("waiting");
        assert!(matches!(store.wait(&claim).await.unwrap(), Wake::Granted(_)));
        log.line("granted");
    });
}

#[test]
fn a_release_wakes_a_waiter_in_another_process_by_push_alone() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log-push");
    let lines_are = async |count: usize| {
        let began = Instant::now();
        while lines(&log).len() < count {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?} after 20 s", lines(&log));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    runtime().block_on(async {
        let store = Sqlite::open(directory.path().join("locks.db")).await.unwrap();
        let held = claim();
        assert!(matches!(store.try_acquire(&held).await.unwrap(), Attempt::Granted(_)));
        let _child = start("push", "", directory.path());
        lines_are(1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.release(&Release::new(held.name.clone(), held.id)).await.unwrap();
        lines_are(2).await;
    });
}

async fn length(store: &Sqlite) -> u64 {
    let query = Query::Name(Name::new("x").unwrap());
    store.inspect(&query).await.unwrap().items[0].queue_length
}

#[test]
fn places_live_as_long_as_their_process_and_a_ticket_longer() {
    for end in [Signal::KILL, Signal::STOP] {
        let directory = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let store = Sqlite::open(directory.path().join("locks.db")).await.unwrap();
            assert!(matches!(store.try_acquire(&claim()).await.unwrap(), Attempt::Granted(_)));
            let child = start("wait", "a", directory.path());
            while lines(&directory.path().join("log-a")).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // Far longer than a ticket lasts, and nobody in the child comes back to keep its place.
            tokio::time::sleep(TICKET * 2).await;
            assert_eq!(length(&store).await, WAITERS as u64, "somebody lost its place");
            child.signal(end);
            let ended = Instant::now();
            while length(&store).await > 0 {
                let late = ended.elapsed().saturating_sub(TICKET);
                assert!(
                    late < Duration::from_secs(1),
                    "the places outlive their process by a ticket and {late:?}"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}
