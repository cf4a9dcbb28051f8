//! What a client knows of a cluster: which node serves which slots, and one route's connections to the nodes.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionAddr, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::address::Address;
use super::fault;
use super::link::Link;
use crate::error::{Error, ErrorKind, Result};

/// After a fault the client asks the cluster for its slots at most this often: a fail-over takes seconds, and every
/// client asks.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Which node serves which slots. All routes of a store share it, so that all know what one has learned.
#[derive(Default)]
pub(super) struct Slots(Mutex<Served>);

#[derive(Default)]
struct Served {
    /// First and last slot, and the node that serves them.
    ranges: Vec<(u16, u16, String)>,
    /// Increases with every answer of the cluster: nodes may be gone since.
    version: u64,
    /// When a route last began to ask because of a fault.
    asked: Option<Instant>,
}

impl Slots {
    /// The node that serves a slot, if known.
    pub(super) fn serving(&self, slot: u16) -> Option<String> {
        let served = self.0.lock();
        let range = served.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, node)| node.clone())
    }

    /// All known nodes that serve slots.
    fn nodes(&self) -> Vec<String> {
        let mut nodes: Vec<String> = self.0.lock().ranges.iter().map(|(_, _, node)| node.clone()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn learn(&self, ranges: Vec<(u16, u16, String)>) {
        let mut served = self.0.lock();
        served.ranges = ranges;
        served.version += 1;
    }

    pub(super) fn moved(&self, slot: u16, node: &str) {
        // Insert at the front, so that it is found first; the next answer of the cluster replaces all.
        let mut served = self.0.lock();
        served.ranges.retain(|(first, last, _)| !(*first == slot && *last == slot));
        served.ranges.insert(0, (slot, slot, node.to_owned()));
        if served.ranges.len() > 2 * 16384 {
            served.ranges.clear();
        }
    }

    /// Whether it is time to ask again; if so, no other caller gets a yes for a while.
    fn is_time_to_ask(&self) -> bool {
        let (mut served, now) = (self.0.lock(), Instant::now());
        let is_time = served.asked.is_none_or(|asked| now.duration_since(asked) >= ASK_EVERY);
        if is_time {
            served.asked = Some(now);
        }
        is_time
    }
}

/// The nodes of a cluster, as one route reaches them.
pub(super) struct Nodes {
    address: Arc<Address>,
    home: Handle,
    patience: Duration,
    pub(super) slots: Arc<Slots>,
    links: Mutex<Links>,
    /// When the cluster was last asked which node serves what, and the outcome. Held while it is asked.
    asked: tokio::sync::Mutex<Option<(Instant, Result<()>)>>,
    /// The task that asks which node serves what.
    asking: Mutex<Option<AbortHandle>>,
    /// Itself, for the links.
    me: Weak<Nodes>,
}

#[derive(Default)]
struct Links {
    to: HashMap<String, Arc<Link>>,
    /// The version of the slots when links to vanished nodes were last dropped.
    version: u64,
}

impl Nodes {
    pub(super) fn new(
        address: Arc<Address>,
        home: Handle,
        patience: Duration,
        slots: Arc<Slots>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Nodes {
            address,
            home,
            patience,
            slots,
            links: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
            asking: Mutex::default(),
            me: Weak::clone(me),
        })
    }

    /// The link to a node, as clusters write it: `host:port`.
    pub(super) fn link(&self, at: &str) -> Result<Arc<Link>> {
        self.forget();
        if let Some(link) = self.links.lock().to.get(at) {
            return Ok(Arc::clone(link));
        }
        let (host, port) = at.rsplit_once(':').ok_or_else(fault::strange)?;
        let port = port.split('@').next().unwrap_or(port).parse().map_err(|_| fault::strange())?;
        let server = self.address.at(host.trim_matches(['[', ']']).to_owned(), port);
        let link = Link::new(Arc::clone(&self.address), Some(server), self.home.clone());
        let link = Arc::new(link.patient(self.patience).of(Weak::clone(&self.me)));
        self.links.lock().to.insert(at.to_owned(), Arc::clone(&link));
        Ok(link)
    }

    /// Drops the links to nodes that no longer serve anything. Another program may get their addresses.
    fn forget(&self) {
        let version = self.slots.0.lock().version;
        if self.links.lock().version == version {
            return;
        }
        let known = self.to_ask();
        let gone: Vec<_> = {
            let mut links = self.links.lock();
            links.version = version;
            links.to.extract_if(|node, _| !known.contains(node)).collect()
        };
        drop(gone);
    }

    /// Links to all known nodes that serve slots.
    pub(super) fn serving(&self) -> Result<Vec<Arc<Link>>> {
        self.slots.nodes().iter().map(|node| self.link(node)).collect()
    }

    /// The hosts that were configured, then the other nodes that serve slots.
    fn to_ask(&self) -> Vec<String> {
        let configured = self.address.hosts.iter().filter_map(|host| match host {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(format!("{host}:{port}"))
            }
            _ => None,
        });
        let mut all: Vec<String> = configured.collect();
        for node in self.slots.nodes() {
            if !all.contains(&node) {
                all.push(node);
            }
        }
        all
    }

    /// Asks which node serves what. The client believes the first node that answers and finds the cluster in order. A
    /// node that does not may be cut off and out of date: its answer counts only if no other node answers better and
    /// nothing is known yet. One answer serves all callers that were waiting for it.
    pub(super) async fn refresh(&self) -> Result<()> {
        let began = Instant::now();
        let mut asked = self.asked.lock().await;
        if let Some((at, outcome)) = &*asked
            && *at >= began
        {
            return outcome.as_ref().copied().map_err(Error::duplicate);
        }
        let outcome = self.ask_all().await;
        let told = outcome.as_ref().copied().map_err(Error::duplicate);
        *asked = Some((Instant::now(), outcome));
        told
    }

    async fn ask_all(&self) -> Result<()> {
        let mut last = Error::new(ErrorKind::Unavailable, "no node of the cluster answers");
        let mut doubtful = None;
        for node in self.to_ask() {
            match self.ask(&node).await {
                Ok((ranges, _)) if ranges.is_empty() => {
                    last = Error::new(ErrorKind::Unavailable, "the cluster serves no slots");
                }
                Ok((ranges, true)) => {
                    self.slots.learn(ranges);
                    return Ok(());
                }
                Ok((ranges, false)) => {
                    doubtful.get_or_insert(ranges);
                }
                Err(error) => last = error,
            }
        }
        let ranges = doubtful.ok_or(last)?;
        if self.slots.nodes().is_empty() {
            self.slots.learn(ranges);
        }
        Ok(())
    }

    /// One node's view of which node serves which slots, and whether it finds the cluster in order.
    async fn ask(&self, node: &str) -> Result<(Vec<(u16, u16, String)>, bool)> {
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
        let mut answers = self.link(node)?.send_all(&questions, 2).await?.into_iter();
        let slots = answers.next().ok_or_else(fault::strange)?.map_err(|fault| fault::error(&fault))?;
        let in_order = match answers.next() {
            Some(Ok(state)) => redis::from_redis_value::<String>(state.value)
                .is_ok_and(|state| !state.contains("cluster_state:fail")),
            // The user may not ask this.
            _ => true,
        };
        Ok((read_slots(slots.value, node).unwrap_or_default(), in_order))
    }

    /// As [`refresh`](Nodes::refresh), in a task, unless a route of this store began to ask a moment ago.
    pub(super) fn look_for_next(self: &Arc<Self>) {
        let mut asking = self.asking.lock();
        if asking.as_ref().is_none_or(AbortHandle::is_finished) && self.slots.is_time_to_ask() {
            let nodes = Arc::clone(self);
            let task = self.home.spawn(async move {
                // The next call that fails asks again.
                let _ = nodes.refresh().await;
            });
            *asking = Some(task.abort_handle());
        }
    }

    /// Ends the task of [`look_for_next`](Nodes::look_for_next), because its route is gone.
    pub(super) fn stop_asking(&self) {
        self.asking.lock().take().iter().for_each(AbortHandle::abort);
    }
}

