//! Notes in paused time: what a guard checks before it writes one, and what lost and late answers do to it.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::time::Duration;

use leasehold::backend::{Backend as _, NewNote, Renewal};
use leasehold::{ErrorKind, GuardState, Locks, MAX_NOTE_BYTES};
use testkit::faulty::{Act, Verb};
use testkit::paused::Paused;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The note of `x`, as another client reads it.
async fn note(world: &Paused) -> Option<String> {
    world.other().note("x").await.unwrap().map(|note| note.text.to_string())
}

async fn is_free(locks: &Locks) {
    while locks.is_locked("x").await.unwrap() {
        tokio::time::sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_note_is_refused_before_anything_is_sent() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    let long = "x".repeat(MAX_NOTE_BYTES + 1);
    for (bad, hint) in [(long.as_str(), "write at most 1024 bytes"), ("a\0b", "leave it out, or encode it")] {
        let error = guard.write_note(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_eq!((world.store.count(Verb::Renew), guard.state()), (0, GuardState::Held));
    guard.write_note("x".repeat(MAX_NOTE_BYTES)).await.unwrap();
    // A release that cannot write releases all the same.
    let error = guard.release_with_note(long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    is_free(&world.other()).await;
    assert_eq!(note(&world).await.map(|note| note.len()), Some(MAX_NOTE_BYTES));
}

#[tokio::test(start_paused = true)]
async fn a_store_without_notes_is_named_in_the_error() {
    let world = Paused::with_info(|info| info.notes = false);
    let guard = world.locks.mutex("x").lock().await.unwrap();
    let errors = [guard.write_note("a").await.unwrap_err(), world.locks.note("x").await.unwrap_err()];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().starts_with("memory: keeps no notes"), "{error}");
    }
    let looks = world.store.calls(Verb::Other).len();
    assert_eq!((world.store.count(Verb::Renew), looks, guard.state()), (0, 0, GuardState::Held));
    assert_eq!(guard.release_with_note("b").await.unwrap_err().kind(), ErrorKind::Unsupported);
    is_free(&world.other()).await;
}

#[tokio::test(start_paused = true)]
async fn renewals_in_the_background_write_no_note() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    guard.write_note("first").await.unwrap();
    // As another process with the same lease does it.
    let mut renewal = Renewal::new(guard.name().clone(), guard.lease_id(), ms(3000));
    renewal.note = Some(NewNote::new("second", 2).unwrap());
    world.memory.renew(&[renewal]).await.remove(0).unwrap();
    tokio::time::sleep(ms(9500)).await;
    let calls = world.store.calls(Verb::Renew);
    assert!(calls.len() > 8, "{} renewals", calls.len());
    assert!(calls[1..].iter().flat_map(|call| call.renewals()).all(|renewal| renewal.note.is_none()));
    assert_eq!(note(&world).await.as_deref(), Some("second"));
    guard.release().await.unwrap();
    assert_eq!(note(&world).await.as_deref(), Some("second"));
}

#[tokio::test(start_paused = true)]
async fn a_note_that_arrives_late_replaces_no_later_one() {
    let world = Paused::with(|_| {}, |builder| builder.request_timeout(ms(500)));
    let guard = world.locks.mutex("x").ttl(ms(30_000)).lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::Late(ms(2000))]);
    assert_eq!(guard.write_note("early").await.unwrap_err().kind(), ErrorKind::NetworkTimeout);
    assert_eq!(guard.state(), GuardState::AtRisk);
    guard.write_note("late").await.unwrap();
    assert_eq!(guard.state(), GuardState::Held);
    tokio::time::sleep(ms(3000)).await;
    assert_eq!(note(&world).await.as_deref(), Some("late"));
}

#[tokio::test(start_paused = true)]
async fn writing_again_after_a_lost_answer_is_harmless() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.store.plan(Verb::Renew, [Act::LostAfter(ErrorKind::Unavailable)]);
    assert_eq!(guard.write_note("once").await.unwrap_err().kind(), ErrorKind::Unavailable);
    guard.write_note("once").await.unwrap();
    assert_eq!(note(&world).await.as_deref(), Some("once"));
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_has_left_its_note() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").lock().await.unwrap();
    world.store.plan(Verb::Release, [Act::LostAfter(ErrorKind::Unavailable)]);
    assert_eq!(guard.release_with_note("done").await.unwrap(), GuardState::Released);
    assert_eq!((world.store.count(Verb::Release), note(&world).await.as_deref()), (2, Some("done")));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_came_too_late_is_lost_and_left_no_note() {
    let world = Paused::new();
    let lock = world.locks.mutex("x");
    lock.lock().await.unwrap().release_with_note("before").await.unwrap();
    // It had no effect, and then the lease was taken away.
    let guard = lock.lock().await.unwrap();
    world.store.plan(Verb::Release, [Act::Fail(ErrorKind::Unavailable), Act::Gone(leasehold::Gone::Revoked)]);
    assert_eq!(guard.release_with_note("after").await.unwrap(), GuardState::Lost);
    assert_eq!(note(&world).await.as_deref(), Some("before"));
    // Nobody has to look when the first answer says it.
    let guard = lock.lock().await.unwrap();
    world.other().revoke("x", true).await.unwrap();
    let looks = world.store.count(Verb::Other);
    assert_eq!(guard.release_with_note("after").await.unwrap(), GuardState::Lost);
    assert_eq!((world.store.count(Verb::Other), note(&world).await.as_deref()), (looks, Some("before")));
}

#[tokio::test(start_paused = true)]
async fn a_lost_guard_writes_nothing_more() {
    let world = Paused::new();
    let guard = world.locks.mutex("x").ttl(ms(3000)).lock().await.unwrap();
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    guard.lost().await;
    world.store.always(Verb::Renew, Act::Pass);
    let renewals = world.store.count(Verb::Renew);
    assert_eq!(guard.write_note("late").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(world.store.count(Verb::Renew), renewals);
    assert_eq!(guard.release_with_note("late").await.unwrap(), GuardState::Lost);
    assert_eq!(note(&world).await, None);
}

#[tokio::test(start_paused = true)]
async fn notes_of_an_adopted_lease_come_after_those_before() {
    let world = Paused::new();
    let mut guard = world.locks.mutex("x").lock().await.unwrap();
    for round in 0..3 {
        for text in ["a", "b", "c"] {
            let text = format!("{text} of {round}");
            guard.write_note(text.as_str()).await.unwrap();
            assert_eq!(note(&world).await, Some(text));
        }
        guard = world.other().adopt(guard.into_lease()).await.unwrap();
    }
    assert_eq!(guard.release_with_note("").await.unwrap(), GuardState::Released);
    assert_eq!(note(&world).await, None, "an empty text clears it");
    assert!(world.other().inspect("x").await.unwrap().note.unwrap().text.is_empty());
}

#[test]
fn blocking_callers_write_and_read_notes() {
    let locks = leasehold::blocking::Locks::from(Locks::new(leasehold::backends::memory::Memory::new()));
    let guard = locks.mutex("x").lock().unwrap();
    guard.write_note("at work").unwrap();
    assert_eq!(&*locks.note("x").unwrap().unwrap().text, "at work");
    let fence = guard.fence();
    assert_eq!(guard.release_with_note("done").unwrap(), GuardState::Released);
    let note = locks.note("x").unwrap().unwrap();
    assert_eq!((&*note.text, note.fence), ("done", fence));
}
