//! The three kinds of locks on the memory store, as a user sees them.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backends::memory::Memory;
use leasehold::clock::TokioClock;
use leasehold::{ErrorKind, GuardState, Locks, Mode};
use testkit::until::{in_time, until_async};
use tokio::runtime::Handle;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test]
async fn two_mutex_objects_of_one_name_exclude_each_other() {
    let locks = Locks::connect("memory:").await.unwrap();
    let (a, b) = (locks.mutex("x").owner("a"), locks.mutex("x").owner("b"));
    let guard = a.try_lock().await.unwrap().unwrap();
    assert!(b.try_lock().await.unwrap().is_none());
    assert_eq!(
        (guard.state(), guard.mode(), guard.owner(), guard.attempts()),
        (GuardState::Held, Mode::Exclusive, "a", 1)
    );
    let waiting = tokio::spawn(async move { b.lock().await });
    until_async("it waits", async || locks.inspect("x").await.unwrap().queue_length == 1).await;
    tokio::time::sleep(ms(20)).await;
    assert!(!waiting.is_finished());
    let first = guard.fence();
    drop(guard);
    let second = in_time("the hand-over", waiting).await.unwrap().unwrap();
    assert!(second.fence() > first);
    assert!(second.waited() >= ms(20) && second.attempts() >= 2);
    assert_eq!(second.release().await.unwrap(), GuardState::Released);
}

#[tokio::test]
async fn lock_with_max_wait_times_out_and_says_how_long_it_waited() {
    let locks = Locks::connect("memory:").await.unwrap();
    let _held = locks.mutex("x").lock().await.unwrap();
    let error = locks.mutex("x").max_wait(ms(30)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.waited().unwrap() >= ms(30));
    assert!(locks.mutex("x").try_lock_for(ms(10)).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn dead_holders_with_a_short_ttl_are_followed_within_a_second() {
    let clock = Arc::new(TokioClock::new());
    let memory = Memory::with_clock(clock.clone());
    let locks = Locks::builder(Arc::new(memory)).clock(clock).runtime(Handle::current()).build();
    let ttl = ms(600);
    // Plain leases that nothing renews or releases: each holder dies at once.
    let waiting: Vec<_> = (0..6)
        .map(|_| {
            let leasing = locks.leasing("x").ttl(ttl);
            tokio::spawn(async move {
                leasing.acquire().await.unwrap();
                tokio::time::Instant::now()
            })
        })
        .collect();
    let mut granted = Vec::new();
    for task in waiting {
        granted.push(task.await.unwrap());
    }
    granted.sort();
    for pair in granted.windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap >= ttl && gap <= ttl + ms(1010), "the next came {gap:?} after a lease of {ttl:?}");
    }
}
