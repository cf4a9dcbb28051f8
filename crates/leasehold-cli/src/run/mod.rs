//! `leasehold run`: runs a command under a lock, and makes sure it is dead before another client can take the lock.

// What belongs here: the command and its processes; `elect` runs its command in the same way. Before changing anything
// here: `cargo test -p leasehold-cli --test 'run*' --test elect`, which starts, stops, suspends and kills real
// processes.

pub(crate) mod args;
pub(crate) mod child;
pub(crate) mod hold;
pub(crate) mod job;
pub(crate) mod plan;
pub(crate) mod signals;
mod supervise;
mod suspend;
mod terminal;
mod tree;
mod validity;
pub(crate) mod voice;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock as _, Moment, SystemClock};
use leasehold::{ErrorKind, Locks, Mode, MultiGuard};
use tokio::task::JoinHandle;

use crate::interrupt;
use crate::lock;
use crate::report::Failure;
use crate::store::{self, Store};
use crate::warnings::Aside;

use self::args::HoldArgs;
pub(crate) use self::args::Run;
use self::child::Start;
use self::hold::Hold;
use self::job::Job;
use self::plan::Plan;
use self::signals::{Arrived, Blocked, Signals};
use self::voice::{Event, Voice};

/// Shorter waits are not reported.
const SOON: Duration = Duration::from_millis(250);

/// How long the end of `run`, with the lock released, waits for the examination of the store's setup. One that began
/// before the lock was asked for has usually ended long before.
const EXAMINED: Duration = Duration::from_millis(500);

/// The current moment, on the clock used throughout this module.
pub(crate) fn now() -> Moment {
    SystemClock.now()
}

/// Runs the command; returns the exit code.
pub(crate) fn run(args: Run) -> Result<ExitCode, Failure> {
    session(args.hold.voice(), !args.hold.no_warnings, async |signals, risks| {
        under_lock(&args, signals, risks).await
    })
}

/// Does the work of a command that reads its signals and reports with this voice; returns the exit code. With `warns`
/// it also prints the warnings of the library.
pub(crate) fn session(
    voice: Voice,
    warns: bool,
    work: impl AsyncFnOnce(&Signals, &mut Risks) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    // Before any other thread starts.
    let blocked = Blocked::new()?;
    let warnings = warns.then(|| Aside::hear(move |what| voice.tell(&Event::Warning { what })));
    let outcome = crate::runtime()?.block_on(async {
        let mut risks = Risks { told_by: warnings.clone(), task: None };
        let outcome = work(&blocked.read()?, &mut risks).await;
        risks.finish().await;
        outcome
    });
    if let Some(warnings) = warnings {
        warnings.finish();
    }
    outcome.or_else(|failure| {
        let (exit, line) = failure.describe();
        if let Some(why) = &line {
            voice.tell(&Event::Failed { why, exit: exit as u8 });
        }
        Ok(exit.into())
    })
}

/// Examines the store's setup beside the wait and the command, and prints its risks.
pub(crate) struct Risks {
    /// `None` if nothing is to be printed.
    told_by: Option<Aside>,
    task: Option<JoinHandle<()>>,
}

impl Risks {
    /// Begins to examine, unless it has begun before.
    pub(crate) fn examine(&mut self, opened: &Store) {
        let (None, Some(told_by)) = (&self.task, self.told_by.clone()) else { return };
        let (findings, store) = (opened.risks(), opened.url.shown());
        self.task = Some(tokio::spawn(async move {
            match findings.await {
                Ok(risks) => risks.iter().for_each(|risk| told_by.tell(risk.to_string())),
                Err(error) => told_by.tell(format!("{store}: its setup could not be examined: {error}")),
            }
        }));
    }

