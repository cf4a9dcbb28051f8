//! Checks of the queue of promise 1: which waiter is next.

use std::sync::Arc;
use std::time::Instant;

use crate::backend::{Attempt, Backend as _, Claim, Mode};
use crate::conformance::trial::{
    NOT_FOUND, Shown, Trial, believed_until, busy, done, fails, granted, left, not_done,
};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;

use super::exclusion::permit;

check_list! { Raw:
    queued_claims_are_served_in_the_order_they_came => "1 J4", Fifo, Ttl;
    a_try_neither_overtakes_a_queue_nor_joins_one => "1 J4", Fifo, Ttl;
    a_try_that_could_enter_does_not_overtake_who_cannot => "1 J4 J5", Shared, Fifo, Ttl;
    a_reader_behind_a_waiting_writer_waits => "1 J4 J5", Shared, Fifo, Ttl;
    readers_that_stand_together_enter_together => "1 J4 J5", Shared, Fifo, Ttl;
    a_semaphore_lets_in_as_many_as_there_are_free_permits => "1 I9 J4", Permits(2), Fifo, Ttl;
    the_queue_moves_on_when_a_lease_expires => "1 3 J2", Fifo, Ttl;
    dead_tickets_lose_their_places_together => "1 J2", Fifo, Ttl;
    a_refreshed_ticket_keeps_its_place => "1 J4", Fifo, Ttl;
    a_place_is_kept_while_its_wait_is_pending => "1 J4", KeepsPlaces, Fifo, Ttl;
    a_place_whose_wait_was_dropped_lapses => "1 J2 J6", KeepsPlaces, Fifo, Ttl;
    looking_again_without_queueing_keeps_the_place => "1 J4", Fifo, Ttl;
    a_place_that_is_given_up_frees_the_way => "1 J6", Fifo, Ttl;
    waiters_keep_their_kind => "1 I11", Permits(3), Fifo, Ttl;
}

/// Makes claims queue behind a holder, in this order.
async fn line_up(t: &Trial, waiters: &[&Claim]) -> Shown {
    for (place, waiter) in waiters.iter().enumerate() {
        let answer = busy(t.b.try_acquire(waiter).await)?;
        let (got, should) = (answer.place, place as u64);
        ensure!(got == Some(should), "number {place} in line was told it has the place {got:?}");
        ensure!(answer.queue_length == should + 1, "{} wait, and not {}", should + 1, answer.queue_length);
    }
    Ok(())
}

async fn queued_claims_are_served_in_the_order_they_came(t: Trial) -> Shown {
    let name = t.name();
    let mut holder = t.claim(&name, Mode::Exclusive);
    let waiters: Vec<Claim> = (0..5).map(|_| t.queued(&name, Mode::Exclusive)).collect();
    granted(t.b.try_acquire(&holder).await)?;
    line_up(&t, &waiters.iter().collect::<Vec<_>>()).await?;
    for next in 0..waiters.len() {
        done(t.b.end(&holder).await)?;
        // Whichever asks first, waiters behind the front are not let in.
        for behind in waiters[next + 1..].iter().rev() {
            busy(t.b.try_acquire(behind).await)?;
        }
        granted(t.b.try_acquire(&waiters[next]).await)?;
        holder = waiters[next].clone();
    }
    Ok(())
}

async fn a_try_neither_overtakes_a_queue_nor_joins_one(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    line_up(&t, &[&waiter]).await?;
    let hasty = t.claim(&name, Mode::Exclusive);
    let answer = busy(t.a.try_acquire(&hasty).await)?;
    ensure!(answer.place.is_none(), "a try has a place in the queue: {answer:?}");
    done(t.a.end(&holder).await)?;
    let answer = busy(t.a.try_acquire(&hasty).await)?;
    ensure!(answer.place.is_none(), "a try has a place in the queue: {answer:?}");
    granted(t.b.try_acquire(&waiter).await)?;
    done(t.b.end(&waiter).await)?;
    let info = t.a.view(&name).await?;
    ensure!(info.holders.is_empty() && info.queue_length == 0, "a try joined the queue: {info:?}");
    granted(t.a.try_acquire(&hasty).await)?;
    Ok(())
}

