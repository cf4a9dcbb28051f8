//! Chooses the server for a call: the only one, or the cluster node that has the name's slot.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

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

/// Calls, by their numbers, that go over one link; `None`: it is not known which server has their names.
type Group = (Option<Arc<Link>>, Vec<usize>);

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
    fn known_link(&self, key: &str) -> Result<Option<Arc<Link>>> {
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

    async fn refresh(&self) -> Result<()> {
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

    /// Makes several calls together; each has its own answer.
    pub(super) async fn call_all(&self, calls: &[Call]) -> Vec<Result<Reply>> {
        self.call_each(calls, &[], |reply| std::future::ready(Ok(reply))).await
    }

    /// As [`call_all`](Route::call_all), and does `finish` with each reply.
    ///
    /// A node that is silent must not hold back the answers of the others for long: `patience` says for how long it may
    /// hold back the answer to each call. Calls that have none by then get an error; their work is dropped, so that the
    /// connection is checked.
    pub(super) async fn call_each<T, F>(
        &self,
        calls: &[Call],
        patience: &[Duration],
        finish: impl Fn(Reply) -> F,
    ) -> Vec<Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let mut answers: Vec<Option<Result<T>>> = calls.iter().map(|_| None).collect();
        let (groups, failed) = self.groups(calls, (0..calls.len()).collect());
        failed.into_iter().for_each(|(i, error)| answers[i] = Some(Err(error)));
        let finish = &finish;
        let work = groups.into_iter().map(|(link, group)| async move {
            let replies = match link {
                Some(link) => self.call_group(&link, calls, group).await,
                None => Box::pin(self.call_unknown(calls, group)).await,
            };
            let finished = replies.into_iter().map(|(i, reply)| async move {
                let answer = match reply {
                    Ok(reply) => finish(reply).await,
                    Err(error) => Err(error),
                };
                (i, answer)
            });
            join_all(finished).await
        });
        let started = Instant::now();
        let mut until = None;
        let mut under_way: FuturesUnordered<_> = work.collect();
        loop {
            let next = match until {
                Some(until) => timeout_at(until, under_way.next()).await,
                None => Ok(under_way.next().await),
            };
            let Ok(Some(group)) = next else { break };
            for (i, answer) in group {
                answers[i] = Some(answer);
                let end = patience.get(i).map(|patience| started + *patience);
                until = [until, end].into_iter().flatten().min();
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(late()))).collect()
    }

    /// Groups some of the calls by link; nearly always there is one. Also returns what has failed.
    fn groups(&self, calls: &[Call], some: Vec<usize>) -> (Vec<Group>, Vec<(usize, Error)>) {
        let (mut groups, mut failed) = (Vec::<Group>::new(), Vec::new());
        for i in some {
            match self.known_link(calls[i].key()) {
                Ok(link) => {
                    let at = |link: &Option<Arc<Link>>| link.as_ref().map(Arc::as_ptr);
                    match groups.iter_mut().find(|(other, _)| at(other) == at(&link)) {
                        Some((_, group)) => group.push(i),
                        None => groups.push((link, vec![i])),
                    }
                }
                Err(error) => failed.push((i, error)),
            }
        }
        (groups, failed)
    }

    /// Makes some of the calls, whose server is unknown. The cluster is asked once for all of them.
    async fn call_unknown(&self, calls: &[Call], some: Vec<usize>) -> Vec<(usize, Result<Reply>)> {
        if let Err(error) = self.refresh().await {
            return some.into_iter().map(|i| (i, Err(error.duplicate()))).collect();
        }
        let (groups, failed) = self.groups(calls, some);
        let mut answers: Vec<_> = failed.into_iter().map(|(i, error)| (i, Err(error))).collect();
        let mut sent = Vec::new();
        for (link, group) in groups {
            match link {
                Some(link) => sent.push(async move { self.call_group(&link, calls, group).await }),
                None => answers.extend(group.into_iter().map(|i| (i, Err(unserved())))),
            }
        }
        answers.extend(join_all(sent).await.into_iter().flatten());
        answers
    }

    /// Makes some of the calls, over one link.
    async fn call_group(
        &self,
        link: &Arc<Link>,
        calls: &[Call],
        group: Vec<usize>,
    ) -> Vec<(usize, Result<Reply>)> {
        let sent = send_group(link, calls, &group).await;
        let mut sent: Vec<_> = group.into_iter().zip(sent).collect();
        let mut answers = Vec::with_capacity(sent.len());
        // The server has forgotten its scripts: the first call brings this one back, then the others go out again.
        if sent.iter().filter(|(_, answer)| is_unknown_script(answer)).count() > 1 {
            let mut unknown: Vec<_> = sent.extract_if(.., |(_, answer)| is_unknown_script(answer)).collect();
            let again: Vec<usize> = unknown.split_off(1).into_iter().map(|(i, _)| i).collect();
            for (i, answer) in unknown {
                answers.push((i, self.settled(&calls[i], link, answer).await));
            }
            let sent_again = send_group(link, calls, &again).await;
            sent.extend(again.into_iter().zip(sent_again));
        }
        let settled = sent.into_iter().map(|(i, answer)| async move {
            let answer = self.settled(&calls[i], link, answer).await;
            (i, answer)
        });
        answers.extend(join_all(settled).await);
        answers
    }

    /// The final answer to a call, given what came over this link.
    async fn settled(&self, call: &Call, from: &Arc<Link>, answer: Result<Reply, Failure>) -> Result<Reply> {
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

/// Makes some of the calls, over one link; one answer for each.
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

fn unserved() -> Error {
    Error::new(ErrorKind::Unavailable, "no node of the cluster serves this name")
}

fn late() -> Error {
    Error::new(
        ErrorKind::NetworkTimeout,
        "this node of the cluster was slower than others; whether the call took effect is unknown",
    )
}

fn is_unknown_script(answer: &Result<Reply, Failure>) -> bool {
    matches!(answer, Err(Failure::Said(fault)) if fault::code(fault).as_deref() == Some("NOSCRIPT"))
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