    async fn finish(self) {
        if let Some(mut task) = self.task
            && tokio::time::timeout(EXAMINED, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

async fn under_lock(args: &Run, signals: &Signals, risks: &mut Risks) -> Result<ExitCode, Failure> {
    let (start, voice) = (args.command()?, args.hold.voice());
    warn_of_user(&args.hold, &start);
    let opened = tokio::select! {
        biased;
        arrived = interrupt::leaving(signals) => return Ok(interrupted(arrived, voice)),
        opened = store::open_within(&args.store, args.wait) => opened?,
    };
    let ttl = args.check(&opened)?;
    risks.examine(&opened);
    let shown = opened.url.shown();
    let guard = tokio::select! {
        biased;
        arrived = interrupt::leaving(signals) => {
            interrupt::part(&opened.locks).await;
            return Ok(interrupted(arrived, voice));
        }
        guard = acquire(args, &opened, &shown) => guard,
    };
    let guard = match guard {
        Ok(Ok(guard)) => guard,
        Err(error) => {
            // Gives back the names before the one that failed, and what an attempt without an answer got.
            interrupt::part(&opened.locks).await;
            let name =
                error.name().filter(|_| args.wanted().len() > 1).map(|name| format!("{:?}", name.as_str()));
            return Err(match name {
                Some(name) => Failure::Store(name, error),
                None => error.into(),
            });
        }
        Ok(Err(busy)) => {
            let owner = lock::keeper(&opened.locks, &busy).await;
            let code = if args.skip_ok { 0 } else { args.conflict_code };
            voice.tell(&Event::Busy {
                name: &busy,
                store: &shown,
                exit: code,
                owner: owner.as_deref(),
                quiet: args.skip_ok,
            });
            interrupt::part(&opened.locks).await;
            return Ok(code.into());
        }
    };
    let since = now();
    let waited_ms = guard.waited().as_millis();
    for guard in guard.guards() {
        let (name, fence) = (guard.name().as_str(), guard.fence());
        voice.tell(&Event::Acquired { name, store: &shown, fence, waited_ms });
    }
    let job = Job {
        name: &args.name,
        opened: &opened,
        signals,
        voice,
        plan: Plan::new(ttl, args.hold.kill_after(), args.max_hold, since),
        kill_leftovers: args.hold.kill_leftovers,
        lost_code: args.lost_code,
        is_last: true,
    };
    let hold = Hold::Names(guard);
    let outcome = job.supervise(start, &hold).await;
    Ok(job.finish(hold, outcome).await?.exit())
}

/// Warns about a command that can switch to another user.
pub(crate) fn warn_of_user(hold: &HoldArgs, start: &Start) {
    if !hold.no_warnings
        && let Some(program) = start.changes_user()
    {
        hold.voice().tell(&Event::MayOutlive { program: &program });
    }
}

/// All names, or the one that another client kept until the limit.
async fn acquire(
    args: &Run,
    opened: &Store,
    shown: &str,
) -> Result<Result<MultiGuard, String>, leasehold::Error> {
    let locks = args.hold.locks(opened);
    let wait = if args.no_wait { Some(Duration::ZERO) } else { args.wait };
    let lock = wait.into_iter().fold(args.lock(&locks), |lock, wait| lock.max_wait(wait));
    let attempt = async {
        match lock.lock().await {
            Ok(guard) => Ok(Ok(guard)),
            Err(error) if error.kind() == ErrorKind::Timeout => {
                Ok(Err(error.name().map_or(&*args.name, |name| name.as_str()).to_owned()))
            }
            Err(error) => Err(error),
        }
    };
    let tell = async {
        let wanted = args.wanted();
        let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
        let blocked = blocking(&locks, &wanted).await;
        let trouble = blocked.as_ref().err().map(ToString::to_string);
        let blocked = blocked.ok().flatten();
        let (held, owner) = blocked.as_ref().map(|(name, owner)| (*name, &**owner)).unzip();
        let held = held.filter(|_| names.len() > 1);
        args.hold.voice().tell(&Event::Waiting {
            name: names[0],
            also: &names[1..],
            store: shown,
            held,
            owner,
            trouble: trouble.as_deref(),
        });
    };
    announced(attempt, tell).await
}

/// Awaits an attempt. If it takes longer than a moment, says meanwhile what it waits for.
pub(crate) async fn announced<T>(attempt: impl Future<Output = T>, tell: impl Future<Output = ()>) -> T {
    let mut attempt = std::pin::pin!(attempt);
    if let Ok(done) = tokio::time::timeout(SOON, &mut attempt).await {
        return done;
    }
    tokio::select! {
        biased;
        done = &mut attempt => return done,
        () = tell => {}
    }
    attempt.await
}

/// The first of these names that others keep, and the owner of one of them. Among several names some may be held by
/// this process already, so its own label does not count.
async fn blocking<'a>(
    locks: &Locks,
    wanted: &[(&'a str, Mode)],
) -> Result<Option<(&'a str, Arc<str>)>, leasehold::Error> {
    let own = (wanted.len() > 1).then(|| &locks.options().owner);
    for (name, mode) in wanted {
        let owner = lock::blocking(locks, name, *mode).await?.filter(|owner| Some(owner) != own);
        if let Some(owner) = owner {
            return Ok(Some((name, owner)));
        }
    }
    Ok(None)
}

pub(crate) fn interrupted(arrived: Arrived, voice: Voice) -> ExitCode {
    voice.tell(&Event::Interrupted { signal: arrived.signal as i32 });
    interrupt::end(arrived)
}
