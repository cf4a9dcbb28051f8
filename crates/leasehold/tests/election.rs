//! Leader election: one leader at a time, terms that rise, and work that ends with its term.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::backends::memory::Memory;
use leasehold::{Election, Error, ErrorKind, Fence, GuardState, Locks, LostReason, Mode, Term};
use testkit::faulty::{Act, Verb};
use testkit::hand::Hand;
use testkit::paused::{Paused, believed, poll_at_most, settle, tasks};

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The error of the work itself.
fn own_error() -> Error {
    Error::new(ErrorKind::Internal, "the work failed")
}

/// What must happen soon, in paused time: an hour is enough for everything here.
async fn soon<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(HOUR, work).await.expect("it happens within an hour")
}

/// Whether no client leads or waits.
async fn nobody(world: &Paused) -> bool {
    settle().await;
    world.is_free("leader").await
}

#[tokio::test(start_paused = true)]
async fn one_candidate_leads_and_others_wait_in_order() {
    let world = Paused::new();
    let one = world.locks.election("leader");
    let term = one.try_campaign().await.unwrap().unwrap();
    assert!(term.is_leading());
    assert_eq!((one.name(), term.name().as_str(), term.state()), ("leader", "leader", GuardState::Held));
    assert!(one.try_campaign().await.unwrap().is_none(), "one candidate is one leader");
    let other = world.other().election("leader");
    assert!(other.try_campaign().await.unwrap().is_none());
    assert!(other.try_campaign_for(ms(500)).await.unwrap().is_none());
    assert_eq!(world.elapsed(), ms(500));
    let error = other.clone().max_wait(ms(700)).campaign().await.unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Timeout, "leader"));
    assert_eq!(error.waited(), Some(ms(700)));

    let mut last = term.number();
    let candidates: Vec<_> =
        ["first", "second", "third"].map(|owner| (owner, other.clone().owner(owner))).into();
    let mut waiting = Vec::new();
    for (_, candidate) in &candidates {
        let candidate = candidate.clone();
        waiting.push(tokio::spawn(async move { candidate.campaign().await }));
        settle().await;
    }
    tokio::time::sleep(HOUR).await;
    let mut leading = term;
    for ((owner, _), waiting) in candidates.iter().zip(waiting) {
        assert!(!waiting.is_finished() && leading.is_leading());
        assert_eq!(leading.resign().await.unwrap(), GuardState::Released);
        leading = soon(waiting).await.unwrap().unwrap();
        assert_eq!(leading.owner(), *owner);
        assert!(leading.number() > last, "terms rise");
        last = leading.number();
    }
    drop(leading);
    assert!(nobody(&world).await);
}

