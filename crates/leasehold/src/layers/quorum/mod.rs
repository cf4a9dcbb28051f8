//! One lock on N independent stores: a majority of them decides, and its fences increase.
//!
#![doc = include_str!("../../../docs/quorum.md")]

// What belongs here: how many nodes make one lock. What a node is belongs in its own store. Before changing anything
// here: `cargo test -p leasehold --all-features --test quorum`, then `make torture` with STORES=quorum.

mod acquire;
mod connect;
mod fan;
mod findings;
mod keep;
mod look;
mod tally;
mod turns;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::{
    Attempt, Backend, Claim, Info, Liveness, Page, Query, Release, Released, Renewal, Renewed, Revoked,
    Swept, TimeAuthority, Wake,
};
use crate::bugs::{self, Bug};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use fan::{Call, Enough, Fan, Member};
use tally::Tally;
use turns::Turns;

pub(crate) use connect::open;
pub(crate) use findings::{findings, preview};

/// The default time limit for a node: far longer than a healthy one needs; three in a row (two phases and giving back)
/// still fit into the client's request timeout of 5 s.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a node may take to look through all its names.
const SCAN_TIMEOUT: Duration = Duration::from_secs(60);

/// Fewer nodes are not a quorum: one that fails would be a majority of the rest.
const LEAST_NODES: usize = 3;

/// A store made of N stores that know nothing of each other: Redlock with fences.
///
/// Whatever a minority of the nodes does, the others go on: it may be down, slow, or cut off. A majority is always a
/// majority of **all** N nodes, so N should be odd: a fourth node adds only a fourth that can fail.
///
/// # How a claim becomes a lease
///
/// 1. The client asks all N nodes at once. No claim queues on a node. A majority must grant, each with its own fence;
///    F is one more than the highest.
/// 2. The client asks the nodes that granted to renew for the ttl and to raise lease and counter to F. A majority of N
///    must accept in time. The remaining time then counts from before this phase.
///
/// Otherwise the client gives everything back, including what is granted later, and never uses F. Any later majority
/// of phase 1 has a node in common with this majority of phase 2, whose counter is at least F: so fences increase in
/// the order in which grants follow each other. Two readers that enter at the same moment may share a fence.
///
/// Waiting is polling with random pauses ([`Options::poll`](crate::Options::poll)). If several claims each got some
/// nodes and none a majority, those with a vote give back and try again within the same attempt, so that one of the
/// clients that race for a free name gets it.
///
/// # Answers
///
/// M is the majority of N. A node that did not answer within its timeout counts as an error. The client answers as
/// soon as the other nodes cannot change the result.
///
/// | renew | answer |
/// |---|---|
/// | at least M held | held: until the M-th longest of them ends |
/// | more than N − M gone | gone, for ever: there cannot be M any more. The rest is released |
/// | anything else | error: not known. The next renewal tells, or the deadline passes |
///
/// A node that has lost a lease (restarted empty, or away for a whole ttl) does **not** get it again: a late request
/// of that kind could bring a released lease back. So a lease lives on the nodes that took part in its grant, and is
/// lost when fewer than M of these are left, even if others have come back meanwhile.
///
/// | release | answer |
/// |---|---|
/// | at least M done | done |
/// | at least M done or gone, some done, and M done or errors | done: it may have been held until now |
/// | more than N − M gone | gone: M cannot have had it |
/// | anything else | error: not known. A release can be repeated |
///
/// | try_acquire, without M grants | answer |
/// |---|---|
/// | more than N − M refuse the id | gone: another id may be granted |
/// | more than N − M errors, or a confirmed lease of this id may have its majority there | error |
/// | another client is in the way on some node | busy, after everything was given back |
/// | nobody is | gone: some nodes refuse this id, and the rest are too few |
///
/// A revocation counts when M nodes have it; the lease's renewals are then refused. A name is shown as held by every
/// client that may hold it on M nodes. Its last fence and its version are the highest that M nodes may have. The
/// counts of a sweep or a revocation are the highest of the nodes', except for expired leases: each is counted once,
/// when a majority has dropped it.
///
/// # What is not promised
///
/// - **Nodes that forget break exclusion.** If a node of a majority restarts without its data, or loses it in a
///   fail-over, another majority can form beside the first. Make each node store data on disk before it answers, or
///   keep a restarted node away for the longest ttl. Fences still increase, because they follow the clock.
/// - The clocks of the nodes must run at the client's rate within 1 %, and must not step forward during a ttl
///   where they decide expiry.
/// - Semaphores; a queue; wake-ups. [`Info`] says so.
/// - Two processes that release one lease at the same moment may both learn that it was gone already. If one shortens
///   a lease while another renews it, the one that renews may believe in it for too long.
/// - While nodes fail, the same claim again may get a higher fence than before.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use leasehold::backends::memory::Memory;
/// use leasehold::layers::quorum::{Node, Quorum};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let nodes = (0..3).map(|_| Node::new(Arc::new(Memory::new()))); // in earnest: three servers
/// let locks = leasehold::Locks::new(Quorum::new(nodes)?);
/// locks.mutex("nightly-report").lock().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Quorum {
    nodes: Arc<Nodes>,
}

