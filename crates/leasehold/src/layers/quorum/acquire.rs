//! One attempt on a quorum: its two phases, and giving back votes that did not become a lease.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use tokio::time::Instant;

use super::fan::{Call, Enough, Fan};
use super::{Nodes, lowest_of_majority};
use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, Mode, Release, Released, Renewal, Renewed, SPENT_FOR,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::options::random_part;

/// How often to retry when no claim got a majority. Claims without any vote leave at once, so at most N are left after
/// the first try, and their pauses double.
const SPLIT_TRIES: u32 = 8;

/// The longest pause after a split vote.
const SPLIT_PAUSE: Duration = Duration::from_millis(50);

/// A fence that no lease has: a release with it never ends a lease, but refuses the id where there is none.
const NO_FENCE: Fence = Fence::new(1);

/// How one round ended.
enum Round {
    Answer(Attempt),
    /// Several claims got votes and none a majority; nothing of it is left.
    Split(Busy),
    /// The grants had ended before they could be confirmed; nothing of them is left.
    TooSlow,
}

/// The answers of phase 1.
#[derive(Default)]
struct Votes {
    granted: Vec<(usize, Grant)>,
    busy: Vec<Busy>,
    gone: usize,
    failed: Vec<(usize, Error)>,
}

impl Votes {
    fn put(&mut self, node: usize, answer: Result<Attempt>) {
        match answer {
            Ok(Attempt::Granted(grant)) => self.granted.push((node, grant)),
            Ok(Attempt::Busy(busy)) => self.busy.push(busy),
            Ok(Attempt::Gone(_)) => self.gone += 1,
            Err(error) => self.failed.push((node, error)),
        }
    }

    /// The grants of a lease that a majority has confirmed before, if this is one.
    fn confirmed(&self, majority: usize) -> Option<Vec<&Grant>> {
        let same = |fence: Fence| {
            let of = self.granted.iter().map(|(_, grant)| grant);
            of.filter(|grant| grant.renewals > 0 && grant.fence == fence).collect::<Vec<_>>()
        };
        self.granted.iter().map(|(_, grant)| same(grant.fence)).find(|same| same.len() >= majority)
    }

    /// Nodes that may have granted, or may still do so, and whose answer was lost.
    fn unsure(&self) -> Vec<usize> {
        self.failed.iter().filter(|(_, error)| may_have_happened(error)).map(|(node, _)| *node).collect()
    }

    /// Whether some node has confirmed a lease of this id before.
    fn is_known(&self) -> bool {
        self.granted.iter().any(|(_, grant)| grant.renewals > 0)
    }

    /// What is known of the lease that is in the way.
    fn obstacle(&self) -> Busy {
        let longest = self.busy.iter().max_by_key(|busy| busy.holder_left).cloned();
        let mut busy = longest.unwrap_or_else(Busy::unknown);
        (busy.place, busy.queue_length, busy.retry_in) = (None, 0, busy.holder_left);
        busy
    }
}

