//! The local deadline as arithmetic, over random histories: a guard never believes past the end of its
//! lease, and its deadline moves only when a renewal is confirmed.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::{ErrorKind, GuardState};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use testkit::faulty::{Act, Call, Verb};
use testkit::paused::Paused;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What happens to a lease: how it was granted, what its renewals meet, and what its holder asks for.
#[derive(Debug, Clone)]
struct History {
    ttl: u64,
    granted: Act,
    renewals: Vec<Act>,
    /// When, which ttl, and whether it may become shorter.
    asked: Vec<(u64, u64, bool)>,
}

fn histories() -> impl Strategy<Value = History> {
    (60..1500u64).prop_flat_map(|ttl| {
        let delay = 0..ttl + 50;
        let act = prop_oneof![
            3 => Just(Act::Pass),
            2 => Just(Act::Fail(ErrorKind::Unavailable)),
            1 => Just(Act::Fail(ErrorKind::Internal)),
            3 => delay.clone().prop_map(|d| Act::Slow(ms(d))),
            3 => delay.clone().prop_map(|d| Act::SlowBefore(ms(d))),
            1 => Just(Act::Never),
            1 => Just(Act::NeverAfter),
            1 => Just(Act::LostAfter(ErrorKind::NetworkTimeout)),
            1 => delay.clone().prop_map(|d| Act::Late(ms(d))),
            1 => Just(Act::Only(0)),
        ];
        let granted = prop_oneof![
            Just(Act::Pass),
            delay.clone().prop_map(|d| Act::Slow(ms(d))),
            delay.prop_map(|d| Act::SlowBefore(ms(d)))
        ];
        let asked = (0..4 * ttl, 50..2 * ttl + 50, any::<bool>());
        (Just(ttl), granted, vec(act, 0..20), vec(asked, 0..4))
            .prop_map(|(ttl, granted, renewals, asked)| History { ttl, granted, renewals, asked })
    })
}

/// The local deadline, computed from the log alone: what promise 7 says, and nothing else.
struct Oracle {
    world: Paused,
    deadline: Moment,
    /// The lease was shortened after earlier calls were sent, so answers to calls before this one do not count.
    from: usize,
    /// How many calls have been processed.
    calls: usize,
    /// The calls whose answers have been processed.
    answered: Vec<bool>,
    lost: bool,
}

impl Oracle {
    fn believe(sent: Moment, left: Duration) -> Moment {
        sent + left - left / 100 - ms(2)
    }

    fn new(world: &Paused) -> Self {
        let log = world.store.log();
        let call = log.iter().rfind(|call| !call.grants().is_empty()).unwrap();
        let deadline = Oracle::believe(call.at, call.grants()[0].left.unwrap());
        let (calls, answered) = (log.len(), vec![true; log.len()]);
        Oracle { world: world.clone(), deadline, from: 0, calls, answered, lost: false }
    }

    /// The current deadline; `None` if it has passed.
    fn look(&mut self) -> Option<Moment> {
        let now = self.world.clock.now();
        let log = self.world.store.log();
        self.answered.resize(log.len(), false);
        while self.calls < log.len() {
            self.hear(&log, self.calls);
            let call = &log[self.calls];
            // The client lowers its deadline before it asks the store, even when it has to ask again.
            if call.verb == Verb::Renew && call.renewals()[0].shorten.is_some() {
                self.lost |= call.at >= self.deadline;
                self.deadline = self.deadline.min(Oracle::believe(call.at, call.renewals()[0].ttl));
                self.from = self.calls;
            }
            self.calls += 1;
        }
        self.hear(&log, log.len());
        self.lost |= now >= self.deadline;
        (!self.lost).then_some(self.deadline)
    }

