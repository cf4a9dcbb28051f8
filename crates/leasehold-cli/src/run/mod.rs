//! `leasehold run`: runs a command under a lock, and makes sure it is dead before another client can take the lock.

// What belongs here: the command and its processes. Taking the lock is in `lock.rs`. Before changing anything
// here: `cargo test -p leasehold-cli --test 'run*'`, which starts, stops, suspends and kills real processes.

mod args;
pub(crate) mod child;
mod plan;
pub(crate) mod signals;
mod supervise;
mod suspend;
mod terminal;
mod tree;
mod validity;
mod voice;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::clock::{BootTimer, Clock as _, Moment, SystemClock};
use leasehold::{ErrorKind, Fence, Guard, GuardState, Locks, MultiGuard};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;

use crate::exit::Exit;
use crate::interrupt::{self, PARTING, by_signal};
use crate::lock;
use crate::report::Failure;
use crate::store::{self, Store};
use crate::warnings::Aside;

pub(crate) use self::args::Run;
use self::child::Start;
use self::plan::{Plan, Why};
use self::signals::{Arrived, Blocked, Signals};
use self::supervise::{Ended, Supervised};
use self::terminal::Terminal;
use self::voice::{Event, Voice};

/// Shorter waits are not reported.
const SOON: Duration = Duration::from_millis(250);

/// How long the end of `run`, with the lock released, waits for the examination of the store's setup. One that began
/// before the lock was asked for has usually ended long before.
const EXAMINED: Duration = Duration::from_millis(500);

/// The current moment, on the clock used throughout this module.
fn now() -> Moment {
    SystemClock.now()
}