/// Parses `[[first, last, [host, port, …], …], …]`; an empty host means the node that was asked.
fn read_slots(answer: Value, asked: &str) -> Option<Vec<(u16, u16, String)>> {
    let Value::Array(ranges) = answer else { return None };
    let asked = asked.rsplit_once(':')?.0;
    let slot = |value: &Value| match value {
        Value::Int(slot) => u16::try_from(*slot).ok(),
        _ => None,
    };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let Value::Array(node) = range.get(2)? else { return None };
        let host = match node.first()? {
            Value::BulkString(host) if !host.is_empty() => std::str::from_utf8(host).ok()?,
            _ => asked,
        };
        Some((slot(range.first()?)?, slot(range.get(1)?)?, format!("{host}:{}", slot(node.get(1)?)?)))
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(slots: &Arc<Slots>) -> Arc<Nodes> {
        let address = Arc::new(Address::parse("redis-cluster://a:1,b:2").unwrap());
        Nodes::new(address, Handle::current(), Duration::ZERO, Arc::clone(slots))
    }

    #[tokio::test]
    async fn configured_hosts_are_asked_first_and_gone_nodes_never() {
        let slots = Arc::default();
        let (one, other) = (nodes(&slots), nodes(&slots));
        slots.learn(vec![(0, 99, "c:3".into()), (100, 16383, "b:2".into())]);
        assert_eq!(one.to_ask(), ["a:1", "b:2", "c:3"]);
        for nodes in [&one, &other] {
            nodes.link("a:1").unwrap();
            nodes.link("c:3").unwrap();
        }
        slots.learn(vec![(0, 16383, "d:4".into())]);
        for nodes in [&one, &other] {
            assert_eq!(nodes.to_ask(), ["a:1", "b:2", "d:4"]);
            nodes.link("d:4").unwrap();
            let mut known: Vec<String> = nodes.links.lock().to.keys().cloned().collect();
            known.sort_unstable();
            assert_eq!(known, ["a:1", "d:4"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_faults_one_route_asks_once_a_second() {
        let slots = Slots::default();
        assert_eq!([slots.is_time_to_ask(), slots.is_time_to_ask()], [true, false]);
        tokio::time::advance(ASK_EVERY).await;
        assert_eq!([slots.is_time_to_ask(), slots.is_time_to_ask()], [true, false]);
    }
}
