//! The checks that go through the client, as a user does, grouped by subject.

// What belongs here: a check of what a program sees through `Locks`. Before changing anything here, run what the first
// lines of `conformance` say.

mod data;
mod faces;
mod guards;
mod waiting;

use std::time::Instant;

use crate::client::guard::Guard;
use crate::client::locks::Locks;
use crate::engine::held::GuardState;
use crate::engine::limits::TICKET_TTL;
use crate::name::Name;

use super::trial::{Shown, Trial};
use super::{Check, Failure, ensure};

pub(super) fn checks() -> Vec<Check> {
    [waiting::CHECKS, guards::CHECKS, faces::CHECKS, data::CHECKS].concat()
}

/// Acquires for another client, as soon as the name is free.
async fn gets_it(t: &Trial, locks: &Locks, name: &Name) -> Result<Guard, Failure> {
    let waiting = locks.mutex(name.as_str());
    let guard = t.soon("the next lock", waiting.lock()).await??;
    Ok(guard)
}

/// Checks that the name has no holder and no waiter, before a place could have lapsed by itself.
async fn left_by_itself(t: &Trial, name: &Name, since: Instant) -> Shown {
    t.until(name, "nobody holds it or waits", |info| info.holders.is_empty() && info.queue_length == 0)
        .await?;
    let took = since.elapsed();
    ensure!(took < TICKET_TTL, "it took {took:?} until nobody waited: the place was not given up, it lapsed");
    Ok(())
}

/// Checks that the name has no waiter, before a place could have lapsed by itself.
async fn nobody_waits(t: &Trial, name: &Name, since: Instant) -> Shown {
    t.until(name, "nobody waits", |info| info.queue_length == 0).await?;
    let took = since.elapsed();
    ensure!(took < TICKET_TTL, "it took {took:?} until nobody waited: the place was not given up, it lapsed");
    Ok(())
}

fn is_released(state: GuardState) -> Shown {
    ensure!(state == GuardState::Released, "releasing said {state:?}");
    Ok(())
}