    /// Processes the answers that came when no more than this many calls had been made.
    fn hear(&mut self, log: &[Call], calls: usize) {
        let mut new: Vec<_> = (0..log.len())
            .filter(|index| !self.answered[*index] && log[*index].calls_before_answer <= calls)
            .filter_map(|index| log[index].answer.as_ref().map(|(at, _)| (*at, index)))
            .collect();
        // A call that was made later may have been answered first.
        new.sort_unstable();
        for (at, index) in new {
            self.answered[index] = true;
            // This is the first look at this moment, so judge the deadline first.
            self.lost |= at >= self.deadline;
            for grant in log[index].grants() {
                if !self.lost && index >= self.from {
                    self.deadline = self.deadline.max(Oracle::believe(log[index].at, grant.left.unwrap()));
                }
            }
        }
    }
}

async fn live_through(history: History) {
    let world = Paused::new();
    let mutex = world.locks.mutex("x").ttl(ms(history.ttl)).request_timeout(ms(5000));
    world.store.plan(Verb::TryAcquire, [history.granted]);
    let guard = Arc::new(mutex.lock().await.unwrap());
    world.store.plan(Verb::Renew, history.renewals.clone());
    let mut oracle = Oracle::new(&world);
    let start = world.elapsed();
    let mut asked = history.asked.clone();
    asked.sort_unstable();
    asked.reverse();
    let mut asking = tokio::task::JoinSet::new();
    let end = start + ms(6 * history.ttl);
    // Often enough to meet every step, and rarely enough to survive many.
    let step = ms((history.ttl / 50).max(1));
    while world.elapsed() < end {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let now = world.clock.now();
        let expected = oracle.look();
        let believed = guard.valid_for().unwrap();
        match expected {
            Some(deadline) => {
                assert!(
                    matches!(guard.state(), GuardState::Held | GuardState::AtRisk),
                    "a false alarm at {now:?}"
                );
                assert_eq!(now + believed, deadline, "the deadline moved by itself");
                // The store keeps it for longer than that.
                let info = world.look("x").await;
                assert_eq!(info.holders[0].id, guard.lease_id());
                assert!(info.holders[0].grant.left.unwrap() > believed, "believed past its end");
            }
            None => {
                assert_eq!(
                    (guard.state(), believed),
                    (GuardState::Lost, Duration::ZERO),
                    "believed after {now:?}"
                );
                assert!(guard.check().is_err());
            }
        }
        while let Some((_, ttl, shorter)) = asked.pop_if(|(at, ..)| start + ms(*at) <= world.elapsed()) {
            let guard = Arc::clone(&guard);
            let mut call = Box::pin(async move {
                let _ =
                    if shorter { guard.shorten_to(ms(ttl)).await } else { guard.renew_for(ms(ttl)).await };
            });
            // Sent now, and answered at any later time.
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                asking.spawn(call);
            }
        }
        tokio::time::sleep(step).await;
    }
    asking.abort_all();
}

#[test]
fn only_a_confirmation_moves_the_deadline_never_past_the_end() {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(history in histories())| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(live_through(history));
    });
}

/// Two renewals at once: the one sent later is answered first and just in time. The answer to the other comes after
/// the old deadline, and does no harm.
#[tokio::test(start_paused = true)]
async fn answers_count_in_the_order_in_which_they_come() {
    let mut renewals = vec![Act::Slow(ms(895)), Act::Slow(ms(825))];
    renewals.extend([Act::Fail(ErrorKind::Unavailable); 40]);
    let asked = vec![(100, 1000, false), (160, 1000, false)];
    live_through(History { ttl: 1000, granted: Act::Pass, renewals, asked }).await;
}

/// A renewal that was stuck in the network reaches the store just before a shortening does. So the client has to ask
/// again, and its deadline drops again.
#[tokio::test(start_paused = true)]
async fn a_shortening_that_was_overtaken_drops_the_deadline_again() {
    let renewals = vec![Act::Late(ms(271)), Act::Fail(ErrorKind::Unavailable), Act::Slow(ms(0))];
    let asked = vec![(401, 50, true), (0, 2205, false)];
    live_through(History { ttl: 1272, granted: Act::Pass, renewals, asked }).await;
}
