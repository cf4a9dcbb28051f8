//! Drops every awaiting method at every possible point: nothing is left behind, nothing is lost.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Gone, Guard, GuardState, Mode};
use testkit::faulty::{Act, Answer, Verb};
use testkit::paused::{Paused, poll_at_most, settle, tasks};

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The situation that an acquire meets.
#[derive(Debug, Clone, Default)]
struct Scene {
    /// Another client holds the name, for this long.
    held: Option<u64>,
    attempts: Vec<Act>,
    waits: Vec<Act>,
    releases: Vec<Act>,
}

fn scenes() -> Vec<Scene> {
    let hiccup = Act::Fail(ErrorKind::Unavailable);
    let lost = Act::LostAfter(ErrorKind::NetworkTimeout);
    let (slow, slow_before) = (Act::Slow(ms(30)), Act::SlowBefore(ms(30)));
    let attempts = [
        vec![],
        vec![slow],
        vec![slow_before],
        vec![hiccup, hiccup],
        vec![lost],
        vec![Act::NeverAfter],
        vec![Act::Never, slow],
        vec![Act::Late(ms(700)), slow],
        vec![Act::Late(ms(90)), lost, slow],
        vec![Act::Gone(Gone::Superseded), slow],
        vec![slow, hiccup, slow_before],
    ];
    let waits =
        [vec![], vec![Act::Never], vec![hiccup, hiccup], vec![slow], vec![Act::Gone(Gone::NotFound); 3]];
    let releases = [vec![], vec![hiccup, lost], vec![slow_before]];
    let mut scenes = Vec::new();
    for attempts in &attempts {
        for releases in &releases {
            let free = Scene { attempts: attempts.clone(), releases: releases.clone(), ..Scene::default() };
            scenes.push(free.clone());
            for waits in &waits {
                scenes.push(Scene { held: Some(250), waits: waits.clone(), ..free.clone() });
            }
        }
    }
    scenes
}