/// One store of a [`Quorum`].
#[derive(Debug, Clone)]
pub struct Node {
    backend: Arc<dyn Backend>,
    identity: Option<String>,
}

impl Node {
    /// A node. It must be a store with a ttl, fences and a clock of its own.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Node { backend, identity: None }
    }

    /// Names the store, by a path or an address, so that a store listed twice is refused.
    #[must_use]
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }
}

impl Quorum {
    /// Makes a quorum of these nodes.
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than three nodes, for one that is listed twice (the same `Arc`, or the same
    /// identity), and for stores without a ttl, fences or a clock of their own.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Result<Self> {
        let nodes: Vec<Node> = nodes.into_iter().collect();
        if nodes.len() < LEAST_NODES {
            return Err(Error::invalid(format!(
                "a quorum needs at least {LEAST_NODES} nodes, better 5, and has {}: with fewer, use the store itself",
                nodes.len()
            )));
        }
        for (place, node) in nodes.iter().enumerate() {
            let same = |other: &Node| {
                let address = |node: &Node| Arc::as_ptr(&node.backend).cast::<()>();
                address(node) == address(other)
                    || (node.identity.is_some() && node.identity == other.identity)
            };
            if nodes[..place].iter().any(same) {
                return Err(twice(place));
            }
        }
        let info = info_of(&nodes)?;
        let members: Vec<_> = nodes.into_iter().map(|node| Arc::new(Member::new(node.backend))).collect();
        let tally = Arc::new(Mutex::new(Tally::of(members.len())));
        let nodes = Nodes {
            majority: members.len() / 2 + usize::from(!bugs::on(Bug::QuorumOfAMinority)),
            members,
            info,
            node_timeout: NODE_TIMEOUT,
            burnt: Mutex::default(),
            turns: Turns::default(),
            tally,
        };
        Ok(Quorum { nodes: Arc::new(nodes) })
    }

    /// Sets how long one call to one node may take. Default 1 s. A dead node costs this time only where the others
    /// cannot decide without it. Keep it well below the ttls in use, and below a third of
    /// [`Options::request_timeout`](crate::Options::request_timeout).
    #[must_use]
    pub fn node_timeout(self, timeout: Duration) -> Self {
        let Nodes { members, majority, info, .. } = &*self.nodes;
        let members: Vec<_> =
            members.iter().map(|member| Arc::new(Member::new(Arc::clone(&member.backend)))).collect();
        let tally = Arc::new(Mutex::new(Tally::of(members.len())));
        let nodes = Nodes {
            members,
            majority: *majority,
            info: *info,
            node_timeout: timeout,
            burnt: Mutex::default(),
            turns: Turns::default(),
            tally,
        };
        Quorum { nodes: Arc::new(nodes) }
    }
}

