//! Stores with other abilities.

use leasehold::backend::Busy;
use leasehold::{ErrorKind, GuardState, Mode};
use testkit::faulty::Verb;
use testkit::paused::{Paused, settle};

use crate::{HOUR, ms};

#[tokio::test(start_paused = true)]
async fn a_store_without_queues_is_asked_without_a_place() {
    let world = Paused::with_info(|info| (info.fifo, info.push) = (false, false));
    let holder = world.hold("x", Mode::Exclusive, HOUR).await;
    world.end_after(ms(1000), holder);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    assert!(guard.waited() >= ms(1000) && guard.waited() <= ms(1201));
    assert!(world.store.calls(Verb::TryAcquire).iter().all(|call| call.claim().queue.is_none()));
    // Contention was its last word: there is nothing to give back.
    let _ = world.locks.mutex("x").try_lock_for(ms(500)).await.unwrap();
    settle().await;
    assert_eq!(world.store.count(Verb::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_without_fences_needs_to_be_allowed() {
    let world = Paused::with_info(|info| info.fenced = false);
    assert_eq!(world.locks.mutex("x").lock().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(world.store.log().is_empty());
    let guard = world.locks.mutex("x").allow_unfenced(true).lock().await.unwrap();
    assert!(guard.fence().is_unfenced());
    tokio::time::sleep(ms(90_000)).await;
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
}

#[tokio::test(start_paused = true)]
async fn the_helper_gives_up_by_itself_where_it_would_have_to_poll() {
    for push in [false, true] {
        let world = Paused::with_info(|info| info.push = push);
        let holder = world.hold("x", Mode::Exclusive, HOUR).await;
        world.end_after(ms(60_000), holder);
        let result = world.locks.mutex("x").with_lock(async |_| Ok::<_, leasehold::Error>(())).await;
        if push {
            result.unwrap();
            assert_eq!(world.elapsed(), ms(60_000));
        } else {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
            assert!(world.elapsed() <= ms(5000) && world.store.count(Verb::TryAcquire) <= 11);
        }
    }
}

#[test]
fn busy_can_say_that_nothing_is_known() {
    let busy = Busy::unknown();
    assert!(busy.retry_in.is_none() && busy.place.is_none() && busy.owner.is_none());
}