async fn a_try_that_could_enter_does_not_overtake_who_cannot(t: Trial) -> Shown {
    let name = t.name();
    let (reader, writer) = (t.claim(&name, Mode::Shared), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&reader).await)?;
    line_up(&t, &[&writer]).await?;
    let hasty = t.claim(&name, Mode::Shared);
    let answer = busy(t.a.try_acquire(&hasty).await)?;
    ensure!(answer.place.is_none(), "a try has a place in the queue: {answer:?}");
    done(t.a.end(&reader).await)?;
    granted(t.b.try_acquire(&writer).await)?;
    done(t.b.end(&writer).await)?;
    granted(t.a.try_acquire(&hasty).await)?;
    Ok(())
}

async fn a_reader_behind_a_waiting_writer_waits(t: Trial) -> Shown {
    let name = t.name();
    let first = t.claim(&name, Mode::Shared);
    let (writer, reader) = (t.queued(&name, Mode::Exclusive), t.queued(&name, Mode::Shared));
    granted(t.a.try_acquire(&first).await)?;
    line_up(&t, &[&writer, &reader]).await?;
    done(t.a.end(&first).await)?;
    busy(t.b.try_acquire(&reader).await)?;
    granted(t.b.try_acquire(&writer).await)?;
    busy(t.b.try_acquire(&reader).await)?;
    done(t.b.end(&writer).await)?;
    granted(t.b.try_acquire(&reader).await)?;
    Ok(())
}

async fn readers_that_stand_together_enter_together(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.claim(&name, Mode::Exclusive);
    let readers: Vec<Claim> = (0..3).map(|_| t.queued(&name, Mode::Shared)).collect();
    let (writer, last) = (t.queued(&name, Mode::Exclusive), t.queued(&name, Mode::Shared));
    granted(t.a.try_acquire(&holder).await)?;
    line_up(&t, &[&readers[0], &readers[1], &readers[2], &writer, &last]).await?;
    done(t.a.end(&holder).await)?;
    // In any order, and without waiting for each other.
    for reader in readers.iter().rev() {
        granted(t.b.try_acquire(reader).await)?;
    }
    busy(t.b.try_acquire(&last).await)?;
    for reader in &readers {
        busy(t.b.try_acquire(&writer).await)?;
        done(t.b.end(reader).await)?;
    }
    granted(t.b.try_acquire(&writer).await)?;
    busy(t.b.try_acquire(&last).await)?;
    done(t.b.end(&writer).await)?;
    granted(t.b.try_acquire(&last).await)?;
    Ok(())
}

async fn a_semaphore_lets_in_as_many_as_there_are_free_permits(t: Trial) -> Shown {
    let name = t.name();
    let holders = [t.claim(&name, permit(2)), t.claim(&name, permit(2))];
    let waiters: Vec<Claim> = (0..3).map(|_| t.queued(&name, permit(2))).collect();
    for holder in &holders {
        granted(t.a.try_acquire(holder).await)?;
    }
    line_up(&t, &[&waiters[0], &waiters[1], &waiters[2]]).await?;
    done(t.a.end(&holders[0]).await)?;
    busy(t.b.try_acquire(&waiters[2]).await)?;
    busy(t.b.try_acquire(&waiters[1]).await)?;
    granted(t.b.try_acquire(&waiters[0]).await)?;
    done(t.a.end(&holders[1]).await)?;
    busy(t.b.try_acquire(&waiters[2]).await)?;
    granted(t.b.try_acquire(&waiters[1]).await)?;
    busy(t.b.try_acquire(&waiters[2]).await)?;
    done(t.b.end(&waiters[1]).await)?;
    granted(t.b.try_acquire(&waiters[2]).await)?;
    Ok(())
}