/// The error for a node listed twice, without the URL, which may contain a password.
fn twice(place: usize) -> Error {
    Error::invalid(format!(
        "node {} of the quorum was listed before: one store has one vote; list different servers",
        place + 1
    ))
}

/// The abilities of a quorum of these: what all of them can do.
fn info_of(nodes: &[Node]) -> Result<Info> {
    let mut info = abilities();
    for (place, node) in nodes.iter().enumerate() {
        let of = node.backend.info();
        if of.liveness != Liveness::Ttl || of.time != TimeAuthority::Store || !of.fenced {
            return Err(Error::invalid(format!(
                "node {} of the quorum, {}:, cannot be one: a node needs leases with a ttl, fences, and a clock of its own",
                place + 1,
                of.scheme
            )));
        }
        info.shared &= of.shared;
        info.downgrade &= of.downgrade;
        info.find_by_id &= of.find_by_id;
        info.shows_ids &= of.shows_ids;
        info.revoke &= of.revoke;
        info.notes &= of.notes;
        info.namespaced &= of.namespaced;
        info.max_ttl = info.max_ttl.min(of.max_ttl);
    }
    Ok(info)
}

/// The abilities of a quorum of stores with every ability.
pub(crate) const fn abilities() -> Info {
    let mut info = Info::new("quorum");
    info.fifo = false;
    info.push = false;
    info.max_permits = 0;
    info.min_validity_percent = 90;
    info
}

/// What all clones share.
#[derive(Debug)]
struct Nodes {
    members: Vec<Arc<Member>>,
    /// A majority of all of them.
    majority: usize,
    info: Info,
    node_timeout: Duration,
    /// Ids that were given back by force, and until when they are refused here.
    burnt: Mutex<HashMap<LeaseId, Instant>>,
    turns: Turns,
    /// Expired leases that are not counted yet.
    tally: Arc<Mutex<Tally>>,
}

impl Nodes {
    /// What a node shows for a lease id: the id, or its digest.
    fn shown_by(&self, node: usize, id: LeaseId) -> LeaseId {
        if self.members[node].backend.info().shows_ids { id } else { id.digest() }
    }

    /// Asks one node.
    fn call<T, F>(&self, node: usize, ask: impl FnOnce(Arc<dyn Backend>) -> F) -> Call<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        fan::call(&self.members[node], node, self.node_timeout, ask)
    }

    /// Asks all nodes.
    fn fan_all<T, F>(&self, ask: impl FnMut(usize, Arc<dyn Backend>) -> F) -> Fan<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        Fan::new(&self.members, 0..self.members.len(), self.node_timeout, ask)
    }

    /// Asks all nodes, and takes the answers of a majority and of all others that are not known to be dead.
    async fn ask<T, F>(
        &self,
        timeout: Duration,
        ask: impl FnMut(usize, Arc<dyn Backend>) -> F,
    ) -> Result<Vec<(usize, T)>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        let mut fan = Fan::new(&self.members, 0..self.members.len(), timeout, ask);
        fan.gather(&self.members, timeout, |node, answer, _| {
            match answer {
                Ok(answer) => answers.push((node, answer)),
                Err(error) => failed.push(error),
            }
            if answers.len() >= self.majority { Enough::ButForTheDead } else { Enough::No }
        })
        .await;
        let pending = fan.pending();
        fan.finish();
        if answers.len() >= self.majority { Ok(answers) } else { Err(self.too_few(failed, pending)) }
    }

    /// The error when there is no majority. If that many nodes report the same error, and trying again does not help,
    /// it is that error.
    fn too_few(&self, failed: Vec<Error>, pending: usize) -> Error {
        let (all, majority) = (self.members.len(), self.majority);
        let firm = failed.iter().filter(|error| !error.is_retryable()).map(Error::kind);
        if let Some(kind) = most_common(firm)
            && failed.iter().filter(|error| error.kind() == kind).count() > all - majority
            && let Some(error) = failed.iter().find(|error| error.kind() == kind)
        {
            return error.duplicate();
        }
        let timed_out = failed.iter().any(|error| error.kind() == ErrorKind::NetworkTimeout);
        let kind = if timed_out || pending > 0 { ErrorKind::NetworkTimeout } else { ErrorKind::Unavailable };
        let message = format!(
            "{} of {all} nodes did not answer as they should, and {majority} must; look at the nodes",
            failed.len() + pending
        );
        let error = Error::new(kind, message);
        match failed.into_iter().next() {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Internal, "a node of the quorum gave too few answers")
}