#[tokio::test(start_paused = true)]
async fn an_election_adds_no_call_to_the_lock_beneath_it() {
    let world = Paused::new();
    let election = world.locks.election("leader");
    let term = election.campaign().await.unwrap();
    assert_eq!(world.store.log().len(), 1);
    tokio::time::sleep(ms(25_000)).await;
    let renewals = world.store.count(Verb::Renew);
    assert_eq!((renewals, world.store.log().len()), (2, 3));
    assert!(term.is_leading() && term.valid_for() > Some(ms(20_000)));
    term.check().unwrap();
    term.run(async {}).await.unwrap();
    assert_eq!(world.store.log().len(), 3, "it asks nobody whether it leads");
    election.leader().await.unwrap().unwrap();
    assert_eq!(world.store.log().len(), 4);
    term.resign().await.unwrap();
    assert_eq!(world.store.log().len(), 5);
    election.lead(async |_| Ok::<_, Error>(())).await.unwrap();
    assert_eq!(world.store.log().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn the_next_leads_the_moment_a_term_is_resigned() {
    let world = Paused::new();
    let term = world.locks.election("leader").campaign().await.unwrap();
    let next = world.other().election("leader");
    let waiting = tokio::spawn(async move { next.campaign().await });
    world.until(7_000).await;
    term.resign().await.unwrap();
    let term = soon(waiting).await.unwrap().unwrap();
    assert_eq!((world.elapsed(), term.waited()), (ms(7_000), ms(7_000)));
    // A dropped term as well, and one whose guard is dropped.
    let third = world.locks.election("leader");
    let waiting = tokio::spawn(async move { third.campaign().await });
    settle().await;
    drop(term);
    let term = soon(waiting).await.unwrap().unwrap();
    assert_eq!(world.elapsed(), ms(7_000));
    drop(term.into_guard());
    assert!(nobody(&world).await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_term_cancels_its_work_before_the_next_leads() {
    let world = Paused::new();
    let term = world.locks.election("leader").ttl(ms(3_000)).campaign().await.unwrap();
    let (lost, steps) = (term.lost(), Arc::new(AtomicUsize::new(0)));
    let next = world.other().election("leader");
    let next = tokio::spawn(async move { next.campaign().await });
    settle().await;
    world.store.always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    let work = {
        let steps = Arc::clone(&steps);
        async move {
            loop {
                tokio::time::sleep(ms(10)).await;
                steps.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let error = soon(term.run(work)).await.unwrap_err();
    assert_eq!((error.kind(), error.name().unwrap().as_str()), (ErrorKind::Lost, "leader"));
    let worked = steps.load(Ordering::SeqCst);
    assert!(world.elapsed() <= believed(3_000) && worked > 200, "{:?} {worked}", world.elapsed());
    assert!(!next.is_finished(), "the next leads only after that");
    assert_eq!((soon(lost).await, term.state()), (LostReason::DeadlinePassed, GuardState::Lost));
    assert!(!term.is_leading());
    assert_eq!((term.check().unwrap_err().kind(), term.valid_for()), (ErrorKind::Lost, Some(ms(0))));
    let number = term.number();
    let next = soon(next).await.unwrap().unwrap();
    assert!(world.elapsed() >= ms(3_000) && next.number() > number);
    assert_eq!(steps.load(Ordering::SeqCst), worked);
    assert_eq!(term.resign().await.unwrap(), GuardState::Lost);
    assert!(next.is_leading(), "a late resignation is of one's own term");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_term_is_lost_with_the_reason() {
    let world = Paused::new();
    let term = world.locks.election("leader").ttl(ms(3_000)).campaign().await.unwrap();
    world.other().revoke("leader", true).await.unwrap();
    assert!(matches!(soon(term.lost()).await, LostReason::Refused(_)));
    assert!(!term.is_leading() && world.elapsed() <= ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn everyone_can_see_the_leader() {
    let world = Paused::new();
    let candidate = |address: &str| world.locks.election("leader").owner("one").metadata(address);
    let watcher = world.other().election("leader");
    assert_eq!(watcher.leader().await.unwrap(), None);
    let term = candidate("10.0.0.7:9000").campaign().await.unwrap();
    world.until(4_000).await;
    let leader = watcher.leader().await.unwrap().unwrap();
    assert_eq!((leader.term, &*leader.owner), (Some(term.number()), "one"));
    assert_eq!(leader.metadata.as_deref(), Some("10.0.0.7:9000"));
    assert_eq!(leader.left, Some(ms(26_000)));
    assert_eq!(term.owner(), "one");
    term.resign().await.unwrap();
    assert_eq!(watcher.leader().await.unwrap(), None);
    let next = candidate("10.0.0.8:9000").campaign().await.unwrap();
    assert_eq!(watcher.leader().await.unwrap().unwrap().term, Some(next.number()));
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_has_passed_is_not_the_leader() {
    let world = Paused::new();
    let watcher = world.locks.election("leader");
    // A process that was stopped renews nothing.
    world.hold("leader", Mode::Exclusive, ms(3_000)).await;
    world.until(2_999).await;
    assert_eq!(watcher.leader().await.unwrap().unwrap().left, Some(ms(1)));
    world.until(3_000).await;
    assert_eq!(watcher.leader().await.unwrap(), None);
    // Nor if it passes while the answer is on its way.
    for (time, leads) in [(999, Some(ms(1))), (1_000, None), (1_500, None)] {
        let held = world.hold("leader", Mode::Exclusive, ms(1_000)).await;
        world.store.plan(Verb::Other, [Act::Slow(ms(time))]);
        let leader = watcher.leader().await.unwrap();
        assert_eq!(leader.map(|leader| leader.left), leads.map(Some), "{time}");
        let _ = world.other().backend().release(&held).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_client_that_holds_the_name_alone_leads() {
    let world = Paused::new();
    let election = world.locks.election("leader");
    for mode in [Mode::Shared, Mode::Permit { limit: 1 }] {
        let held = world.hold("leader", mode, HOUR).await;
        assert_eq!(election.leader().await.unwrap(), None, "{mode}");
        world.end(&held).await;
    }
    // The mutex of the name is the same lock.
    let guard = world.other().mutex("leader").lock().await.unwrap();
    assert!(election.try_campaign().await.unwrap().is_none());
    assert_eq!(election.leader().await.unwrap().unwrap().term, Some(guard.fence()));
    guard.release().await.unwrap();
    let permit = world.other().semaphore("leader", 2).acquire().await.unwrap();
    assert_eq!(election.try_campaign().await.unwrap_err().kind(), ErrorKind::Mismatch);
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn without_ttl_or_fences_the_leader_has_neither() {
    let world = Paused::with(
        |info| (info.liveness, info.fenced) = (Liveness::Session, false),
        |builder| builder.allow_unfenced(true),
    );
    let election = world.locks.election("leader");
    let term = election.campaign().await.unwrap();
    assert_eq!((term.number(), term.valid_for()), (Fence::UNFENCED, None));
    assert!(term.is_leading());
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!(&*leader.owner, term.owner());
}

#[tokio::test(start_paused = true)]
async fn lead_resigns_and_tells_of_a_loss_in_the_last_step() {
    let clock = Hand::default();
    let memory = Memory::with_clock(Arc::new(clock.clone()));
    let builder = Locks::builder(Arc::new(memory)).clock(Arc::new(clock.clone()));
    let locks = builder.runtime(tokio::runtime::Handle::current()).ttl(ms(1_000)).build();
    let election = locks.election("leader");
    let number = election.lead(async |term| Ok::<_, Error>(term.number())).await.unwrap();
    let failed = election.lead(async |_| Err::<(), _>(own_error()));
    assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Internal, "the work's own error");
    // The work blocks its thread for a whole ttl, as a stopped process would, and then ends well.
    let late = async |_: &Term| {
        clock.advance(ms(1_000));
        Ok::<_, Error>(())
    };
    assert_eq!(election.lead(late).await.unwrap_err().kind(), ErrorKind::Lost);
    let next = election.try_campaign().await.unwrap().unwrap();
    assert!(next.number() > number, "every term was resigned");
}

#[tokio::test(start_paused = true)]
async fn a_bad_name_or_option_is_refused_before_any_call() {
    let world = Paused::new();
    let cases: [(Election, &str); 3] = [
        (world.locks.election(""), "must not be empty"),
        (world.locks.election("leader").ttl(ms(1)), "ttl"),
        (world.locks.election("leader").max_hold(ms(1)), "max_hold"),
    ];
    for (election, says) in cases {
        for result in [election.try_campaign().await, election.campaign().await.map(Some)] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    let error = world.locks.election("").leader().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(world.store.log().is_empty());
}

/// Drops a campaign at each of its polls, in several situations.
#[tokio::test(start_paused = true)]
async fn a_campaign_dropped_anywhere_leaves_nothing() {
    let lost = Act::LostAfter(ErrorKind::NetworkTimeout);
    let scenes: [(bool, Vec<Act>); 4] = [
        (false, vec![]),
        (false, vec![Act::Slow(ms(30)), lost]),
        (true, vec![Act::Pass, Act::Slow(ms(30))]),
        (true, vec![Act::SlowBefore(ms(30)), lost, Act::Pass, Act::Slow(ms(30))]),
    ];
    for (busy, attempts) in scenes {
        for polls in 0.. {
            assert!(polls < 200, "it does not end");
            let base = tasks();
            let world = Paused::with(|_| {}, |builder| builder.request_timeout(ms(80)));
            if busy {
                let holder = world.hold("leader", Mode::Exclusive, HOUR).await;
                world.end_after(ms(250), holder);
            }
            world.store.plan(Verb::TryAcquire, attempts.clone());
            let campaign = async {
                world.locks.election("leader").lead(async |_| Ok::<_, Error>(())).await.unwrap();
            };
            let done = poll_at_most(polls, campaign).await.is_some();
            tokio::time::sleep(ms(1_000)).await;
            assert!(nobody(&world).await, "{busy} {attempts:?} after {polls} polls");
            drop(world);
            settle().await;
            assert_eq!(tasks(), base, "a task is left after {polls} polls");
            if done {
                break;
            }
        }
    }
}

/// Candidates that lead for a moment, on several threads.
#[test]
fn many_candidates_lead_one_after_the_other() {
    let locks = Locks::new(Memory::new());
    let (leading, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(parking_lot::Mutex::new(Fence::UNFENCED)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let candidates: Vec<_> = (0..6)
        .map(|_| {
            let (election, leading, last) =
                (locks.election("leader"), Arc::clone(&leading), Arc::clone(&last));
            runtime.spawn(async move {
                for _ in 0..200 {
                    let term = election.campaign().await.unwrap();
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                    let before = std::mem::replace(&mut *last.lock(), term.number());
                    assert!(before < term.number());
                    tokio::task::yield_now().await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                    term.resign().await.unwrap();
                }
            })
        })
        .collect();
    runtime.block_on(testkit::until::in_time("all candidates led", async {
        for candidate in candidates {
            candidate.await.unwrap();
        }
    }));
}

#[test]
fn blocking_callers_have_the_same() {
    testkit::until::in_time_blocking("all calls return", blocking_calls);
}

fn blocking_calls() {
    let locks = leasehold::blocking::Locks::from(Locks::new(Memory::new()));
    let election = locks.election("leader").owner("one").metadata("here");
    assert_eq!((election.name(), election.leader().unwrap()), ("leader", None));
    let term = election.campaign().unwrap();
    assert!(term.is_leading() && term.valid_for().is_some() && term.lost().now().is_none());
    assert_eq!((term.name().as_str(), term.owner(), term.state()), ("leader", "one", GuardState::Held));
    term.check().unwrap();
    let leader = election.leader().unwrap().unwrap();
    assert_eq!((leader.term, leader.metadata.as_deref()), (Some(term.number()), Some("here")));
    assert!(election.try_campaign().unwrap().is_none());
    assert!(election.try_campaign_for(ms(20)).unwrap().is_none());
    assert_eq!(term.wait_lost_for(ms(20)), None);
    assert_eq!(term.resign().unwrap(), GuardState::Released);
    assert_eq!(election.leader().unwrap(), None);
    let waited = election.lead(|term| Ok::<_, Error>(term.waited().as_secs())).unwrap();
    assert_eq!(waited, 0);
    let failed = election.lead(|_| Err::<(), _>(own_error())).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Internal);
    let term = election.try_campaign().unwrap().unwrap();
    locks.revoke("leader", true).unwrap();
    drop(term.into_async());
    let guard = election.campaign().unwrap().into_guard();
    assert_eq!(guard.release().unwrap(), GuardState::Released);
}