impl Nodes {
    pub(super) async fn try_acquire(self: &Arc<Self>, claim: &Claim) -> Result<Attempt> {
        if matches!(claim.mode, Mode::Permit { .. }) {
            let message = "quorum: has no semaphores: N nodes cannot agree on who has which permit";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.is_burnt(&claim.id) {
            return Ok(Attempt::Gone(Gone::Superseded));
        }
        let mut claim = claim.clone();
        claim.queue = None;
        let started = Instant::now();
        let mut tries = 0;
        loop {
            let round_started = Instant::now();
            let busy = match self.round(&claim, started).await? {
                Round::Answer(attempt) => return Ok(attempt),
                Round::Split(busy) => Some(busy),
                Round::TooSlow => None,
            };
            tries += 1;
            if tries == SPLIT_TRIES || started.elapsed() > self.node_timeout {
                return busy.map(Attempt::Busy).ok_or_else(unconfirmed);
            }
            let pause = round_started.elapsed().max(Duration::from_millis(1)).saturating_mul(1 << tries);
            tokio::time::sleep(random_part(pause.min(SPLIT_PAUSE))).await;
        }
    }

    async fn round(self: &Arc<Self>, claim: &Claim, started: Instant) -> Result<Round> {
        let mut votes = Votes::default();
        let mut fan = self.fan_all(|_, node| {
            let claim = claim.clone();
            async move { node.try_acquire(&claim).await }
        });
        let (all, majority) = (self.members.len(), self.majority);
        fan.gather(&self.members, self.node_timeout, |node, answer, pending| {
            votes.put(node, answer);
            let answered = votes.granted.len() + votes.busy.len() + votes.gone;
            let lost = votes.granted.len() + pending < majority;
            if votes.granted.len() >= majority && votes.confirmed(majority).is_none() && votes.is_known() {
                // A repeat: the nodes that have confirmed the lease may be the slower ones.
                Enough::ButForTheDead
            } else if votes.granted.len() >= majority {
                Enough::Nearly
            } else if lost && !votes.busy.is_empty() && answered >= majority {
                // The nodes that say that this id is over may be the slower ones.
                let may_be_over = votes.gone > 0 && votes.gone + pending > all - majority;
                if may_be_over { Enough::ButForTheDead } else { Enough::Yes }
            } else {
                Enough::No
            }
        })
        .await;
        if votes.granted.len() < majority {
            return self.refused(claim, votes, fan).await;
        }
        self.tidy_later(claim, fan, votes.unsure());
        if let Some(same) = votes.confirmed(majority) {
            let grants: Vec<Grant> = same.into_iter().cloned().collect();
            return Ok(Round::Answer(Attempt::Granted(self.merge(&grants))));
        }
        let confirmed = self.confirm(claim, &votes.granted, started).await?;
        Ok(confirmed.map_or(Round::TooSlow, |grant| Round::Answer(Attempt::Granted(grant))))
    }

    /// Phase 2: a majority raises its leases to one fence that is above all of theirs.
    async fn confirm(
        self: &Arc<Self>,
        claim: &Claim,
        granted: &[(usize, Grant)],
        started: Instant,
    ) -> Result<Option<Grant>> {
        let Some(highest) = self.agreeable(granted) else {
            self.give_back(claim, granted).await;
            return Err(days_apart());
        };
        let (granted, others): (Vec<_>, Vec<_>) =
            granted.iter().cloned().partition(|(_, grant)| reaches(grant.fence, highest));
        self.give_back_later(claim, others);
        // One more than the highest: so no lease that counts has a fence of phase 1, and a give-back by such a fence
        // can never hit it, however late it comes.
        let fence = match highest.next(0) {
            Ok(fence) => fence,
            Err(error) => {
                self.give_back(claim, &granted).await;
                return Err(error);
            }
        };
        let asked = Instant::now();
        let within = self.node_timeout.min(claim.ttl);
        let mut fan = Fan::new(
            &self.members,
            granted.iter().map(|(node, _)| *node),
            self.node_timeout,
            |node, backend| {
                let mut renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
                let had = granted.iter().find(|(of, _)| *of == node);
                renewal.fence = had.map(|(_, grant)| grant.fence);
                renewal.raise_fence = Some(fence);
                async move {
                    let mut answers = backend.renew(std::slice::from_ref(&renewal)).await;
                    answers.pop().unwrap_or_else(|| Err(super::no_answer()))
                }
            },
        );
        let (mut accepted, mut nodes, mut answered) = (Vec::new(), Vec::new(), 0);
        // Nodes whose clock or counter does not allow so high a fence: they still have what they granted.
        let mut too_high = Vec::new();
        let majority = self.majority;
        fan.gather(&self.members, within, |node, answer, _| {
            answered += usize::from(answer.is_ok());
            match answer {
                Ok(Renewed::Held(grant)) if grant.fence == fence => {
                    nodes.push((node, grant.clone()));
                    accepted.push(grant);
                }
                Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                    answered += 1;
                    too_high.extend(granted.iter().find(|(of, _)| *of == node).cloned());
                }
                _ => {}
            }
            if accepted.len() >= majority { Enough::Yes } else { Enough::No }
        })
        .await;
        fan.finish();
        if accepted.len() >= majority {
            self.give_back_later(claim, too_high);
            let mut grant = self.merge(&accepted);
            // The time left was measured by requests that were sent then.
            grant.waited = asked - started;
            return Ok(Some(grant));
        }
        let apart = !too_high.is_empty();
        nodes.append(&mut too_high);
        // All said yes or no, and their votes are over: then no request in transit can do harm.
        if answered == granted.len() && !claim.repeat && self.give_back(claim, &nodes).await {
            return if apart { Err(days_apart()) } else { Ok(None) };
        }
        self.burn(claim.id, claim.ttl);
        let mut release = Release::new(claim.name.clone(), claim.id);
        (release.unanswered, release.nonce) = (Some(claim.ttl), Some(claim.nonce));
        let mut fan = self.fan_all(|_, node| {
            let release = release.clone();
            async move { node.release(&release).await }
        });
        fan.gather(&self.members, self.node_timeout, |_, _, _| Enough::Nearly).await;
        fan.finish();
        Err(if apart { days_apart() } else { unconfirmed() })
    }

