//! `leasehold wait` and `leasehold watch`: they poll until something changes.
//!
//! They poll because no store notifies a client that neither holds nor waits. They change nothing.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer, deliver, say, whole};
use crate::url::StoreArgs;
use crate::{duration, list, lock, store, table, view};

/// How often `wait` looks: soon at first, then so rarely that it costs next to nothing.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Wait until a lock is free, without taking it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Checks up to twice a second. Another client may take the lock right after; to run
something under the lock, use `leasehold run`. If the store stops answering, it is
asked again until the --wait time is over.

Exit status: 0 free, 75 still held after the --wait time, 69 the store cannot be
opened, or does not answer when the --wait time is over.

Example:
  leasehold wait -w 60 deploy && echo free")]
pub(crate) struct Wait {
    #[command(flatten)]
    store: StoreArgs,
    /// Wait at most this many seconds; fractions and units (500ms, 10m) are allowed.
    #[arg(short, long, value_name = "SECS", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// How to print the answer; a table prints nothing.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// The name of the lock.
    name: String,
}

/// Print changes of locks as they happen.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Checks the store at intervals: a change that is undone between two checks does not
show, and neither do renewals. Ends with Ctrl-C, or when its output is closed. If
the store stops answering, it is asked again; stderr says when it stops and when
it is back.

Examples:
  leasehold watch
  leasehold watch deploy/ --output json")]
pub(crate) struct Watch {
    #[command(flatten)]
    store: StoreArgs,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration::parse)]
    interval: Duration,
    /// How to print changes; JSON is one object per line.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// Only names that start with this.
    #[arg(default_value = "")]
    prefix: String,
}

pub(crate) async fn wait(args: Wait) -> Result<ExitCode, Failure> {
    let opened = store::open_within(&args.store, args.wait).await?;
    let start = Instant::now();
    let left = || args.wait.map_or(Duration::MAX, |wait| wait.saturating_sub(start.elapsed()));
    let (mut pause, mut absence) = (LOOK.0, Absence::default());
    loop {
        let looked = is_held(&opened, &args.name, left()).await;
        let left = left();
        match looked {
            Err(error) if left.is_zero() => return Err(opened.failed(error)),
            looked => match absence.outlast(&opened, looked)? {
                Some(false) => break,
                Some(true) if left.is_zero() => {
                    tell(&args, false, start)?;
                    let holder = lock::keeper(&opened.locks, &args.name).await;
                    return Err(lock::held(&opened, &args.name, "still ", holder.as_deref()));
                }
                Some(true) | None => {}
            },
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(LOOK.1);
    }
    tell(&args, true, start)?;
    Ok(Exit::Success.into())
}

/// Looks once. Does not wait much longer than the time left for a store that does not answer: that says nothing about
/// the lock.
async fn is_held(opened: &store::Store, name: &str, left: Duration) -> Result<bool, leasehold::Error> {
    let look = opened.locks.is_locked(name);
    let late = |_| leasehold::Error::new(leasehold::ErrorKind::NetworkTimeout, "it does not answer any more");
    tokio::time::timeout(left.saturating_add(lock::ANSWER), look).await.map_err(late)?
}

/// Whether the store is unavailable for now: a restart of a second is no reason to give up.
#[derive(Debug, Default)]
struct Absence(bool);

impl Absence {
    /// The value seen, or `None` while the store is unavailable and must be asked again. Reports once that it is
    /// unavailable, and once that it is back. Fails on errors that no retry can fix.
    fn outlast<T>(
        &mut self,
        opened: &store::Store,
        looked: Result<T, leasehold::Error>,
    ) -> Result<Option<T>, Failure> {
        let shown = opened.url.shown();
        match looked {
            Ok(seen) => {
                if std::mem::take(&mut self.0) {
                    say(&format!("leasehold: {shown} answers again"));
                }
                Ok(Some(seen))
            }
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut self.0, true) {
                    say(&format!("leasehold: {shown} does not answer; trying again: {}", whole(&error)));
                }
                Ok(None)
            }
            Err(error) => Err(opened.failed(error)),
        }
    }
}

/// Prints the result for programs. For people the exit code is enough and, if there is something to say, a line on
/// stderr.
fn tell(args: &Wait, free: bool, start: Instant) -> Result<(), Failure> {
    let waited_ms = start.elapsed().as_millis();
    match args.output {
        Output::Json => answer(&view::json(
            &serde_json::json!({ "name": args.name, "free": free, "waited_ms": waited_ms }),
        )?),
        Output::Table => Ok(()),
    }
}

/// A change of a name.
#[derive(Debug, Serialize, PartialEq)]
struct Change {
    at_ms: u64,
    change: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<leasehold::Fence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
}

/// A name at one moment: its holders by fence, the oldest if there are many, and the number of waiters.
#[derive(Debug, Default, PartialEq)]
struct NameSnapshot {
    holders: BTreeMap<leasehold::Fence, (String, bool)>,
    /// The last fence, if there are more holders than shown: a holder with a lower fence existed before.
    hidden_to: leasehold::Fence,
    waiting: u64,
}

