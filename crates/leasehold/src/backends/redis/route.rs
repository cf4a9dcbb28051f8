//! Chooses the server for a call: the only one, or the cluster node that has the name's slot.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::address::{Address, Layout};
use super::cluster::{Nodes, Slots};
use super::link::{Failure, Link, Reply};
use super::scripts::Call;
use super::{fault, keys};
use crate::error::{Error, ErrorKind, Result};

/// The pause between two tries while a slot moves from node to node.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// How many redirections a call follows without a pause: one from a node that is out of date, and one from a node that
/// is giving the slot away. More of them mean that the nodes disagree, and the client gives them time to agree.
const REDIRECTS: u32 = 2;

/// The longest pause between two tries while nodes disagree. The pauses begin with [`TRY_AGAIN`] and double.
const DISAGREEMENT: Duration = Duration::from_millis(160);

/// The way to the server, or to the nodes of a cluster.
pub(super) struct Route {
    address: Arc<Address>,
    to: To,
}

enum To {
    One(Arc<Link>),
    Cluster(Arc<Nodes>),
}

impl Drop for Route {
    fn drop(&mut self) {
        if let To::Cluster(nodes) = &self.to {
            nodes.stop_asking();
        }
    }
}

/// What to do after an answer.
enum Step {
    Done,
    /// Send the script as text.
    Load,
    /// Nothing has happened yet: send the call again, to this link.
    Go(Arc<Link>, bool),
    Pause,
    Refresh(Arc<Nodes>),
}

impl Route {
    /// Makes a route; in a cluster with the known slots. Answers may take `patience` longer than usual.
    pub(super) fn new(address: Arc<Address>, home: Handle, patience: Duration, slots: &Arc<Slots>) -> Self {
        let one = |server| {
            To::One(Arc::new(Link::new(Arc::clone(&address), server, home.clone()).patient(patience)))
        };
        let to = match address.layout {
            Layout::Single => one(address.hosts.first().cloned()),
            Layout::Sentinel(_) => one(None),
            Layout::Cluster => {
                let nodes = Nodes::new(Arc::clone(&address), home.clone(), patience, Arc::clone(slots));
                To::Cluster(nodes)
            }
        };
        Route { address, to }
    }

    /// Makes a route over the caller's own connection to a single server, as long as that lasts.
    pub(super) fn lent(
        address: Arc<Address>,
        home: Handle,
        connection: redis::aio::MultiplexedConnection,
    ) -> Self {
        let server = address.hosts.first().cloned();
        let link = Link::new(Arc::clone(&address), server, home).lent(connection);
        Route { address, to: To::One(Arc::new(link)) }
    }

    /// Links to all servers that may have names; in a cluster, those that have slots.
    pub(super) async fn everywhere(&self) -> Result<Vec<Arc<Link>>> {
        match &self.to {
            To::One(one) => Ok(vec![Arc::clone(one)]),
            To::Cluster(nodes) => {
                nodes.refresh().await?;
                nodes.serving()
            }
        }
    }

    /// Links that are already known, to listen on.
    pub(super) fn known(&self) -> Result<Vec<Arc<Link>>> {
        match &self.to {
            To::One(one) => Ok(vec![Arc::clone(one)]),
            To::Cluster(nodes) => nodes.serving(),
        }
    }

    /// The link to the server that has this key; `None` if it is not known which that is.
    pub(super) fn known_link(&self, key: &str) -> Result<Option<Arc<Link>>> {
        let nodes = match &self.to {
            To::One(one) => return Ok(Some(Arc::clone(one))),
            To::Cluster(nodes) => nodes,
        };
        let Some(node) = nodes.slots.serving(keys::slot(key)) else { return Ok(None) };
        let link = nodes.link(&node)?;
        // It may have a successor, and the caller may drop the call before the node turns out to be gone.
        if link.is_down() {
            nodes.look_for_next();
        }
        Ok(Some(link))
    }

    async fn link(&self, key: &str) -> Result<Arc<Link>> {
        if let Some(link) = self.known_link(key)? {
            return Ok(link);
        }
        self.refresh().await?;
        self.known_link(key)?.ok_or_else(unserved)
    }

    pub(super) async fn refresh(&self) -> Result<()> {
        match &self.to {
            To::One(_) => Ok(()),
            // Rare and large, so it is boxed.
            To::Cluster(nodes) => Box::pin(nodes.refresh()).await,
        }
    }

    /// Looks for the next primary, so that a later call finds it; the current call has failed. A cluster node may be
    /// gone, and the others say who has its slots only when asked.
    fn look_for_next(&self) {
        if let To::Cluster(nodes) = &self.to {
            nodes.look_for_next();
        }
    }

