//! Renews and releases on a quorum: each node's answer counts once, and a majority of all nodes decides.

use std::sync::Arc;

use futures_util::stream::StreamExt as _;

use super::fan::{Enough, Fan};
use super::{Nodes, most_common, no_answer};
use crate::backend::{Gone, Grant, NewNote, Release, Released, Renewal, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// A renewal count that no lease has: a shortening that names it does nothing.
const NEVER: u64 = u64::MAX;

/// The answers about one lease.
#[derive(Default)]
struct Answers {
    held: Vec<(usize, Grant)>,
    gone: Vec<Gone>,
    failed: Vec<Error>,
}

impl Answers {
    fn is_decided(&self, nodes: &Nodes) -> bool {
        let confirmed = self.confirmed().count();
        let over = self.gone.len() + self.held.len() - confirmed;
        confirmed >= nodes.majority || over > nodes.members.len() - nodes.majority
    }

    /// The grants that can count together: those with the most common fence. A grant with another fence belongs to a
    /// vote that was never confirmed, and may end at any moment.
    fn confirmed(&self) -> impl Iterator<Item = &Grant> {
        let grants = || self.held.iter().map(|(_, grant)| grant);
        let fence = most_common(grants().map(|grant| grant.fence));
        grants().filter(move |grant| Some(grant.fence) == fence)
    }
}

impl Nodes {
    pub(super) async fn renew(self: &Arc<Self>, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        if leases.is_empty() {
            return Vec::new();
        }
        let mut leases = leases.to_vec();
        let mut unwritten = vec![false; leases.len()];
        for (lease, unwritten) in leases.iter_mut().zip(&mut unwritten) {
            let Renewal { name, id, fence, note, .. } = lease;
            *unwritten = self.name_the_fence(name, *id, fence, note).await;
        }
        // The request to each node; the same for all, except for shortenings.
        let mut asked = vec![leases.clone(); self.members.len()];
        for (place, lease) in leases.iter().enumerate() {
            if let Some(count) = lease.shorten {
                let counts = self.counts_to_shorten(lease, count).await;
                for (node, count) in counts.into_iter().enumerate() {
                    asked[node][place].shorten = Some(count);
                }
            }
        }
        let mut fan = self.fan_all(|node, backend| {
            let asked = std::mem::take(&mut asked[node]);
            async move {
                let answers = backend.renew(&asked).await;
                if answers.len() == asked.len() { Ok(answers) } else { Err(no_answer()) }
            }
        });
        let mut about: Vec<Answers> = leases.iter().map(|_| Answers::default()).collect();
        // A lease that only a dead node could decide must not hold up the rest of its batch for too long: the renewal
        // loop gives an answer a sixth of the ttl.
        let shortest = leases.iter().map(|lease| lease.ttl).min().unwrap_or_default();
        let alone = leases.len() == 1;
        let within = if alone { self.node_timeout } else { self.node_timeout.min(shortest / 8) };
        fan.gather(&self.members, within, |node, answers, _| {
            match answers {
                Ok(answers) => {
                    for (about, answer) in about.iter_mut().zip(answers) {
                        match answer {
                            Ok(Renewed::Held(grant)) => about.held.push((node, grant)),
                            Ok(Renewed::Gone(gone)) => about.gone.push(gone),
                            Err(error) => about.failed.push(error),
                        }
                    }
                }
                Err(error) => about.iter_mut().for_each(|about| about.failed.push(error.duplicate())),
            }
            if about.iter().all(|about| about.is_decided(self)) { Enough::Yes } else { Enough::No }
        })
        .await;
        let pending = fan.pending();
        fan.finish();
        let answers = leases.iter().zip(about).map(|(lease, about)| self.renewed(lease, about, pending));
        let written = |(answer, unwritten)| match answer {
            Ok(Renewed::Held(_)) if unwritten => Err(not_written()),
            other => other,
        };
        answers.zip(unwritten).map(written).collect()
    }

    /// Makes sure that a note is written only under the fence that a majority has confirmed: a node that missed that
    /// may have the lease with a fence of its own, even a higher one. Callers other than guards may not name the fence;
    /// then the nodes are asked. If there is no such fence, takes the note away and returns true.
    async fn name_the_fence(
        &self,
        name: &Name,
        id: LeaseId,
        fence: &mut Option<Fence>,
        note: &mut Option<NewNote>,
    ) -> bool {
        if note.is_none() || fence.is_some() {
            return false;
        }
        let mut fences = Vec::new();
        let confirmed = |fences: &[Fence]| {
            let most = most_common(fences.iter().copied());
            most.filter(|most| fences.iter().filter(|fence| *fence == most).count() >= self.majority)
        };
        let mut fan = self.fan_all(|node, backend| {
            let query = self.about(node, name, id);
            async move { backend.inspect(&query).await }
        });
        fan.gather(&self.members, self.node_timeout, |node, page, _| {
            let found = page.ok().and_then(|page| self.lease_in(node, page, name, id));
            fences.extend(found.map(|holder| holder.grant.fence));
            if confirmed(&fences).is_some() { Enough::Yes } else { Enough::No }
        })
        .await;
        *fence = confirmed(&fences);
        note.take_if(|_| fence.is_none()).is_some()
    }

    /// The verdict on one lease: see the table of [`Quorum`](super::Quorum).
    fn renewed(self: &Arc<Self>, lease: &Renewal, about: Answers, pending: usize) -> Result<Renewed> {
        let confirmed: Vec<Grant> = about.confirmed().cloned().collect();
        let Answers { held, gone, failed } = about;
        if confirmed.len() >= self.majority {
            return Ok(Renewed::Held(self.merge(&confirmed)));
        }
        if gone.len() + held.len() - confirmed.len() <= self.members.len() - self.majority {
            return Err(self.too_few(failed, pending));
        }
        // The lease is over for good, but the nodes that still had it just renewed it, so release it there.
        let leftover = Fan::new(
            &self.members,
            held.iter().map(|(node, _)| *node),
            self.node_timeout,
            |node, backend| {
                let mut release = Release::new(lease.name.clone(), lease.id);
                release.fence = held.iter().find(|(of, _)| *of == node).map(|(_, grant)| grant.fence);
                async move { backend.release(&release).await }
            },
        );
        leftover.finish();
        Ok(Renewed::Gone(why(gone.into_iter())))
    }

    /// The renewal count that a shortening must name on each node. Nodes that missed a renewal have a lower count, so
    /// each is asked for its own count first, and does nothing if that has moved when the shortening comes.
    async fn counts_to_shorten(&self, lease: &Renewal, count: u64) -> Vec<u64> {
        let mut counts = vec![NEVER; self.members.len()];
        let mut highest = None;
        let mut fan = self.fan_all(|node, backend| {
            let query = self.about(node, &lease.name, lease.id);
            async move { backend.inspect(&query).await }
        });
        fan.gather(&self.members, self.node_timeout.min(lease.ttl), |node, page, pending| {
            let found = page.ok().and_then(|page| self.lease_in(node, page, &lease.name, lease.id));
            if let Some(holder) = found {
                counts[node] = holder.grant.renewals;
                highest = highest.max(Some(holder.grant.renewals));
            }
            // A node that is behind may catch up before the shortening comes, and then does nothing.
            let current = counts.iter().filter(|seen| **seen == count).count();
            match self.members.len() - self.majority {
                _ if current >= self.majority => Enough::Nearly,
                minority if pending <= minority => Enough::ButForTheDead,
                _ => Enough::No,
            }
        })
        .await;
        if highest == Some(count) { counts } else { vec![NEVER; self.members.len()] }
    }

    pub(super) async fn release(self: &Arc<Self>, lease: &Release) -> Result<Released> {
        // One release at a time for a lease: if two each ended it on some nodes, neither would have ended it.
        let _turn = self.turns.take(lease.id).await;
        let mut lease = lease.clone();
        let writes = lease.note.is_some();
        let Release { name, id, fence, note, .. } = &mut lease;
        self.name_the_fence(name, *id, fence, note).await;
        let lease = &lease;
        let mut fan = self.fan_all(|_, backend| {
            let lease = lease.clone();
            async move { backend.release(&lease).await }
        });
        let (mut done, mut gone, mut failed) = (0, Vec::new(), Vec::new());
        fan.gather(&self.members, self.node_timeout, |node, answer, _| {
            match answer {
                Ok(Released::Done) => done += 1,
                Ok(Released::Gone(why)) => gone.push((node, why)),
                Err(error) => failed.push(error),
            }
            let over = gone.len() > self.members.len() - self.majority;
            if done >= self.majority || over { Enough::Yes } else { Enough::No }
        })
        .await;
        let (all, majority) = (self.members.len(), self.majority);
        let pending = fan.pending();
        let unknown = failed.len() + pending;
        if done > 0 && lease.fence.is_some() {
            let nodes = gone.iter().filter(|(_, why)| *why == Gone::NotFound).map(|(node, _)| *node);
            self.end_strays(lease, nodes.collect(), fan);
        } else {
            fan.finish();
        }
        let may_be_done = done > 0 && done + gone.len() >= majority && done + unknown >= majority;
        let is_written = done >= majority && lease.note.is_some();
        if may_be_done && writes && !is_written {
            Err(not_written())
        } else if done >= majority || may_be_done {
            Ok(Released::Done)
        } else if gone.len() > all - majority {
            Ok(Released::Gone(why(gone.into_iter().map(|(_, why)| why))))
        } else {
            Err(self.too_few(failed, pending))
        }
    }

    /// Ends, in the background, the lease where it has another fence, on these nodes and on those that have not
    /// answered. The given fence is right, since some node released by it; a node with another fence missed phase 2.
    fn end_strays(self: &Arc<Self>, lease: &Release, nodes: Vec<usize>, fan: Fan<Released>) {
        let mut rest = fan.rest();
        if rest.is_empty() && nodes.is_empty() {
            return;
        }
        let (this, mut stray) = (Arc::clone(self), lease.clone());
        (stray.fence, stray.note) = (None, None);
        tokio::spawn(async move {
            for node in nodes {
                this.release_on(node, stray.clone()).await;
            }
            while let Some((node, answer)) = rest.next().await {
                if matches!(answer, Ok(Released::Gone(Gone::NotFound))) {
                    this.release_on(node, stray.clone()).await;
                }
            }
        });
    }
}

/// The error when a verb took effect on some nodes, and it is not known that a majority has stored its note.
fn not_written() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "too few nodes of the quorum are known to have stored the note; write it again, or look at the name",
    )
}

/// Why it is gone, according to the nodes that knew it: a node behind the majority may never have had it.
fn why(told: impl Iterator<Item = Gone>) -> Gone {
    most_common(told.filter(|why| *why != Gone::NotFound)).unwrap_or(Gone::NotFound)
}