/// The most common value; the first one if several are.
fn most_common<T: Copy + Eq + Hash>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for value in values {
        match counts.iter_mut().find(|(seen, _)| *seen == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max()?;
    counts.into_iter().find(|(_, count)| *count == most).map(|(value, _)| value)
}

/// The longest time that a majority of nodes reaches; zero if there are too few.
fn lowest_of_majority(times: impl Iterator<Item = Duration>, majority: usize) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.get(majority - 1).copied().unwrap_or_default()
}

#[async_trait]
impl Backend for Quorum {
    fn info(&self) -> Info {
        self.nodes.info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.nodes.try_acquire(claim).await
    }

    async fn wait(&self, _: &Claim) -> Result<Wake> {
        std::future::pending().await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        self.nodes.renew(leases).await
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        self.nodes.release(lease).await
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let asked = self.nodes.ask(self.nodes.node_timeout, |_, node| {
            let name = name.clone();
            async move { node.revoke(&name, now, only).await }
        });
        let mut counts: Vec<u64> = asked.await?.into_iter().map(|(_, revoked)| revoked.leases).collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        // What a majority has, or may have: a node that lags behind may still show a lease that was released.
        let unknown = self.nodes.members.len() - counts.len();
        Ok(Revoked { leases: counts[self.nodes.majority - unknown - 1] })
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.nodes.inspect(query).await
    }

    async fn sweep(&self) -> Result<Swept> {
        // Note each answer when it comes, even without a majority: a node reports an expired lease only once.
        let found = |node: usize, backend: Arc<dyn Backend>| {
            let tally = Arc::clone(&self.nodes.tally);
            async move {
                let swept = backend.sweep().await?;
                tally.lock().add(node, swept.expired);
                Ok(swept)
            }
        };
        let answers = self.nodes.ask(SCAN_TIMEOUT, found).await?;
        let expired = self.nodes.tally.lock().count(self.nodes.majority);
        let most =
            |of: fn(&Swept) -> u64| answers.iter().map(|(_, swept)| of(swept)).max().unwrap_or_default();
        Ok(Swept {
            expired,
            tickets: most(|swept| swept.tickets),
            counters: most(|swept| swept.counters),
            held: most(|swept| swept.held),
            waiting: most(|swept| swept.waiting),
        })
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.members.iter().map(|member| &member.backend).collect();
        f.debug_struct("Quorum").field("nodes", &nodes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_lasts_as_long_as_its_shortest_member() {
        let times = [5, 1, 4, 2, 3].map(Duration::from_secs);
        assert_eq!(lowest_of_majority(times.into_iter(), 3), Duration::from_secs(3));
        assert_eq!(lowest_of_majority(times[..3].iter().copied(), 3), Duration::from_secs(1));
        assert_eq!(lowest_of_majority(times[..2].iter().copied(), 3), Duration::ZERO);
    }

    #[test]
    fn the_most_common_value_is_the_first_of_its_equals() {
        assert_eq!(most_common([1, 2, 2, 1, 3].into_iter()), Some(1));
        assert_eq!(most_common([1, 2, 2].into_iter()), Some(2));
        assert_eq!(most_common(std::iter::empty::<u8>()), None);
    }
}
