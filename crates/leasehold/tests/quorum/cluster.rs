//! A quorum of memory stores in paused time, each behind a script of faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Grant, HolderInfo, Query, Release, Renewal, Renewed};
use leasehold::backends::memory::Memory;
use leasehold::clock::{Clock, Moment, TokioClock};
use leasehold::layers::quorum::{Node, Quorum};
use leasehold::{ErrorKind, Locks, Mode, Name, Result};
use testkit::faulty::{Act, Faulty, Verb};

pub(crate) const VERBS: [Verb; 5] = [Verb::TryAcquire, Verb::Wait, Verb::Renew, Verb::Release, Verb::Other];
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// A clock whose wall time is some days ahead of another's.
#[derive(Debug)]
pub(crate) struct Ahead {
    of: Arc<dyn Clock>,
    days: AtomicU64,
}

impl Ahead {
    fn new(of: &Arc<dyn Clock>, days: u64) -> Arc<Self> {
        Arc::new(Ahead { of: Arc::clone(of), days: AtomicU64::new(days) })
    }

    pub(crate) fn set(&self, days: u64) {
        self.days.store(days, Ordering::SeqCst);
    }
}

impl Clock for Ahead {
    fn now(&self) -> Moment {
        self.of.now()
    }

    fn wall_micros(&self) -> u64 {
        self.of.wall_micros() + self.days.load(Ordering::SeqCst) * 86_400_000_000
    }
}

pub(crate) struct Cluster {
    pub(crate) clock: Arc<dyn Clock>,
    /// The stores themselves.
    pub(crate) memory: Vec<Memory>,
    /// The stores as the quorum meets them.
    pub(crate) nodes: Vec<Faulty>,
    pub(crate) quorum: Quorum,
}

impl Cluster {
    pub(crate) fn new(nodes: usize) -> Self {
        Cluster::with_clocks(vec![0; nodes]).0
    }

    /// A cluster whose nodes' wall clocks are this many days ahead, and how to set them.
    pub(crate) fn with_clocks(ahead: Vec<u64>) -> (Self, Vec<Arc<Ahead>>) {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
        let clocks: Vec<_> = ahead.into_iter().map(|days| Ahead::new(&clock, days)).collect();
        let memory: Vec<_> =
            clocks.iter().map(|ahead| Memory::with_clock(Arc::clone(ahead) as Arc<dyn Clock>)).collect();
        let nodes: Vec<_> =
            memory.iter().map(|store| Faulty::new(store.clone(), Arc::clone(&clock))).collect();
        let quorum = quorum_of(&nodes);
        (Cluster { clock, memory, nodes, quorum }, clocks)
    }

    /// Another client's layer over the same nodes.
    pub(crate) fn other(&self) -> Quorum {
        quorum_of(&self.nodes)
    }

    pub(crate) fn client(&self) -> Locks {
        let quorum: Arc<dyn Backend> = Arc::new(self.other());
        let runtime = tokio::runtime::Handle::current();
        Locks::builder(quorum).clock(Arc::clone(&self.clock)).runtime(runtime).build()
    }

    /// Sets what every call to a node does from now on.
    pub(crate) fn set(&self, node: usize, act: Act) {
        VERBS.iter().for_each(|verb| self.nodes[node].always(*verb, act));
    }

    pub(crate) fn kill(&self, node: usize) {
        self.set(node, Act::Fail(ErrorKind::Unavailable));
    }

    pub(crate) fn revive(&self, node: usize) {
        self.set(node, Act::Pass);
    }

    pub(crate) async fn acquire(&self, claim: &Claim) -> Result<Grant> {
        Ok(granted(self.quorum.try_acquire(claim).await?))
    }

    /// The holders of a name on a node, according to the store itself.
    pub(crate) async fn holders(&self, node: usize, name: &Name) -> Vec<HolderInfo> {
        let page = self.memory[node].inspect(&Query::Name(name.clone())).await.unwrap();
        page.items.into_iter().flat_map(|info| info.holders).collect()
    }

    /// On how many nodes the name is held.
    pub(crate) async fn held(&self, name: &Name) -> usize {
        let mut held = 0;
        for node in 0..self.nodes.len() {
            held += usize::from(!self.holders(node, name).await.is_empty());
        }
        held
    }
}

fn quorum_of(nodes: &[Faulty]) -> Quorum {
    Quorum::new(nodes.iter().map(|node| Node::new(Arc::new(node.clone())))).unwrap()
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

pub(crate) fn claim(on: &str) -> Claim {
    Claim::new(name(on), Mode::Exclusive, TTL, "test")
}

pub(crate) fn release(claim: &Claim) -> Release {
    Release::new(claim.name.clone(), claim.id)
}

pub(crate) async fn renew(quorum: &Quorum, claim: &Claim) -> Result<Renewed> {
    let renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
    quorum.renew(&[renewal]).await.pop().unwrap()
}

#[track_caller]
pub(crate) fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Waits until all background work is over.
pub(crate) async fn later() {
    tokio::time::sleep(Duration::from_secs(10)).await;
}
