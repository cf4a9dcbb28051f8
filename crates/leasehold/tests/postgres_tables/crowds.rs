//! A crowd of holders in the real tables, by the server's clock: inspection shows the same as the state machine. Each
//! answer contains the clock reading, and the state machine gets exactly that.

use std::time::Duration;

use leasehold::Fence;
use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release, Renewal};
use leasehold::state::{Answer, Now, Op, State};

use crate::support::{name, place};

/// What two answers must have in common: everything except when to try again, which may be more or less exact.
fn text(answer: &leasehold::Result<Answer>) -> String {
    match answer {
        Ok(Answer::Acquired(Attempt::Busy(busy))) => {
            let left = busy.holder_left;
            format!("busy {:?} of {}, {:?} for {left:?}", busy.place, busy.queue_length, busy.owner)
        }
        Ok(answer) => format!("{answer:?}"),
        Err(error) => error.to_string(),
    }
}

/// Of more than a hundred holders both show the same, by name and by id.
#[test]
fn a_crowd_of_holders_is_shown_as_by_the_state_machine() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let place = place();
    let store = runtime.block_on(place.open());
    let (on, mut model) = (name("crowd"), State::new());
    // Some end early, and some of those unnoticed: inspecting settles nothing.
    let ttl = |i: usize| Duration::from_millis(if i % 20 == 19 { 1 } else { 3_600_000 });
    let claims: Vec<Claim> =
        (0..150).map(|i| Claim::new(on.clone(), Mode::Permit { limit: 200 }, ttl(i), "x")).collect();
    runtime.block_on(async {
        let now = || Now { expiry: store.clock(), wall: store.clock() };
        for claim in &claims {
            let ours = store.try_acquire(claim).await.map(Answer::Acquired);
            assert_eq!(text(&ours), text(&model.apply(now(), Op::Acquire(claim), &mut Vec::new())));
        }
        let mut raise = Renewal::new(on.clone(), claims[3].id, Duration::from_secs(3600));
        raise.raise_fence = Some(Fence::new(model.last_fence().get() + 500));
        store.renew(std::slice::from_ref(&raise)).await.remove(0).unwrap();
        model.apply(now(), Op::Renew(&raise), &mut Vec::new()).unwrap();
        let release = Release::new(on.clone(), claims[5].id);
        store.release(&release).await.unwrap();
        model.apply(now(), Op::Release(&release), &mut Vec::new()).unwrap();
        let asked = [0, 3, 98, 104, 105, 106, 107, 130, 148].map(|i: usize| Query::LeaseId(claims[i].id));
        for query in [Query::Name(on.clone())].into_iter().chain(asked) {
            let seen = store.inspect(&query).await.unwrap().items.remove(0);
            let id = if let Query::LeaseId(id) = &query { Some(id) } else { None };
            assert_eq!(seen, model.view(&on, now(), id));
            assert_eq!(seen.holders.len(), 100);
        }
    });
}
