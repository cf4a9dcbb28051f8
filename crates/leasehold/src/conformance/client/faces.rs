//! Checks of the three kinds of locks, and what they keep apart under stress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use crate::backend::Mode;
use crate::conformance::trial::{Shown, Trial, fails};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::{Error, ErrorKind};

use super::{gets_it, is_released, left_by_itself};

check_list! { Client:
    a_mutex_is_the_write_side_of_the_rwlock_of_its_name => "1 I11", Shared;
    readers_share_and_a_writer_waits_for_all_of_them => "1 I2", Shared;
    a_downgraded_guard_lets_readers_in_and_keeps_its_fence => "1 4", Shared, Downgrade;
    another_kind_or_limit_is_a_mismatch => "I11", Permits(3);
    what_the_store_cannot_do_is_unsupported => "I11", Lack;
    a_semaphore_never_has_more_holders_than_permits => "1 I9", Permits(3);
    readers_never_meet_a_writer_under_stress => "1 I1 J5", Shared;
    an_unprotected_counter_is_never_miscounted_under_stress => "1 5 I1 I3";
}

async fn a_mutex_is_the_write_side_of_the_rwlock_of_its_name(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = gets_it(&t, &one, &name).await?;
    ensure!(
        other.rwlock(name.as_str()).try_read().await?.is_none(),
        "a reader entered while a mutex was held"
    );
    ensure!(
        other.rwlock(name.as_str()).try_write().await?.is_none(),
        "a writer entered while a mutex was held"
    );
    is_released(guard.release().await?)?;
    let reader = other.rwlock(name.as_str()).read().await?;
    ensure!(
        one.mutex(name.as_str()).try_lock().await?.is_none(),
        "a mutex was given while a reader was inside"
    );
    is_released(reader.release().await?)
}

async fn readers_share_and_a_writer_waits_for_all_of_them(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let mut readers = Vec::new();
    for locks in [&one, &other, &one] {
        let lock = locks.rwlock(name.as_str());
        let reader = t.soon("a reader beside readers", lock.read()).await??;
        ensure!(reader.mode() == Mode::Shared, "a reader is {}", reader.mode());
        readers.push(reader);
    }
    let writer = other.rwlock(name.as_str());
    let waiting = t.spawn(async move { writer.write().await });
    t.waiting(&name, 1).await?;
    if t.info.fifo {
        let late = one.rwlock(name.as_str()).try_read().await?;
        ensure!(late.is_none(), "a reader overtook a waiting writer");
    }
    for reader in readers {
        ensure!(!waiting.is_finished(), "a writer entered while a reader was inside");
        is_released(reader.release().await?)?;
    }
    let writer = t.soon("the writer after the last reader", waiting).await???;
    ensure!(one.rwlock(name.as_str()).try_read().await?.is_none(), "a reader entered beside a writer");
    is_released(writer.release().await?)
}

async fn a_downgraded_guard_lets_readers_in_and_keeps_its_fence(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let writer = one.rwlock(name.as_str()).write().await?;
    let fence = writer.fence();
    let lock = other.rwlock(name.as_str());
    let waiting = t.spawn(async move { lock.read().await });
    t.waiting(&name, 1).await?;
    ensure!(!waiting.is_finished(), "a reader entered while a writer was inside");
    writer.downgrade().await?;
    ensure!(writer.mode() == Mode::Shared, "after the downgrade the guard is {}", writer.mode());
    ensure!(writer.fence() == fence, "the downgrade changed the fence {fence} to {}", writer.fence());
    let reader = t.soon("the reader after the downgrade", waiting).await???;
    ensure!(other.rwlock(name.as_str()).try_write().await?.is_none(), "a writer entered beside readers");
    writer.downgrade().await?; // once more does nothing
    writer.check()?;
    is_released(writer.release().await?)?;
    is_released(reader.release().await?)
}

async fn another_kind_or_limit_is_a_mismatch(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = t.clients();
    let guard = one.semaphore(name.as_str(), 2).acquire().await?;
    fails(other.mutex(name.as_str()).try_lock().await, ErrorKind::Mismatch)?;
    fails(other.mutex(name.as_str()).lock().await, ErrorKind::Mismatch)?;
    fails(other.semaphore(name.as_str(), 3).acquire().await, ErrorKind::Mismatch)?;
    is_released(guard.release().await?)?;
    left_by_itself(&t, &name, Instant::now()).await?;
    is_released(gets_it(&t, &other, &name).await?.release().await?)
}

