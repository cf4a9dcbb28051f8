//! Makes several calls together: in a cluster, a batch for each node, side by side.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::Pipeline;
use tokio::time::{Instant, timeout_at};

use super::fault;
use super::link::{Failure, Link, Reply};
use super::route::{Route, unserved};
use super::scripts::Call;
use crate::error::{Error, ErrorKind, Result};

/// Calls, by their numbers, that go over one link; `None`: it is not known which server has their names.
type Group = (Option<Arc<Link>>, Vec<usize>);

impl Route {
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

fn late() -> Error {
    Error::new(
        ErrorKind::NetworkTimeout,
        "this node of the cluster was slower than others; whether the call took effect is unknown",
    )
}

fn is_unknown_script(answer: &Result<Reply, Failure>) -> bool {
    matches!(answer, Err(Failure::Said(fault)) if fault::code(fault).as_deref() == Some("NOSCRIPT"))
}
