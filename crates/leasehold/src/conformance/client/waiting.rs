//! Checks of waiting for a lock, and of giving up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Backend as _, Mode};
use crate::cancel::Cancel;
use crate::client::locks::Locks;
use crate::conformance::trial::{Shown, Trial, believed_until, fails, granted};
use crate::conformance::{Failure, check_list, ensure};
use crate::engine::held::GuardState;
use crate::error::{Error, ErrorKind};
use crate::fence::Fence;

use super::{gets_it, is_released, left_by_itself, nobody_waits};

check_list! { Client:
    a_lock_waits_and_is_handed_over_with_a_higher_fence => "1 5 I2 J1";
    try_lock_is_one_attempt_and_none_while_held => "1 J6";
    try_lock_for_waits_as_long_as_asked_and_leaves_no_place => "J6";
    lock_with_max_wait_times_out_and_says_how_long_it_waited => "J6";
    waiting_acquires_are_served_in_the_order_they_came => "1 J4", Fifo;
    a_waiting_acquire_takes_over_when_the_holder_dies => "3 I2 J2", Ttl;
    a_dropped_wait_leaves_nothing => "8 J6 J7";
    a_cancelled_wait_is_aborted_and_leaves_nothing => "8 J6 J7";
    close_aborts_waiters_and_sends_outstanding_releases => "J6 J7";
    several_names_are_held_all_or_none => "1 J6 J7";
    one_candidate_leads_at_a_time_and_terms_rise => "1 5 I2 J7";
}

async fn a_lock_waits_and_is_handed_over_with_a_higher_fence(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let mut last = Fence::UNFENCED;
    for round in 0..5 {
        let (holds, waits) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let guard = gets_it(&t, holds, &name).await?;
        let next = waits.mutex(name.as_str());
        let waiting = t.spawn(async move { next.lock().await });
        t.waiting(&name, 1).await?;
        ensure!(!waiting.is_finished(), "the lock was given to a second while the first held it");
        let first = guard.fence();
        is_released(guard.release().await?)?;
        let guard = t.soon("the hand-over", waiting).await???;
        let second = guard.fence();
        ensure!(
            !t.judges("fences", t.info.fenced) || (first > last && second > first),
            "fences {last}, {first}, {second} do not rise"
        );
        ensure!(guard.attempts() >= 2, "it waited, and had it in {} attempt", guard.attempts());
        last = second;
        is_released(guard.release().await?)?;
    }
    Ok(())
}

async fn try_lock_is_one_attempt_and_none_while_held(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = one.mutex(name.as_str()).try_lock().await?;
    let Some(guard) = guard else { return Err(Failure::new("a free lock was not given".into())) };
    ensure!(guard.attempts() == 1, "try_lock made {} attempts", guard.attempts());
    ensure!(guard.state() == GuardState::Held, "a fresh guard is {:?}", guard.state());
    for locks in [&one, &other] {
        ensure!(locks.mutex(name.as_str()).try_lock().await?.is_none(), "try_lock gave a lock that is held");
    }
    let info = t.a.view(&name).await?;
    ensure!(info.queue_length == 0, "try_lock left {} in the queue", info.queue_length);
    is_released(guard.release().await?)
}

/// Makes waits of growing length, until one is longer than an answer takes: a client that has had no answer at all
/// does not know that the name is busy. Returns when that wait began, its length, and its answer.
async fn bounded<T, F: Future<Output = crate::Result<T>>>(
    t: &Trial,
    wait: impl Fn(Duration) -> F,
) -> Result<(Instant, Duration, crate::Result<T>), Failure> {
    for asked in t.growing(50) {
        let started = Instant::now();
        match wait(asked).await {
            Err(error) if error.kind() == ErrorKind::NetworkTimeout => {}
            answer => return Ok((started, asked, answer)),
        }
    }
    Err(Failure::new(format!("no answer came within {:?}", t.growing(50).last())))
}

async fn try_lock_for_waits_as_long_as_asked_and_leaves_no_place(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    let mutex = other.mutex(name.as_str());
    let (started, asked, got) = bounded(&t, |asked| {
        let mutex = mutex.clone();
        async move { mutex.try_lock_for(asked).await }
    })
    .await?;
    let waited = started.elapsed();
    ensure!(got?.is_none(), "a lock that is held was given to another");
    let least = asked - Duration::from_millis(2);
    ensure!(waited >= least, "asked to wait for {asked:?}, it waited for {waited:?}");
    nobody_waits(&t, &name, started).await?;
    is_released(guard.release().await?)?;
    left_by_itself(&t, &name, started).await?;
    // With enough time it gets the lock.
    let guard = gets_it(&t, &one, &name).await?;
    let long = t.long();
    let waiting = t.spawn(async move { mutex.try_lock_for(long).await });
    t.waiting(&name, 1).await?;
    is_released(guard.release().await?)?;
    let got = t.soon("the bounded lock", waiting).await???;
    ensure!(got.is_some(), "try_lock_for gave up before its time");
    Ok(())
}