async fn what_the_store_cannot_do_is_unsupported(t: Trial) -> Shown {
    let name = t.name();
    let locks = t.client(&t.a);
    let unsupported = ErrorKind::Unsupported;
    if !t.info.shared {
        fails(locks.rwlock(name.as_str()).try_read().await, unsupported)?;
    }
    if t.info.max_permits == 0 {
        fails(locks.semaphore(name.as_str(), 1).try_acquire().await, unsupported)?;
    }
    if !t.info.revoke {
        fails(locks.revoke(name.as_str(), true).await, unsupported)?;
    }
    let guard = gets_it(&t, &locks, &name).await?;
    if !t.info.downgrade {
        fails(guard.downgrade().await, unsupported)?;
    }
    if !t.info.notes {
        fails(guard.write_note("note").await, unsupported)?;
        fails(locks.note(name.as_str()).await, unsupported)?;
    }
    if !t.info.find_by_id {
        fails(locks.owns(guard.lease_id()).await, unsupported)?;
    }
    is_released(guard.release().await?)?;
    if !t.info.fenced {
        fails(locks.mutex(name.as_str()).allow_unfenced(false).try_lock().await, unsupported)?;
    }
    Ok(())
}

async fn a_semaphore_never_has_more_holders_than_permits(t: Trial) -> Shown {
    let name = t.name();
    let clients = t.clients();
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..9)
        .map(|number| {
            let semaphore = if number % 2 == 0 { &clients.0 } else { &clients.1 }.semaphore(name.as_str(), 3);
            let inside = Arc::clone(&inside);
            let rounds = t.rounds(12);
            t.spawn(async move {
                let mut most = 0;
                for _ in rounds {
                    let guard = semaphore.acquire().await?;
                    most = most.max(inside.fetch_add(1, Ordering::SeqCst) + 1);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await?;
                }
                Ok::<_, Error>(most)
            })
        })
        .collect();
    for task in tasks {
        let most = t.soon("the end of the stress", task).await???;
        ensure!(most <= 3, "{most} were inside with 3 permits");
    }
    // All permits are free again, and no more than that.
    let mut guards = Vec::new();
    for _ in 0..3 {
        let Some(guard) = clients.0.semaphore(name.as_str(), 3).try_acquire().await? else {
            return Err(Failure::new(format!("at rest only {} of 3 permits are free", guards.len())));
        };
        guards.push(guard);
    }
    let more = clients.1.semaphore(name.as_str(), 3).try_acquire().await?;
    ensure!(more.is_none(), "a fourth of 3 permits was given");
    Ok(())
}

async fn readers_never_meet_a_writer_under_stress(t: Trial) -> Shown {
    let name = t.name();
    let clients = t.clients();
    // Readers count one, a writer counts a thousand.
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let lock = if number % 2 == 0 { &clients.0 } else { &clients.1 }.rwlock(name.as_str());
            let inside = Arc::clone(&inside);
            let rounds = t.rounds(15);
            t.spawn(async move {
                let writes = number % 4 == 0;
                let mut worst = 0;
                for _ in rounds {
                    let guard = if writes { lock.write().await? } else { lock.read().await? };
                    let weight = if writes { 1000 } else { 1 };
                    let before = inside.fetch_add(weight, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(weight, Ordering::SeqCst);
                    if writes || before >= 1000 {
                        worst = worst.max(before);
                    }
                    guard.release().await?;
                }
                Ok::<_, Error>(worst)
            })
        })
        .collect();
    for task in tasks {
        let met = t.soon("the end of the stress", task).await???;
        ensure!(
            met == 0,
            "a writer was inside together with others (1000 each writer, 1 each reader): {met}"
        );
    }
    Ok(())
}

async fn an_unprotected_counter_is_never_miscounted_under_stress(t: Trial) -> Shown {
    let name = t.name();
    let clients = t.clients();
    let counter = Arc::new(AtomicU64::new(0));
    let fence = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let mutex = if number % 2 == 0 { &clients.0 } else { &clients.1 }.mutex(name.as_str());
            let (counter, fence) = (Arc::clone(&counter), Arc::clone(&fence));
            let rounds = t.rounds(50);
            t.spawn(async move {
                let (mut done, mut stale) = (0, 0);
                for _ in rounds {
                    let guard = mutex.lock().await?;
                    // Read, wait, write: only the lock keeps two of these apart.
                    let seen = counter.load(Ordering::SeqCst);
                    let before = fence.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::SeqCst);
                    fence.store(guard.fence().get(), Ordering::SeqCst);
                    stale += u32::from(guard.fence().get() <= before);
                    done += 1;
                    guard.release().await?;
                }
                Ok::<_, Error>((done, stale))
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        let (done, stale) = t.soon("the end of the stress", task).await???;
        ensure!(
            stale == 0 || !t.judges("fences", t.info.fenced),
            "{stale} times a fence was not above the one before"
        );
        total += done;
    }
    let counted = counter.load(Ordering::SeqCst);
    ensure!(counted == total, "{total} increments under the lock, and {counted} were counted");
    Ok(())
}
