//! Which server a call goes to: the one there is, or the node of a cluster that has the name's slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, ConnectionAddr, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::address::{Address, Layout};
use super::link::{Failure, Link, Reply};
use super::scripts::Call;
use super::{fault, keys};
use crate::error::{Error, ErrorKind, Result};

/// Between two tries while a slot is on its way from node to node.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// The links there are.
pub(super) struct Route {
    address: Arc<Address>,
    home: Handle,
    /// To the one server; `None` in a cluster.
    one: Option<Arc<Link>>,
    map: Mutex<Map>,
    /// How much longer than usual an answer may take.
    patience: Duration,
}

/// What is known of a cluster.
#[derive(Default)]
struct Map {
    /// First and last slot, and the node that serves them.
    slots: Vec<(u16, u16, String)>,
    links: HashMap<String, Arc<Link>>,
}

/// What to do about an answer.
enum Step {
    Done,
    /// The script has to be sent as a text.
    Load,
    /// Nothing has happened yet; again, there.
    Go(Arc<Link>, bool),
    Pause,
    Refresh,
}

impl Route {
    pub(super) fn new(address: Arc<Address>, home: Handle, patience: Duration) -> Self {
        let one = match address.layout {
            Layout::Single => Some(address.hosts.first().cloned()),
            Layout::Sentinel(_) => Some(None),
            Layout::Cluster => None,
        };
        let one = one
            .map(|server| Arc::new(Link::new(Arc::clone(&address), server, home.clone()).patient(patience)));
        Route { address, home, one, map: Mutex::default(), patience }
    }

    /// Over a connection of the caller's own, as long as it lasts.
    pub(super) fn lent(mut self, connection: redis::aio::MultiplexedConnection) -> Self {
        let server = self.address.hosts.first().cloned();
        let link = Link::new(Arc::clone(&self.address), server, self.home.clone()).lent(connection);
        self.one = Some(Arc::new(link));
        self
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to a node, as clusters write it: `host:port`.
    fn node(&self, at: &str) -> Result<Arc<Link>> {
        if let Some(link) = self.map().links.get(at) {
            return Ok(Arc::clone(link));
        }
        let (host, port) = at.rsplit_once(':').ok_or_else(fault::strange)?;
        let port = port.split('@').next().unwrap_or(port).parse().map_err(|_| fault::strange())?;
        let server = self.address.at(host.trim_matches(['[', ']']).to_owned(), port);
        let link =
            Link::new(Arc::clone(&self.address), Some(server), self.home.clone()).patient(self.patience);
        let link = Arc::new(link);
        self.map().links.insert(at.to_owned(), Arc::clone(&link));
        Ok(link)
    }

    /// Links to all servers that may have names: in a cluster, those that have slots.
    pub(super) async fn everywhere(&self) -> Result<Vec<Arc<Link>>> {
        if let Some(one) = &self.one {
            return Ok(vec![Arc::clone(one)]);
        }
        self.refresh().await?;
        let mut nodes: Vec<String> = self.map().slots.iter().map(|(_, _, node)| node.clone()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.iter().map(|node| self.node(node)).collect()
    }

    /// Links that are known, to listen on.
    pub(super) fn known(&self) -> Vec<Arc<Link>> {
        match &self.one {
            Some(one) => vec![Arc::clone(one)],
            None => self.map().links.values().cloned().collect(),
        }
    }

    async fn link(&self, key: &str) -> Result<Arc<Link>> {
        if let Some(one) = &self.one {
            return Ok(Arc::clone(one));
        }
        let slot = keys::slot(key);
        if let Some(node) = self.serving(slot) {
            return self.node(&node);
        }
        Box::pin(self.refresh()).await?;
        match self.serving(slot) {
            Some(node) => self.node(&node),
            None => Err(Error::new(ErrorKind::Unavailable, "no node of the cluster serves this name")),
        }
    }

    /// The node of a cluster that is known to serve a slot.
    fn serving(&self, slot: u16) -> Option<String> {
        let map = self.map();
        map.slots
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(_, _, node)| node.clone())
    }

    /// Asks the nodes who serves what; the first that answers is believed.
    async fn refresh(&self) -> Result<()> {
        let mut nodes: Vec<String> = self.map().links.keys().cloned().collect();
        for host in &self.address.hosts {
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = host else {
                continue;
            };
            let node = format!("{host}:{port}");
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let mut last = Error::new(ErrorKind::Unavailable, "no node of the cluster answers");
        for node in nodes {
            match self.node(&node)?.send(&cmd).await {
                Ok(answer) => match read_slots(answer.value, &node) {
                    Some(slots) if !slots.is_empty() => {
                        self.map().slots = slots;
                        return Ok(());
                    }
                    _ => last = Error::new(ErrorKind::Unavailable, "the cluster serves no slots"),
                },
                Err(failure) => last = failure.into(),
            }
        }
        Err(last)
    }

    /// One call of a script.
    pub(super) async fn call(&self, call: &Call) -> Result<Reply> {
        let link = self.link(call.key()).await?;
        let answer = link.send(&call.script.by_hash(call)).await;
        self.settled(call, answer).await
    }

    /// Calls that go out together and are answered each on its own.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Vec<Result<Reply>> {
        // By the links they go over; nearly always one.
        let mut groups: Vec<(Arc<Link>, Vec<usize>)> = Vec::new();
        let mut answers: Vec<Option<Result<Reply>>> = calls.iter().map(|_| None).collect();
        for (i, call) in calls.iter().enumerate() {
            match self.link(call.key()).await {
                Ok(link) => match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &link)) {
                    Some((_, group)) => group.push(i),
                    None => groups.push((link, vec![i])),
                },
                Err(error) => answers[i] = Some(Err(error)),
            }
        }
        let sent = groups.into_iter().map(|(link, group)| async move {
            let answers = send_group(&link, calls, &group).await;
            (link, group, answers)
        });
        for (link, group, sent) in join_all(sent).await {
            // After the server has forgotten its scripts: the first call brings this one back, the others go out again.
            let unknown = group.iter().zip(&sent).filter(|(_, answer)| is_unknown_script(answer));
            let mut unknown: Vec<usize> = unknown.map(|(i, _)| *i).collect();
            let mut again = Vec::new();
            if unknown.len() > 1 {
                again = unknown.split_off(1);
            }
            for (i, answer) in group.into_iter().zip(sent) {
                if !again.contains(&i) {
                    answers[i] = Some(self.settled(&calls[i], answer).await);
                }
            }
            if !again.is_empty() {
                for (i, answer) in again.iter().zip(send_group(&link, calls, &again).await) {
                    answers[*i] = Some(self.settled(&calls[*i], answer).await);
                }
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(fault::strange()))).collect()
    }

    /// The answer, if there is one.
    async fn settled(&self, call: &Call, answer: Result<Reply, Failure>) -> Result<Reply> {
        match answer {
            Ok(reply) => Ok(reply),
            // Rare and large: not a part of every call.
            failure => Box::pin(self.follow(call, failure)).await,
        }
    }

    /// Sends a call on as long as the answer says that nothing has happened yet: the script is not known there,
    /// the slot is elsewhere or on its way. Never after a connection broke: then it may have happened.
    async fn follow(&self, call: &Call, mut answer: Result<Reply, Failure>) -> Result<Reply> {
        let mut text = false;
        let mut link = None;
        let mut asking = false;
        let started = Instant::now();
        for _ in 0.. {
            let fault = match answer {
                Ok(reply) => return Ok(reply),
                Err(Failure::Said(fault)) => fault,
                Err(failure) => return Err(failure.into()),
            };
            let late = started.elapsed() >= self.address.response_timeout;
            match self.step(&fault, late)? {
                Step::Done => return Err(fault::error(&fault)),
                Step::Load if text => return Err(fault::error(&fault)),
                Step::Load => text = true,
                Step::Go(to, ask) => (link, asking) = (Some(to), ask),
                Step::Pause => tokio::time::sleep(TRY_AGAIN).await,
                Step::Refresh => {
                    tokio::time::sleep(TRY_AGAIN).await;
                    self.refresh().await?;
                    link = None;
                }
            }
            let to = match &link {
                Some(link) => Arc::clone(link),
                None => self.link(call.key()).await?,
            };
            let cmd = if text { call.script.by_text(call) } else { call.script.by_hash(call) };
            answer = if asking { ask(&to, cmd).await } else { to.send(&cmd).await };
        }
        Err(fault::strange())
    }

    fn step(&self, fault: &RedisError, late: bool) -> Result<Step> {
        let code = fault::code(fault).unwrap_or_default();
        if code == "NOSCRIPT" {
            return Ok(Step::Load);
        }
        if self.one.is_some() || late {
            return Ok(Step::Done);
        }
        Ok(match code.as_str() {
            "MOVED" | "ASK" => {
                let Some((node, slot)) = fault.redirect_node() else { return Ok(Step::Done) };
                if code == "MOVED" {
                    self.moved(slot, node);
                }
                Step::Go(self.node(node)?, code == "ASK")
            }
            "TRYAGAIN" => Step::Pause,
            "READONLY" => Step::Refresh,
            _ => Step::Done,
        })
    }

    fn moved(&self, slot: u16, node: &str) {
        // In front, so that it is found first; the next refresh tidies up.
        let mut map = self.map();
        map.slots.retain(|(first, last, _)| !(*first == slot && *last == slot));
        map.slots.insert(0, (slot, slot, node.to_owned()));
        if map.slots.len() > 2 * 16384 {
            map.slots.clear();
        }
    }

    /// One command to the server that has this key.
    pub(super) async fn send(&self, key: &str, cmd: &Cmd) -> Result<Value> {
        Ok(self.link(key).await?.send(cmd).await?.value)
    }
}