async fn lock_with_max_wait_times_out_and_says_how_long_it_waited(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    let mutex = other.mutex(name.as_str());
    let (started, most, answer) = bounded(&t, |most| {
        let mutex = mutex.clone().max_wait(most);
        async move { mutex.lock().await }
    })
    .await?;
    match answer {
        Err(error) if error.kind() == ErrorKind::Timeout => {
            let (waited, passed) = (error.waited().unwrap_or_default(), started.elapsed());
            ensure!(waited >= most - Duration::from_millis(2), "timed out after {waited:?}, not {most:?}");
            ensure!(
                waited <= passed + passed / 50,
                "it says it waited {waited:?}, and {passed:?} have passed"
            );
        }
        answer => return Err(Failure::new(format!("a lock that is held must time out, not {answer:?}"))),
    }
    nobody_waits(&t, &name, started).await?;
    is_released(guard.release().await?)?;
    left_by_itself(&t, &name, started).await
}

async fn waiting_acquires_are_served_in_the_order_they_came(t: Trial) -> Shown {
    let name = t.name();
    let clients = t.clients();
    let order = Arc::new(AtomicUsize::new(0));
    let guard = gets_it(&t, &clients.0, &name).await?;
    let mut waits = Vec::new();
    for place in 0..6 {
        let mutex = if place % 2 == 0 { &clients.0 } else { &clients.1 }.mutex(name.as_str());
        let order = Arc::clone(&order);
        waits.push(t.spawn(async move {
            let guard = mutex.lock().await?;
            let turn = order.fetch_add(1, Ordering::SeqCst);
            guard.release().await?;
            Ok::<_, Error>(turn)
        }));
        t.waiting(&name, place + 1).await?;
    }
    is_released(guard.release().await?)?;
    for (place, wait) in waits.into_iter().enumerate() {
        let turn = t.soon("the turn of a waiter", wait).await???;
        ensure!(turn == place, "number {place} in line was served as number {turn}");
    }
    Ok(())
}

async fn a_waiting_acquire_takes_over_when_the_holder_dies(t: Trial) -> Shown {
    let name = t.name();
    let sent = Instant::now();
    let grant = granted(t.a.try_acquire(&t.brief(&name, Mode::Exclusive)).await)?;
    let believed = believed_until(sent, &grant)?;
    let locks = t.client(&t.b);
    let guard = gets_it(&t, &locks, &name).await?;
    let answered = Instant::now();
    ensure!(answered >= believed, "the lock was given to another before the holder's own deadline");
    ensure!(
        !t.judges("fences", t.info.fenced) || guard.fence() > grant.fence,
        "after {} came the fence {}",
        grant.fence,
        guard.fence()
    );
    is_released(guard.release().await?)
}

async fn a_dropped_wait_leaves_nothing(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    for _ in 0..3 {
        let guard = gets_it(&t, &one, &name).await?;
        let started = Instant::now();
        let mutex = other.mutex(name.as_str());
        let waiting = t.spawn(async move { mutex.lock().await });
        t.waiting(&name, 1).await?;
        drop(waiting);
        nobody_waits(&t, &name, started).await?;
        is_released(guard.release().await?)?;
        left_by_itself(&t, &name, started).await?;
    }
    // Dropped anywhere: before the answer has come, or with a guard already made.
    for tick in 0..12 {
        let started = Instant::now();
        let mutex = other.mutex(name.as_str());
        drop(tokio::time::timeout(Duration::from_millis(tick / 4), mutex.lock()).await);
        left_by_itself(&t, &name, started).await?;
    }
    Ok(())
}