    /// The highest fence of phase 1 above which a majority can raise its leases. A node accepts none that is more than
    /// a day ahead of its clock, so a node whose clock is far ahead of the others' is left out while there are enough
    /// without it. The rest are still a majority of phase 1, which makes fences increase.
    fn agreeable(&self, granted: &[(usize, Grant)]) -> Option<Fence> {
        let mut fences: Vec<Fence> = granted.iter().map(|(_, grant)| grant.fence).collect();
        fences.sort_unstable();
        let agree = |highest: Fence| fences.iter().filter(|fence| reaches(**fence, highest)).count();
        fences.iter().rev().copied().find(|highest| agree(*highest) >= self.majority)
    }

    /// Gives back, in the background, what some nodes granted and cannot confirm.
    fn give_back_later(self: &Arc<Self>, claim: &Claim, granted: Vec<(usize, Grant)>) {
        if granted.is_empty() {
            return;
        }
        let (this, claim) = (Arc::clone(self), claim.clone());
        tokio::spawn(async move { this.give_back(&claim, &granted).await });
    }

    /// Handles a missing majority: gives back what was granted, and says why.
    async fn refused(self: &Arc<Self>, claim: &Claim, votes: Votes, fan: Fan<Attempt>) -> Result<Round> {
        let (all, majority) = (self.members.len(), self.majority);
        let unknown = votes.failed.len() + fan.pending();
        let pending = fan.pending();
        // A lease that was confirmed before may still have its majority among the nodes that did not answer.
        let may_hold = votes.is_known() && votes.granted.len() + unknown >= majority;
        self.tidy_later(claim, fan, votes.unsure());
        let returned = if may_hold { false } else { self.give_back(claim, &votes.granted).await };
        if votes.gone > all - majority {
            return Ok(Round::Answer(Attempt::Gone(Gone::Superseded)));
        }
        if unknown > all - majority || may_hold {
            return Err(self.too_few(votes.failed.into_iter().map(|(_, error)| error).collect(), pending));
        }
        if votes.busy.is_empty() {
            // Some nodes refuse this id; another id may get a majority.
            return Ok(Round::Answer(Attempt::Gone(Gone::Superseded)));
        }
        let busy = votes.obstacle();
        let split = !votes.granted.is_empty() && returned && unknown == 0 && !claim.repeat;
        if split && !self.is_held(&claim.name).await {
            return Ok(Round::Split(busy));
        }
        Ok(Round::Answer(Attempt::Busy(busy)))
    }

    /// Ends what phase 1 granted, each lease by its own fence. Returns whether all of it is over.
    async fn give_back(self: &Arc<Self>, claim: &Claim, granted: &[(usize, Grant)]) -> bool {
        let nodes = granted.iter().map(|(node, _)| *node);
        let mut fan = Fan::new(&self.members, nodes, self.node_timeout, |node, backend| {
            let fence = granted.iter().find(|(of, _)| *of == node).map(|(_, grant)| grant.fence);
            let release = give_back(claim, fence.unwrap_or(NO_FENCE));
            async move { backend.release(&release).await }
        });
        let mut over = 0;
        fan.gather(&self.members, self.node_timeout, |_, answer, _| {
            over += usize::from(answer.is_ok());
            Enough::No
        })
        .await;
        over == granted.len()
    }