    /// Makes one script call.
    pub(super) async fn call(&self, call: &Call) -> Result<Reply> {
        let link = self.link(call.key()).await?;
        let answer = link.send(&call.script.by_hash(call)).await;
        self.settled(call, &link, answer).await
    }

    /// The final answer to a call, given what came over this link.
    pub(super) async fn settled(
        &self,
        call: &Call,
        from: &Arc<Link>,
        answer: Result<Reply, Failure>,
    ) -> Result<Reply> {
        match answer {
            Ok(reply) => Ok(reply),
            // Rare and large, so it is boxed.
            failure => Box::pin(self.follow(call, from, failure)).await,
        }
    }

    /// Sends a call again while the answer says that nothing has happened yet: the script is unknown there, or the
    /// slot is elsewhere or moving. Never after a connection broke: then it may have happened.
    async fn follow(
        &self,
        call: &Call,
        from: &Arc<Link>,
        mut answer: Result<Reply, Failure>,
    ) -> Result<Reply> {
        let mut from = Arc::clone(from);
        let mut text = false;
        let mut link = None;
        let mut asking = false;
        let (mut redirects, mut pause) = (0, TRY_AGAIN);
        let started = Instant::now();
        for _ in 0.. {
            let fault = match answer {
                Ok(reply) => return Ok(reply),
                Err(Failure::Said(fault)) => fault,
                Err(failure) => {
                    self.look_for_next();
                    return Err(failure.into());
                }
            };
            let late = started.elapsed() >= self.address.response_timeout;
            match self.step(&fault, &from, late)? {
                Step::Done => return Err(self.given_up(&fault)),
                Step::Load if text => return Err(fault::error(&fault)),
                Step::Load => text = true,
                Step::Go(to, ask) => {
                    redirects += 1;
                    if redirects > REDIRECTS {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(DISAGREEMENT);
                    }
                    (link, asking) = (Some(to), ask);
                }
                Step::Pause => tokio::time::sleep(TRY_AGAIN).await,
                Step::Refresh(nodes) => {
                    tokio::time::sleep(TRY_AGAIN).await;
                    nodes.refresh().await?;
                    (link, asking) = (None, false);
                }
            }
            from = match &link {
                Some(link) => Arc::clone(link),
                None => self.link(call.key()).await?,
            };
            let cmd = if text { call.script.by_text(call) } else { call.script.by_hash(call) };
            answer = if asking { ask(&from, cmd).await } else { from.send(&cmd).await };
        }
        Err(fault::strange())
    }

    /// The error for a call that is not sent again.
    fn given_up(&self, fault: &RedisError) -> Error {
        let redirected = matches!(self.to, To::Cluster(_)) && fault.redirect_node().is_some();
        if redirected || fault::asks_for_next(fault) {
            self.look_for_next();
        }
        if redirected {
            let disagree = "the nodes of the cluster do not agree who serves this name";
            return Error::new(ErrorKind::Unavailable, disagree);
        }
        fault::error(fault)
    }

    fn step(&self, fault: &RedisError, from: &Link, late: bool) -> Result<Step> {
        let code = fault::code(fault).unwrap_or_default();
        if code == "NOSCRIPT" {
            return Ok(Step::Load);
        }
        let nodes = match &self.to {
            To::Cluster(nodes) if !late => nodes,
            _ => return Ok(Step::Done),
        };
        Ok(match code.as_str() {
            "MOVED" | "ASK" => {
                let Some((node, slot)) = fault.redirect_node() else { return Ok(Step::Done) };
                // A node without a host is the one that answered, at another port.
                let node = match (node.strip_prefix(':'), from.host()) {
                    (Some(port), Some(host)) => format!("{host}:{port}"),
                    _ => node.to_owned(),
                };
                if code == "MOVED" {
                    nodes.slots.moved(slot, &node);
                }
                Step::Go(nodes.link(&node)?, code == "ASK")
            }
            "TRYAGAIN" => Step::Pause,
            "READONLY" => Step::Refresh(Arc::clone(nodes)),
            _ => Step::Done,
        })
    }

    /// Sends one command to the server that has this key.
    pub(super) async fn send(&self, key: &str, cmd: &Cmd) -> Result<Value> {
        Ok(self.link(key).await?.send(cmd).await?.value)
    }
}

pub(super) fn unserved() -> Error {
    Error::new(ErrorKind::Unavailable, "no node of the cluster serves this name")
}

/// Sends a command to the node that a slot is moving to, which serves it only after `ASKING`.
async fn ask(link: &Arc<Link>, cmd: Cmd) -> Result<Reply, Failure> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.add_command(redis::cmd("ASKING")).add_command(cmd);
    match link.send_all(&pipeline, 2).await?.pop() {
        Some(answer) => answer.map_err(Failure::Said),
        None => Err(Failure::Connecting(fault::strange())),
    }
}