async fn a_cancelled_wait_is_aborted_and_leaves_nothing(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    let started = Instant::now();
    let cancel = Cancel::new();
    let mutex = other.mutex(name.as_str()).cancel_on(&cancel);
    let waiting = t.spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    t.waiting(&name, 1).await?;
    ensure!(!waiting.is_finished(), "the lock was given to a second while the first held it");
    cancel.cancel();
    fails(t.soon("the end of a cancelled wait", waiting).await??, ErrorKind::Aborted)?;
    nobody_waits(&t, &name, started).await?;
    is_released(guard.release().await?)?;
    left_by_itself(&t, &name, started).await?;
    // An acquire that was cancelled before it began sends nothing.
    fails(mutex.lock().await, ErrorKind::Aborted)?;
    fails(mutex.try_lock().await, ErrorKind::Aborted)?;
    ensure!(!t.a.is_held(&name).await?, "a cancelled acquire holds the lock");
    Ok(())
}

async fn close_aborts_waiters_and_sends_outstanding_releases(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    let started = Instant::now();
    let mutex = other.mutex(name.as_str());
    let waiting = t.spawn(async move { mutex.lock().await });
    t.waiting(&name, 1).await?;
    t.soon("the end of a client that waits", other.close()).await?;
    fails(t.soon("the end of a wait of a closed client", waiting).await??, ErrorKind::Aborted)?;
    fails(other.mutex(name.as_str()).try_lock().await, ErrorKind::Aborted)?;
    nobody_waits(&t, &name, started).await?;
    // A held guard stays held, and can be released.
    one.close().await;
    guard.check()?;
    ensure!(t.b.is_held(&name).await?, "closing the client released a held lock");
    is_released(guard.release().await?)?;
    // What was dropped before is released when `close` is over.
    let third = t.client(&t.a);
    drop(gets_it(&t, &third, &name).await?);
    t.soon("the end of a client", third.close()).await?;
    ensure!(!t.b.is_held(&name).await?, "a guard was dropped and its client closed, and it is held");
    Ok(())
}

async fn several_names_are_held_all_or_none(t: Trial) -> Shown {
    let names = [t.name(), t.name(), t.name()];
    let (one, other) = t.clients();
    let all = one.all(names.each_ref().map(|name| name.as_str()));
    let missing = &names[1];
    let guard = gets_it(&t, &other, missing).await?;
    let started = Instant::now();
    ensure!(all.try_lock().await?.is_none(), "all names were given while another held one of them");
    let rest = [&names[0], &names[2]];
    for name in rest {
        left_by_itself(&t, name, started).await?;
    }
    let waiting = t.spawn({
        let all = all.clone();
        async move { all.lock().await }
    });
    t.waiting(missing, 1).await?;
    is_released(guard.release().await?)?;
    let guard = t.soon("the last name", waiting).await???;
    guard.check()?;
    for name in &names {
        ensure!(other.mutex(name.as_str()).try_lock().await?.is_none(), "one of the names is not held");
    }
    is_released(guard.release().await?)?;
    for name in &names {
        left_by_itself(&t, name, started).await?;
    }
    Ok(())
}

async fn one_candidate_leads_at_a_time_and_terms_rise(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let candidate = |locks: &Locks, owner: &str| locks.election(name.as_str()).owner(owner).metadata("here");
    let (one, other) = (candidate(&one, "one"), candidate(&other, "other"));
    ensure!(one.leader().await?.is_none(), "nobody leads, and this is shown: {:?}", one.leader().await?);
    let mut last = Fence::UNFENCED;
    for round in 0..4 {
        let (leads, waits) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let term = t.soon("the first term", leads.campaign()).await??;
        ensure!(waits.try_campaign().await?.is_none(), "two candidates lead at once");
        let leader = leads.leader().await?;
        let Some(leader) = leader else { return Err(Failure::new("nobody is shown to lead".into())) };
        ensure!(*leader.owner == *term.owner(), "{:?} is shown to lead", leader.owner);
        ensure!(leader.metadata.as_deref() == Some("here"), "it is shown with {:?}", leader.metadata);
        ensure!(leader.term.unwrap_or_default() == term.number(), "its term is shown as {:?}", leader.term);
        let waiting = t.spawn({
            let waits = waits.clone();
            async move { waits.campaign().await }
        });
        t.waiting(&name, 1).await?;
        let first = term.number();
        is_released(term.resign().await?)?;
        let term = t.soon("the next term", waiting).await???;
        let second = term.number();
        term.check()?;
        ensure!(
            !t.judges("fences", t.info.fenced) || (first > last && second > first),
            "terms {last}, {first}, {second} do not rise"
        );
        last = second;
        is_released(term.resign().await?)?;
    }
    t.until(&name, "nobody leads", |info| info.holders.is_empty() && info.queue_length == 0).await?;
    ensure!(one.leader().await?.is_none(), "nobody leads any more, and a leader is shown");
    Ok(())
}