/// Plays a scene again and again, each time dropping the future one poll later, until it is done.
async fn drop_everywhere(scene: &Scene, fifo: bool, start: impl AsyncFn(&Paused)) {
    for polls in 0.. {
        let what = format!("after {polls} polls, fifo {fifo}: {scene:?}");
        assert!(polls < 100, "it does not end: {what}");
        let base = tasks();
        let world = Paused::with(|info| info.fifo = fifo, |builder| builder.request_timeout(ms(80)));
        if let Some(time) = scene.held {
            let holder = world.hold("x", Mode::Exclusive, HOUR).await;
            world.end_after(ms(time), holder);
        }
        world.store.plan(Verb::TryAcquire, scene.attempts.clone());
        world.store.plan(Verb::Wait, scene.waits.clone());
        world.store.plan(Verb::Release, scene.releases.clone());
        let done = poll_at_most(polls, start(&world)).await.is_some();
        settle().await;
        if polls == 0 {
            assert!(world.store.log().is_empty(), "nothing is sent before the first poll");
        }
        if scene.releases.is_empty() {
            // At once: no place and no lease, long before they would have ended by themselves.
            let claimed: Vec<_> =
                world.store.calls(Verb::TryAcquire).iter().map(|call| call.claim().id).collect();
            let info = world.look("x").await;
            assert!(!info.holders.iter().any(|holder| claimed.contains(&holder.id)), "{what}");
            assert!(info.waiters.is_empty(), "{what}");
        }
        tokio::time::sleep(ms(2000)).await;
        assert!(world.is_free("x").await, "{what}");
        assert_eq!(world.store.under_way(), 0, "{what}");
        assert!(world.other().mutex("x").try_lock().await.unwrap().is_some(), "{what}");
        drop(world);
        settle().await;
        assert_eq!(tasks(), base, "{what}");
        if done {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lock_leaves_no_lease_no_place_and_no_task() {
    for scene in scenes() {
        for fifo in [true, false] {
            drop_everywhere(&scene, fifo, async |world| {
                drop(world.locks.mutex("x").lock().await.unwrap());
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_bounded_or_single_attempt_leaves_nothing_either() {
    for scene in scenes() {
        drop_everywhere(&scene, true, async |world| {
            drop(world.locks.mutex("x").try_lock_for(ms(300)).await);
        })
        .await;
        drop_everywhere(&scene, true, async |world| {
            drop(world.locks.mutex("x").try_lock().await);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_for_a_read_permit_or_lease_leaves_nothing() {
    for scene in scenes() {
        drop_everywhere(&scene, true, async |world| {
            drop(world.locks.rwlock("x").read().await.unwrap());
        })
        .await;
        drop_everywhere(&scene, true, async |world| {
            let (locks, lease) = (world.locks.clone(), world.locks.leasing("x").acquire().await.unwrap());
            // Plain data, which nothing else will release.
            tokio::spawn(async move { locks.release(&lease).await.unwrap() });
        })
        .await;
        if scene.held.is_none() {
            drop_everywhere(&scene, true, async |world| {
                drop(world.locks.semaphore("x", 2).acquire().await.unwrap());
            })
            .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_with_lock_drops_the_work_and_releases() {
    for scene in scenes() {
        drop_everywhere(&scene, true, async |world| {
            let work = async |guard: &Guard| {
                for _ in 0..3 {
                    assert_eq!(guard.state(), GuardState::Held);
                    tokio::time::sleep(ms(10)).await;
                }
                Ok::<_, Error>(())
            };
            world.locks.mutex("x").with_lock(work).await.unwrap();
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_is_sent_all_the_same_and_takes_effect_once() {
    let hiccup = Act::Fail(ErrorKind::Unavailable);
    let lost = Act::LostAfter(ErrorKind::NetworkTimeout);
    let scenes = [
        vec![],
        vec![Act::Slow(ms(30))],
        vec![Act::SlowBefore(ms(30))],
        vec![hiccup, hiccup, hiccup],
        vec![lost, hiccup],
        vec![Act::NeverAfter],
        vec![Act::Never, Act::Slow(ms(30))],
        vec![Act::Late(ms(300))],
    ];
    for acts in scenes {
        for polls in 0.. {
            let what = format!("after {polls} polls: {acts:?}");
            let base = tasks();
            let world = Paused::with(|_| {}, |builder| builder.request_timeout(ms(80)));
            let guard = world.locks.mutex("x").lock().await.unwrap();
            let (id, signal) = (guard.lease_id(), guard.lost());
            // A release that is late or sent twice does not affect the next holder.
            let next = tokio::spawn({
                let mutex = world.other().mutex("x");
                async move { mutex.lock().await }
            });
            settle().await;
            world.store.plan(Verb::Release, acts.clone());
            let result = poll_at_most(polls, guard.release()).await;
            if let Some(result) = &result {
                assert_eq!(*result.as_ref().unwrap(), GuardState::Released, "{what}");
            }
            let next = next.await.unwrap().unwrap();
            tokio::time::sleep(ms(1000)).await;
            let releases = world.store.calls(Verb::Release);
            assert!(releases.iter().all(|call| call.release().id == id), "{what}");
            let taken = releases.iter().filter(|call| {
                matches!(call.answer, Some((_, Answer::Released(leasehold::backend::Released::Done))))
            });
            assert!(taken.count() <= 1, "{what}");
            let info = world.look("x").await;
            assert_eq!((info.holders.len(), info.holders[0].id), (1, next.lease_id()), "{what}");
            assert_eq!(info.version, 3, "granted, released, granted: {what}");
            assert_eq!(world.store.count(Verb::Renew), 0, "{what}");
            assert_eq!(signal.now(), None, "a release is not a loss");
            let sent = releases.len();
            world.locks.close().await;
            assert_eq!(world.store.count(Verb::Release), sent, "nothing is outstanding: {what}");
            drop((world, next));
            settle().await;
            assert_eq!(tasks(), base, "{what}");
            if result.is_some() {
                break;
            }
            assert!(polls < 100, "it does not end: {what}");
        }
    }
}

/// What can happen to a renewal that a caller asked for.
fn renewals() -> Vec<Vec<Act>> {
    vec![
        vec![],
        vec![Act::Slow(ms(30))],
        vec![Act::SlowBefore(ms(30))],
        vec![Act::Never],
        vec![Act::NeverAfter],
        vec![Act::Late(ms(300))],
        vec![Act::LostAfter(ErrorKind::Unavailable)],
    ]
}

#[tokio::test(start_paused = true)]
async fn a_dropped_adoption_does_not_release_the_lease() {
    for acts in renewals() {
        for polls in 0.. {
            let what = format!("after {polls} polls: {acts:?}");
            let base = tasks();
            let world = Paused::with(|_| {}, |builder| builder.request_timeout(ms(80)));
            let lease = world.other().mutex("x").lock().await.unwrap().into_lease();
            world.store.plan(Verb::Renew, acts.clone());
            let adopted = poll_at_most(polls, world.locks.adopt(lease.clone())).await;
            let done = adopted.is_some();
            tokio::time::sleep(ms(1000)).await;
            assert_eq!(world.look("x").await.holders[0].id, lease.id, "{what}");
            assert_eq!(world.store.count(Verb::Release), 0, "{what}");
            assert!(world.store.count(Verb::Renew) <= 1, "{what}");
            if let Some(Ok(guard)) = adopted {
                assert_eq!(guard.release().await.unwrap(), GuardState::Released);
            } else {
                world.store.plan(Verb::Renew, []);
                assert_eq!(
                    world.locks.adopt(lease).await.unwrap().release().await.unwrap(),
                    GuardState::Released
                );
            }
            drop(world);
            settle().await;
            assert_eq!(tasks(), base, "{what}");
            if done {
                break;
            }
            assert!(polls < 100, "it does not end: {what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_renewal_or_downgrade_leaves_a_true_renewed_guard() {
    type Asking<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
    type Ask = fn(&Guard) -> Asking<'_>;
    let asks: [(&str, Ask); 3] = [
        ("renew_for", |guard| Box::pin(guard.renew_for(ms(60_000)))),
        ("shorten_to", |guard| Box::pin(guard.shorten_to(ms(6000)))),
        ("downgrade", |guard| Box::pin(guard.downgrade())),
    ];
    for (ask, start) in asks {
        for acts in renewals() {
            for polls in 0.. {
                let what = format!("{ask} after {polls} polls: {acts:?}");
                let world = Paused::with(|_| {}, |builder| builder.request_timeout(ms(80)));
                let guard = world.locks.rwlock("x").write().await.unwrap();
                tokio::time::sleep(ms(1000)).await;
                world.store.plan(Verb::Renew, acts.clone());
                let done = poll_at_most(polls, start(&guard)).await.is_some();
                let believes = |what: String| {
                    let (world, guard) = (&world, &guard);
                    async move {
                        let holder = &world.look("x").await.holders[0];
                        assert_eq!(holder.id, guard.lease_id(), "{what}");
                        assert!(holder.grant.left.unwrap() > guard.valid_for().unwrap(), "{what}");
                    }
                };
                believes(what.clone()).await;
                match ask {
                    "downgrade" if polls > 0 => assert_eq!(guard.mode(), Mode::Shared, "{what}"),
                    "shorten_to" if polls > 0 => assert!(guard.valid_for().unwrap() < ms(6000), "{what}"),
                    _ => assert_eq!(guard.mode(), Mode::Exclusive, "{what}"),
                }
                for _ in 0..100 {
                    tokio::time::sleep(ms(997)).await;
                    assert!(guard.check().is_ok(), "{what}");
                    believes(what.clone()).await;
                }
                assert_eq!(guard.state(), GuardState::Held, "{what}");
                assert_eq!(guard.release().await.unwrap(), GuardState::Released);
                if done {
                    break;
                }
                assert!(polls < 100, "it does not end: {what}");
            }
        }
    }
}