async fn the_queue_moves_on_when_a_lease_expires(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.brief(&name, Mode::Exclusive);
    let (first, second) = (t.queued(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    let sent = Instant::now();
    let believed = believed_until(sent, &granted(t.a.try_acquire(&holder).await)?)?;
    // On a slow machine the holder may be gone already, and the first waiter in.
    if let Attempt::Busy(answer) = t.b.try_acquire(&first).await? {
        let look = answer.retry_in.unwrap_or_default();
        let most = holder.ttl + holder.ttl / 4 + t.ms(10);
        ensure!(
            look <= most,
            "the holder has at most {:?} left, and the front shall look in {look:?}",
            holder.ttl
        );
    }
    busy(t.b.try_acquire(&second).await)?;
    let (_, answered) = t.take_over(&t.b, &first).await?;
    ensure!(answered >= believed, "the next in line was let in before the holder's own deadline");
    busy(t.b.try_acquire(&second).await)?;
    done(t.b.end(&first).await)?;
    granted(t.b.try_acquire(&second).await)?;
    Ok(())
}

async fn dead_tickets_lose_their_places_together(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.claim(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&holder).await)?;
    let dead: Vec<Claim> = (0..5).map(|_| t.claim(&name, Mode::Exclusive).queued(t.ms(200))).collect();
    let alive = t.queued(&name, Mode::Exclusive);
    let sent = Instant::now();
    for waiter in &dead {
        busy(t.b.try_acquire(waiter).await)?;
    }
    let answered = Instant::now();
    let place = busy(t.b.try_acquire(&alive).await)?.place;
    let early = sent.elapsed() < t.ms(190);
    ensure!(!early || place == Some(5), "five stand before it, and it was told it has the place {place:?}");
    t.past(answered, t.ms(200)).await;
    let answer = busy(t.b.try_acquire(&alive).await)?;
    ensure!(answer.place == Some(0), "those before it are dead, and it has the place {:?}", answer.place);
    ensure!(answer.queue_length == 1, "one waits, and {} are counted", answer.queue_length);
    let info = t.a.view(&name).await?;
    ensure!(info.queue_length == 1 && info.waiters.len() == 1, "one waits, and this is shown: {info:?}");
    done(t.a.end(&holder).await)?;
    granted(t.b.try_acquire(&alive).await)?;
    // A waiter that comes back after its ticket has lapsed begins anew.
    let answer = busy(t.b.try_acquire(&dead[3]).await)?;
    ensure!(answer.place == Some(0), "it came back to the place {:?}", answer.place);
    Ok(())
}

async fn a_refreshed_ticket_keeps_its_place(t: Trial) -> Shown {
    for ticket in t.growing(200) {
        let name = t.name();
        let holder = t.claim(&name, Mode::Exclusive);
        let front = t.claim(&name, Mode::Exclusive).queued(ticket);
        let behind = t.queued(&name, Mode::Exclusive);
        granted(t.a.try_acquire(&holder).await)?;
        let mut sent = Instant::now();
        let mut lapsed = false;
        line_up(&t, &[&front]).await?;
        busy(t.b.try_acquire(&behind).await)?;
        let end = Instant::now() + ticket * 3;
        while Instant::now() < end && !lapsed {
            tokio::time::sleep(ticket / 8).await;
            let resent = Instant::now();
            let answer = busy(t.b.try_acquire(&front).await)?;
            // The refresh reached the store no later than its answer came.
            lapsed = sent.elapsed() >= ticket - ticket / 20;
            ensure!(lapsed || answer.place == Some(0), "the front has the place {:?}", answer.place);
            sent = resent;
        }
        done(t.a.end(&holder).await)?;
        let (second, first) = (t.b.try_acquire(&behind).await, t.b.try_acquire(&front).await);
        if !lapsed && sent.elapsed() < ticket - ticket / 20 {
            busy(second)?;
            granted(first)?;
            return Ok(());
        }
    }
    Err(Failure::nowhere(format!(
        "a ticket could not be refreshed in time, even one of {:?}",
        t.growing(200).last()
    )))
}

async fn a_place_is_kept_while_its_wait_is_pending(t: Trial) -> Shown {
    for ticket in t.growing(300) {
        let name = t.name();
        let holder = t.claim(&name, Mode::Exclusive);
        let front = t.claim(&name, Mode::Exclusive).queued(ticket);
        let behind = t.queued(&name, Mode::Exclusive);
        granted(t.a.try_acquire(&holder).await)?;
        if busy(t.b.try_acquire(&front).await)?.place != Some(0) {
            continue;
        }
        let (side, claim) = (Arc::clone(&t.b), front.clone());
        let waiting = t.spawn(async move { side.wait(&claim).await });
        busy(t.a.try_acquire(&behind).await)?;
        tokio::time::sleep(ticket * 3).await;
        let info = t.a.view(&name).await?;
        // On a far too slow machine even a live process is late; with a longer ticket it is not.
        if info.queue_length != 2 || info.waiters.first().is_none_or(|waiter| waiter.id != t.shown(front.id))
        {
            continue;
        }
        done(t.a.end(&holder).await)?;
        t.soon("the wake-up of who waited for longer than a ticket", waiting).await???;
        // Likewise: it may have been kept so late that it lapses only now.
        match (t.a.try_acquire(&behind).await?, t.b.try_acquire(&front).await?) {
            (Attempt::Busy(_), Attempt::Granted(_)) => return Ok(()),
            _ => continue,
        }
    }
    let longest = t.growing(300).last();
    Err(Failure::new(format!("a waiter loses its place, even with a ticket of {longest:?}")))
}

async fn a_place_whose_wait_was_dropped_lapses(t: Trial) -> Shown {
    let (name, ticket) = (t.name(), t.ms(2000));
    let holder = t.claim(&name, Mode::Exclusive);
    let front = t.claim(&name, Mode::Exclusive).queued(ticket);
    let behind = t.queued(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&holder).await)?;
    line_up(&t, &[&front, &behind]).await?;
    let _ = tokio::time::timeout(ticket, t.b.wait(&front)).await;
    // Counted from when the store has noticed, perhaps a moment later; it does not notice by itself until a call
    // looks.
    t.until(&name, "the place lapses", |info| info.queue_length == 1).await?;
    let answer = busy(t.b.try_acquire(&behind).await)?;
    ensure!(answer.place == Some(0), "nobody waits before it, and it has the place {:?}", answer.place);
    Ok(())
}