/// Some of the calls, over one link; one answer for each.
async fn send_group(link: &Arc<Link>, calls: &[Call], group: &[usize]) -> Vec<Result<Reply, Failure>> {
    let mut pipeline = Pipeline::with_capacity(group.len());
    for i in group {
        pipeline.add_command(calls[*i].script.by_hash(&calls[*i]));
    }
    match link.send_all(&pipeline, group.len()).await {
        Ok(replies) => {
            let mut replies = replies.into_iter().map(|reply| reply.map_err(Failure::Said));
            let missing = || Err(Failure::Connecting(fault::strange()));
            group.iter().map(|_| replies.next().unwrap_or_else(missing)).collect()
        }
        Err(failure) => {
            let error = Error::from(failure);
            group.iter().map(|_| Err(Failure::Connecting(error.duplicate()))).collect()
        }
    }
}

fn is_unknown_script(answer: &Result<Reply, Failure>) -> bool {
    matches!(answer, Err(Failure::Said(fault)) if fault::code(fault).as_deref() == Some("NOSCRIPT"))
}

/// On the node that a slot is moving to, which serves it only when asked so.
async fn ask(link: &Arc<Link>, cmd: Cmd) -> Result<Reply, Failure> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.add_command(redis::cmd("ASKING")).add_command(cmd);
    match link.send_all(&pipeline, 2).await?.pop() {
        Some(answer) => answer.map_err(Failure::Said),
        None => Err(Failure::Connecting(fault::strange())),
    }
}

/// `[[first, last, [host, port, …], …], …]`; an empty host is the one that was asked.
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
