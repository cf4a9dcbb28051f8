//! Lets many clients act at once and judges the history: no client believes that it holds what another holds.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Attempt, Backend as _, Mode, Renewed};
use crate::conformance::trial::{Shown, Side, Trial, believed_until};
use crate::conformance::{Failure, check_list, ensure};
use crate::fence::Fence;
use crate::name::Name;

check_list! { Raw:
    holders_that_exclude_each_other_never_believe_together => "1 3 5 7 I1 I2 I3", Ttl;
}

/// One lease, as its holder saw it.
#[derive(Debug, Clone, Copy)]
struct Belief {
    mode: Mode,
    fence: Fence,
    sent: Instant,
    /// Held from the answer until the deadline, or until the release was sent.
    from: Instant,
    until: Instant,
}

/// The least number of leases, however slow the machine is: fewer show nothing.
const LEAST: usize = 10;

/// A random number below `most`.
fn random(most: u64) -> u64 {
    RandomState::new().hash_one(()) % most
}

/// Ignores an answer that does not come in time: ttls are short here, and the machine may be slow.
fn in_time<T>(answer: crate::Result<T>) -> crate::Result<Option<T>> {
    match answer {
        Err(error) if error.is_retryable() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Acquires, renews, releases, and sometimes just stops, until the time is over and there are enough leases.
async fn come_and_go(
    t: Trial,
    side: Arc<Side>,
    name: Name,
    (end, leases): (Instant, Arc<AtomicUsize>),
) -> Result<Vec<Belief>, Failure> {
    let mut beliefs = Vec::new();
    while Instant::now() < end || leases.load(Ordering::SeqCst) < LEAST {
        let shared = t.info.shared && random(2) == 0;
        let mut claim = t.claim(&name, if shared { Mode::Shared } else { Mode::Exclusive });
        claim.ttl = t.ms(20 + random(30));
        let sent = Instant::now();
        let Some(Attempt::Granted(grant)) = in_time(side.try_acquire(&claim).await)? else {
            tokio::time::sleep(Duration::from_millis(random(4))).await;
            continue;
        };
        let from = Instant::now();
        let mut until = believed_until(sent, &grant)?;
        for _ in 0..random(3) {
            tokio::time::sleep(claim.ttl / 3).await;
            let sent = Instant::now();
            if let Some(Renewed::Held(grant)) = in_time(side.keep(&claim).await)? {
                // After the deadline, an answered renewal is too late to go on believing.
                if Instant::now() < until {
                    until = until.max(believed_until(sent, &grant)?);
                }
            }
        }
        if random(3) > 0 {
            until = until.min(Instant::now());
            in_time(side.end(&claim).await)?;
        } else {
            tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
        }
        leases.fetch_add(1, Ordering::SeqCst);
        beliefs.push(Belief { mode: claim.mode, fence: grant.fence, sent, from, until });
    }
    Ok(beliefs)
}

async fn holders_that_exclude_each_other_never_believe_together(t: Trial) -> Shown {
    let name = t.name();
    let (end, leases) = (Instant::now() + t.ms(800), Arc::new(AtomicUsize::new(0)));
    let sides = [&t.a, &t.b].into_iter().cycle().take(6);
    let until = || (end, Arc::clone(&leases));
    let tasks: Vec<_> =
        sides.map(|side| t.spawn(come_and_go(t.clone(), Arc::clone(side), name.clone(), until()))).collect();
    tokio::time::sleep_until(end.into()).await;
    let mut beliefs = Vec::new();
    for task in tasks {
        beliefs.extend(t.soon("the end of the history", task).await???);
    }
    beliefs.sort_unstable_by_key(|belief| belief.from);
    for (place, one) in beliefs.iter().enumerate() {
        for other in &beliefs[place + 1..] {
            let together = other.from < one.until && other.until > other.from;
            let excluded = one.mode == Mode::Exclusive || other.mode == Mode::Exclusive;
            ensure!(
                !(together && excluded),
                "one held it ({}) until {:?} after another ({}) was told that it holds it",
                one.mode,
                one.until - other.from,
                other.mode
            );
            let later = one.from < other.sent;
            let (first, second) = (one.fence, other.fence);
            ensure!(
                !(t.info.fenced && later && second <= first),
                "a grant with fence {second} came after one with fence {first}"
            );
        }
    }
    Ok(())
}