pub(crate) async fn watch(args: Watch) -> Result<ExitCode, Failure> {
    let opened = list::open(&args.store).await?;
    let interval = args.interval.max(LOOK.0);
    let (mut before, mut absence) = (BTreeMap::new(), Absence::default());
    loop {
        let looked = list::all(&opened.locks, &args.prefix).await;
        let Some(names) = absence.outlast(&opened, looked)? else {
            tokio::time::sleep(interval).await;
            continue;
        };
        let mut now: BTreeMap<String, NameSnapshot> = BTreeMap::new();
        for info in names {
            let name = view::Name::from(&info);
            let hidden_to =
                if name.more_holders() > 0 { name.last_fence } else { leasehold::Fence::UNFENCED };
            let holders =
                name.holders.into_iter().map(|holder| (holder.fence, (holder.owner, holder.revoked)));
            now.insert(
                name.name,
                NameSnapshot { holders: holders.collect(), hidden_to, waiting: name.queue_length },
            );
        }
        for change in changes(&before, &now, view::now_ms()) {
            deliver(&match args.output {
                Output::Json => serde_json::to_string(&change).map_err(std::io::Error::from)? + "\n",
                Output::Table => line(&change),
            })?;
        }
        before = now;
        tokio::time::sleep(interval).await;
    }
}

fn changes(
    before: &BTreeMap<String, NameSnapshot>,
    now: &BTreeMap<String, NameSnapshot>,
    at_ms: u64,
) -> Vec<Change> {
    let (nothing, mut found) = (NameSnapshot::default(), Vec::new());
    let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    for name in names {
        let (old, new) = (before.get(name).unwrap_or(&nothing), now.get(name).unwrap_or(&nothing));
        let mut add = |change, holder: Option<(&leasehold::Fence, &(String, bool))>, waiting| {
            found.push(Change {
                at_ms,
                change,
                name: name.clone(),
                owner: holder.map(|(_, (owner, _))| owner.clone()),
                fence: holder.map(|(fence, _)| *fence),
                waiting,
            });
        };
        old.holders
            .iter()
            .filter(|(fence, _)| !new.holders.contains_key(fence))
            .for_each(|gone| add("free", Some(gone), None));
        for holder in &new.holders {
            match old.holders.get(holder.0) {
                None if *holder.0 <= old.hidden_to => {}
                None => add("held", Some(holder), None),
                Some((_, false)) if holder.1.1 => add("revoked", Some(holder), None),
                Some(_) => {}
            }
        }
        if old.waiting != new.waiting {
            add("waiting", None, Some(new.waiting));
        }
    }
    found
}

fn line(change: &Change) -> String {
    let (time, name) = (view::time_of_day(change.at_ms), table::plain(&change.name));
    let what = match (&change.owner, change.fence, change.waiting) {
        (Some(owner), Some(fence), _) => {
            format!("{:7}  {}  fence {fence}", change.change, table::plain(owner))
        }
        (_, _, Some(waiting)) => format!("waiting  {waiting}"),
        _ => change.change.to_owned(),
    };
    format!("{time}  {name}  {what}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holders: &[(u64, bool)], waiting: u64) -> BTreeMap<String, NameSnapshot> {
        let holders = holders
            .iter()
            .map(|&(fence, revoked)| (leasehold::Fence::new(fence), ("me".to_owned(), revoked)));
        let hidden_to = leasehold::Fence::UNFENCED;
        BTreeMap::from([("x".to_owned(), NameSnapshot { holders: holders.collect(), hidden_to, waiting })])
    }

    #[test]
    fn a_hand_over_is_one_holder_leaving_and_another_entering() {
        let told = |before: &BTreeMap<_, _>, now: &BTreeMap<_, _>| -> Vec<_> {
            changes(before, now, 0)
                .into_iter()
                .map(|change| (change.change, change.fence.map(|f| f.get())))
                .collect()
        };
        let nothing = BTreeMap::new();
        assert_eq!(told(&nothing, &seen(&[(1, false)], 0)), [("held", Some(1))]);
        assert_eq!(told(&seen(&[(1, false)], 0), &seen(&[(1, false)], 2)), [("waiting", None)]);
        assert_eq!(
            told(&seen(&[(1, false)], 1), &seen(&[(2, false)], 1)),
            [("free", Some(1)), ("held", Some(2))]
        );
        assert_eq!(told(&seen(&[(1, false)], 0), &seen(&[(1, true)], 0)), [("revoked", Some(1))]);
        assert_eq!(told(&seen(&[(1, true)], 1), &nothing), [("free", Some(1)), ("waiting", None)]);
        assert_eq!(told(&seen(&[(1, true)], 1), &seen(&[(1, true)], 1)), []);
        // A hidden earlier holder comes into view; another holder is new.
        let mut before = seen(&[(1, false), (2, false)], 0);
        before.values_mut().for_each(|name| name.hidden_to = leasehold::Fence::new(3));
        assert_eq!(
            told(&before, &seen(&[(2, false), (3, false), (4, false)], 0)),
            [("free", Some(1)), ("held", Some(4))]
        );
    }
}
