//! Calls from runtimes that are blocked, gone, or do no I/O: they do not disturb the calls of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::{GuardState, Locks};
use testkit::blocked::Blocked;
use tokio::runtime::{Builder, Runtime};

use crate::support::{Place, in_time, place, until};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn connect(on: &Runtime, place: &Place) -> Locks {
    on.block_on(Locks::connect(&format!("{}&pool_size=2", place.url))).unwrap()
}

#[test]
fn connections_outlive_the_runtimes_of_their_calls() {
    let place = place();
    let first = runtime();
    let locks = connect(&first, &place);
    let guard = first.block_on(locks.mutex("x").lock()).unwrap();
    drop(first);
    for _ in 0..3 {
        let next = runtime();
        next.block_on(async {
            assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
            guard.check().unwrap();
        });
    }
    assert_eq!(runtime().block_on(guard.release()).unwrap(), GuardState::Released);
    let sessions = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%\"{}\"%' AND pid <> pg_backend_pid()",
        place.schema
    );
    assert!(
        place.sql(&sessions).parse::<u32>().unwrap() <= 2,
        "no more than are allowed, from all runtimes together"
    );
}

#[test]
fn a_call_that_is_stuck_on_a_blocked_runtime_holds_up_no_other() {
    let place = place();
    let own = runtime();
    let locks = connect(&own, &place);
    own.block_on(async { locks.mutex("warm").lock().await.unwrap().release().await.unwrap() });
    let stuck = locks.clone();
    let blocked = Blocked::in_call(move || async move {
        stuck.mutex("stuck").lock().await.unwrap().release().await.unwrap();
    });
    own.block_on(async {
        let began = Instant::now();
        for _ in 0..3 {
            locks.mutex("free").lock().await.unwrap().release().await.unwrap();
        }
        // Before a request that is not answered would be given up.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    });
    blocked.go_on();
}

#[test]
fn a_call_whose_runtime_ends_under_it_leaves_nothing() {
    let place = place();
    let (first, second) = (runtime(), runtime());
    let locks = connect(&first, &place);
    for _ in 0..5 {
        let gone = runtime();
        let taken = locks.clone();
        gone.spawn(async move { taken.mutex("x").lock().await });
        // One turn: the call is sent.
        gone.block_on(tokio::task::yield_now());
        drop(gone);
    }
    second.block_on(async {
        until("nothing is left", async || {
            place.sql(
                "SELECT (SELECT count(*) FROM leasehold.leases) + (SELECT count(*) FROM leasehold.tickets)",
            ) == "0"
        })
        .await;
        in_time("it is free", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
    });
}

#[test]
fn a_runtime_that_does_no_io_can_lock() {
    let place = place();
    let locks = connect(&runtime(), &place);
    let without = Builder::new_current_thread().enable_time().build().unwrap();
    // Whether it does I/O can only be tried, which prints a panic.
    let tried = Arc::new(AtomicU32::new(0));
    let (others, counted) = (std::panic::take_hook(), Arc::clone(&tried));
    std::panic::set_hook(Box::new(move |panic| {
        if panic.to_string().contains("IO is disabled") {
            counted.fetch_add(1, Ordering::SeqCst);
        } else {
            others(panic);
        }
    }));
    let pair = async |on: &str| locks.mutex(on).lock().await.unwrap().release().await.unwrap();
    for _ in 0..3 {
        without.block_on(async { tokio::join!(pair("x"), pair("y"), pair("z")) });
    }
    assert_eq!(tried.load(Ordering::SeqCst), 1, "once, over all calls and connections");
}