async fn looking_again_without_queueing_keeps_the_place(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.claim(&name, Mode::Exclusive);
    let (front, behind) = (t.queued(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    line_up(&t, &[&front, &behind]).await?;
    let mut look = front.clone();
    look.queue = None;
    let answer = busy(t.b.try_acquire(&look).await)?;
    ensure!(answer.place == Some(0), "its place became {:?}", answer.place);
    done(t.a.end(&holder).await)?;
    busy(t.b.try_acquire(&behind).await)?;
    granted(t.b.try_acquire(&look).await)?;
    Ok(())
}

async fn a_place_that_is_given_up_frees_the_way(t: Trial) -> Shown {
    let name = t.name();
    let holder = t.claim(&name, Mode::Exclusive);
    let (front, behind) = (t.queued(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    line_up(&t, &[&front, &behind]).await?;
    done(t.b.end(&front).await)?;
    not_done(t.b.end(&front).await, NOT_FOUND)?;
    let answer = busy(t.b.try_acquire(&behind).await)?;
    ensure!(answer.place == Some(0), "nobody is before it, and it has the place {:?}", answer.place);
    done(t.a.end(&holder).await)?;
    granted(t.b.try_acquire(&behind).await)?;
    // An ordinary release leaves the id usable.
    let answer = busy(t.b.try_acquire(&front).await)?;
    ensure!(answer.place == Some(0), "it came back to the place {:?}", answer.place);
    Ok(())
}

async fn waiters_keep_their_kind(t: Trial) -> Shown {
    for ttl in t.growing(150) {
        let name = t.name();
        let mut holder = t.claim(&name, permit(1));
        holder.ttl = ttl;
        let grant = granted(t.a.try_acquire(&holder).await)?;
        let answered = Instant::now();
        let waiter = t.queued(&name, permit(1));
        let Attempt::Busy(_) = t.b.try_acquire(&waiter).await? else { continue };
        // The holder is gone; a waiter is enough.
        t.past(answered, left(&grant)?).await;
        fails(t.a.try_acquire(&t.claim(&name, permit(3))).await, ErrorKind::Mismatch)?;
        granted(t.b.try_acquire(&waiter).await)?;
        return Ok(());
    }
    let longest = t.growing(150).last();
    Err(Failure::nowhere(format!("a lease expired before anybody could queue, even with {longest:?}")))
}