    /// Gives back, in the background, what is granted too late to count, and makes sure that a request without an
    /// answer does not become a lease after all.
    fn tidy_later(self: &Arc<Self>, claim: &Claim, fan: Fan<Attempt>, unsure: Vec<usize>) {
        let mut rest = fan.rest();
        if rest.is_empty() && unsure.is_empty() {
            return;
        }
        let (this, claim) = (Arc::clone(self), claim.clone());
        tokio::spawn(async move {
            for node in unsure {
                this.refuse(&claim, node).await;
            }
            while let Some((node, answer)) = rest.next().await {
                match answer {
                    Ok(Attempt::Granted(grant)) if grant.renewals == 0 => {
                        this.release_on(node, give_back(&claim, grant.fence)).await;
                    }
                    Err(error) if may_have_happened(&error) => this.refuse(&claim, node).await,
                    _ => {}
                }
            }
        });
    }

    /// Refuses the id on a node unless it has the lease; if it has, and the lease is one of phase 1, ends it.
    async fn refuse(&self, claim: &Claim, node: usize) {
        let mut release = give_back(claim, NO_FENCE);
        release.unanswered = Some(claim.ttl);
        if self.release_on(node, release).await.is_none() {
            return;
        }
        let query = self.about(node, &claim.name, claim.id);
        let look: Call<_> = self.call(node, |backend| async move { backend.inspect(&query).await });
        let Ok(page) = look.await.1 else { return };
        let found = self.lease_in(node, page, &claim.name, claim.id);
        if let Some(holder) = found.filter(|holder| holder.grant.renewals == 0) {
            self.release_on(node, give_back(claim, holder.grant.fence)).await;
        }
    }

    pub(super) async fn release_on(&self, node: usize, release: Release) -> Option<Released> {
        self.call(node, |backend| async move { backend.release(&release).await }).await.1.ok()
    }

    /// Refuses an id from now on: it was given back by force, and that release may still be in transit.
    fn burn(&self, id: LeaseId, ttl: Duration) {
        let now = Instant::now();
        let mut burnt = self.burnt.lock();
        burnt.retain(|_, until| *until > now);
        burnt.insert(id, now + ttl.max(SPENT_FOR));
    }

    fn is_burnt(&self, id: &LeaseId) -> bool {
        self.burnt.lock().get(id).is_some_and(|until| *until > Instant::now())
    }

    /// What can be relied on when a majority has these grants. The fences are equal, or the nodes' own.
    pub(super) fn merge(&self, grants: &[Grant]) -> Grant {
        let fence = super::most_common(grants.iter().map(|grant| grant.fence)).unwrap_or_default();
        let shared = grants.iter().filter(|grant| grant.mode == Mode::Shared).count();
        let mode = if shared >= self.majority { Mode::Shared } else { Mode::Exclusive };
        let left = lowest_of_majority(grants.iter().filter_map(|grant| grant.left), self.majority);
        let mut merged = Grant::new(fence, mode, Some(left));
        merged.renewals = grants.iter().map(|grant| grant.renewals).max().unwrap_or_default();
        // The nodes' clocks differ, and other nodes may answer next time: only the fence is common to all.
        merged.acquired_at_ms = fence.get() / 256;
        merged.expires_at_ms = super::most_common(
            grants.iter().filter(|grant| grant.left == Some(left)).filter_map(|grant| grant.expires_at_ms),
        );
        merged
    }
}

fn unconfirmed() -> Error {
    Error::new(
        ErrorKind::NetworkTimeout,
        "a majority of the nodes granted the claim, but did not confirm its fence in time; it was given back",
    )
}

fn days_apart() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the fences of too many nodes are more than a day apart, so that no majority can agree on one: set their \
         clocks right",
    )
}

/// Whether a node that granted `fence` can accept the fence above `highest`, as far as its clock is known.
fn reaches(fence: Fence, highest: Fence) -> bool {
    fence <= highest && highest.get() < fence.get().saturating_add(Fence::DAY)
}

fn give_back(claim: &Claim, fence: Fence) -> Release {
    let mut release = Release::new(claim.name.clone(), claim.id);
    (release.fence, release.nonce) = (Some(fence), Some(claim.nonce));
    release
}

/// Whether a failed attempt may have had an effect, or may still have one.
fn may_have_happened(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::NetworkTimeout | ErrorKind::Internal | ErrorKind::Aborted
    )
}