/// Runs the command; returns the exit code.
pub(crate) fn run(args: Run) -> Result<ExitCode, Failure> {
    // Before any other thread starts.
    let blocked = Blocked::new()?;
    let voice = Voice { json: args.json };
    let warnings = (!args.no_warnings).then(|| Aside::hear(move |what| voice.tell(&Event::Warning { what })));
    let outcome = crate::runtime()?.block_on(async {
        let mut risks = Risks { told_by: warnings.clone(), task: None };
        let outcome = under_lock(args, blocked.read()?, voice, &mut risks).await;
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
struct Risks {
    /// `None` if nothing is to be printed.
    told_by: Option<Aside>,
    task: Option<JoinHandle<()>>,
}

impl Risks {
    fn examine(&mut self, opened: &Store) {
        let Some(told_by) = self.told_by.clone() else { return };
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

async fn under_lock(
    args: Run,
    signals: Signals,
    voice: Voice,
    risks: &mut Risks,
) -> Result<ExitCode, Failure> {
    let start = args.command()?;
    if !args.no_warnings
        && let Some(program) = start.changes_user()
    {
        voice.tell(&Event::MayOutlive { program: &program });
    }
    let opened = tokio::select! {
        biased;
        arrived = interrupt::leaving(&signals) => return Ok(interrupted(arrived, voice)),
        opened = store::open_within(&args.store, args.wait) => opened?,
    };
    let ttl = (opened.locks.info().liveness == Liveness::Ttl).then(|| args.ttl());
    args.check(ttl)?;
    risks.examine(&opened);
    if !opened.locks.info().fenced && !args.allow_unfenced {
        return Err(Failure::Usage(format!(
            "{}: gives no fences as it is set up, so that a command that was paused too long cannot be told from \
             its successor; `leasehold doctor` says more, --allow-unfenced accepts it",
            opened.locks.info().scheme
        )));
    }
    let shown = opened.url.shown();
    let guard = tokio::select! {
        biased;
        arrived = interrupt::leaving(&signals) => {
            interrupt::part(&opened.locks).await;
            return Ok(interrupted(arrived, voice));
        }
        guard = acquire(&args, &opened, &shown, voice) => guard?,
    };
    let guard = match guard {
        Ok(guard) => guard,
        Err(busy) => {
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
    let plan = Plan::new(ttl, args.kill_after(), args.max_hold, since);
    let outcome = supervise(&args, start, &opened, &guard, plan, &signals, voice).await;
    finish(&args, guard, outcome, voice).await
}

/// All names, or the one that another client kept until the limit.
async fn acquire(
    args: &Run,
    opened: &Store,
    shown: &str,
    voice: Voice,
) -> Result<Result<MultiGuard, String>, leasehold::Error> {
    let locks = opened.locks.with_options(|options| {
        options.ttl = args.ttl();
        options.allow_unfenced = args.allow_unfenced;
        if let Some(owner) = &args.owner {
            options.owner = owner.as_str().into();
        }
    });
    let wait = if args.no_wait { Some(Duration::ZERO) } else { args.wait };
    let lock = wait.into_iter().fold(args.lock(&locks), |lock, wait| lock.max_wait(wait));
    let mut attempt = std::pin::pin!(async {
        match lock.lock().await {
            Ok(guard) => Ok(Ok(guard)),
            Err(error) if error.kind() == ErrorKind::Timeout => {
                Ok(Err(error.name().map_or(&*args.name, |name| name.as_str()).to_owned()))
            }
            Err(error) => Err(error),
        }
    });
    if let Ok(done) = tokio::time::timeout(SOON, &mut attempt).await {
        return done;
    }
    let tell = async {
        let names = args.names();
        let blocked = blocking(&locks, &names).await;
        let trouble = blocked.as_ref().err().map(ToString::to_string);
        let blocked = blocked.ok().flatten();
        let (held, owner) = blocked.as_ref().map(|(name, owner)| (*name, &**owner)).unzip();
        let held = held.filter(|_| names.len() > 1);
        voice.tell(&Event::Waiting {
            name: names[0],
            also: &names[1..],
            store: shown,
            held,
            owner,
            trouble: trouble.as_deref(),
        });
    };
    tokio::select! {
        biased;
        done = &mut attempt => return done,
        () = tell => {}
    }
    attempt.await
}

/// The first of these names that somebody else holds, and its owner. Among several names some may be held by this
/// process already, so its own label does not count.
async fn blocking<'a>(
    locks: &Locks,
    names: &[&'a str],
) -> Result<Option<(&'a str, Arc<str>)>, leasehold::Error> {
    for name in names {
        let own = (names.len() > 1).then(|| &locks.options().owner);
        let owner = lock::holder(locks, name).await?.filter(|owner| Some(owner) != own);
        if let Some(owner) = owner {
            return Ok(Some((name, owner)));
        }
    }
    Ok(None)
}

fn interrupted(arrived: Arrived, voice: Voice) -> ExitCode {
    voice.tell(&Event::Interrupted { signal: arrived.signal as i32 });
    interrupt::end(arrived)
}

async fn supervise(
    args: &Run,
    mut start: Start,
    opened: &Store,
    guard: &MultiGuard,
    plan: Plan,
    signals: &Signals,
    voice: Voice,
) -> Result<Ended, Failure> {
    let timer = BootTimer::new().map_err(|error| Failure::system("cannot create a timer", error))?;
    start.descriptors = opened.descriptors(guard.guards())?;
    start.env = variables(args, guard);
    start.env.extend(opened.url.for_child());
    start.env.extend(opened.access.for_child());
    tree::adopt_orphans()?;
    // The wait may have used up the lease; do not start a command that would be killed at once.
    guard.check()?;
    let terminal = Terminal::note();
    let leader = start.spawn()?;
    voice.tell(&Event::Started { pid: leader.as_raw_nonzero().get() });
    let (locks, kill_leftovers) = (&opened.locks, args.kill_leftovers);
    let supervised = Supervised { leader, guard, locks, plan, voice, terminal, kill_leftovers };
    let ended = supervised.until_gone(signals, &timer).await;
    supervised.terminal.give_back();
    Ok(ended)
}

/// What the command learns about its locks.
fn variables(args: &Run, guard: &MultiGuard) -> Vec<(&'static str, Option<OsString>)> {
    let of_name = |show: &dyn Fn(&Guard) -> String| guard.guard(&args.name).map(|guard| show(guard).into());
    let fences: BTreeMap<&str, Fence> =
        guard.guards().iter().map(|guard| (guard.name().as_str(), guard.fence())).collect();
    vec![
        ("LEASEHOLD_NAME", of_name(&|guard| guard.name().as_str().to_owned())),
        ("LEASEHOLD_FENCE", of_name(&|guard| guard.fence().to_string())),
        ("LEASEHOLD_FENCES", serde_json::to_string(&fences).ok().map(Into::into)),
        ("LEASEHOLD_LEASE_ID", of_name(&|guard| guard.lease_id().expose().to_owned())),
    ]
}

/// Releases the lock, now that no process is left, and chooses the exit code.
async fn finish(
    args: &Run,
    guard: MultiGuard,
    outcome: Result<Ended, Failure>,
    voice: Voice,
) -> Result<ExitCode, Failure> {
    let ended = match outcome {
        Ok(ended) => ended,
        Err(failure) => {
            let _ = tokio::time::timeout(PARTING, guard.release()).await;
            return Err(failure);
        }
    };
    let (code, signal) = (ended.status.exit_status(), ended.status.terminating_signal());
    voice.tell(&Event::Exited { code, signal });
    let lost = guard.check().err().map(|error| error.message().to_owned());
    if ended.why.is_some() || lost.is_some() {
        let why = match (ended.why, &lost) {
            (Some(Why::MaxHold), _) => "it was held for as long as --max-hold allows",
            (_, Some(lost)) => lost,
            _ => "it could not be renewed in time",
        };
        let (end, exit) = if ended.outlived && lost.is_some() {
            ("the command is dead now, but could not be killed in time", Exit::Outlived as u8)
        } else {
            ("the command is dead", args.lost_code)
        };
        voice.tell(&Event::Lost { why: &format!("{why}; {end}"), exit });
        // If the store answers, others need not wait for the ttl.
        let _ = tokio::time::timeout(PARTING, guard.release()).await;
        return Ok(exit.into());
    }
    match guard.release().await {
        Ok(GuardState::Lost) => {
            let why = "the store no longer had it when the command ended";
            voice.tell(&Event::Lost { why, exit: args.lost_code });
            return Ok(args.lost_code.into());
        }
        Ok(_) => voice.tell(&Event::Released),
        Err(error) => voice.tell(&Event::NotReleased { why: &error.to_string() }),
    }
    if ended.interrupted && signal == Some(Signal::SIGINT as i32) {
        // A shell script ends on Ctrl-C only if the command it runs dies of it.
        signals::take(Signal::SIGINT);
    }
    Ok(match (code, signal) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => by_signal(signal),
        (None, None) => Exit::Internal.into(),
    })
}
