//! A command under its lock, from its start until the lock is released: what `run` does once, and `elect` in every
//! term.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;

use leasehold::clock::BootTimer;
use leasehold::{Fence, Guard, GuardState, Name, TickResult};
use nix::sys::signal::Signal;

use crate::exit::Exit;
use crate::interrupt::{PARTING, by_signal};
use crate::report::Failure;
use crate::store::Store;

use super::child::Start;
use super::hold::Hold;
use super::plan::{Plan, Why};
use super::signals::{self, Signals};
use super::supervise::{Ended, Supervised};
use super::terminal::Terminal;
use super::tree;
use super::voice::{Event, Voice};

/// How to run a command under its lock.
pub(crate) struct Job<'a> {
    /// The lock whose fence and lease id the command sees.
    pub(crate) name: &'a str,
    pub(crate) opened: &'a Store,
    pub(crate) signals: &'a Signals,
    pub(crate) voice: Voice,
    pub(crate) plan: Plan,
    pub(crate) kill_leftovers: bool,
    /// The exit code after a loss.
    pub(crate) lost_code: u8,
    /// Whether leasehold ends with the command.
    pub(crate) is_last: bool,
}

/// How the command ended, with the lock released or lost.
#[derive(Debug)]
pub(crate) struct Over {
    ended: Ended,
    /// The exit code, if the lock was lost.
    pub(crate) lost: Option<u8>,
}

impl Job<'_> {
    /// Runs the command. Returns when none of its processes is left.
    pub(crate) async fn supervise(&self, mut start: Start, hold: &Hold) -> Result<Ended, Failure> {
        let Job { opened, signals, voice, plan, kill_leftovers, .. } = *self;
        let timer = BootTimer::new().map_err(|error| Failure::system("cannot create a timer", error))?;
        start.descriptors = opened.descriptors(hold.guards())?;
        start.env.extend(variables(&opened.locks.name(self.name)?, hold.guards()));
        start.env.extend(opened.url.for_child());
        start.env.extend(opened.access.for_child());
        tree::adopt_orphans()?;
        // The wait may have used up the lease; do not start a command that would be killed at once.
        hold.check()?;
        let terminal = Terminal::note();
        let leader = start.spawn()?;
        voice.tell(&Event::Started { pid: leader.as_raw_nonzero().get() });
        let locks = &opened.locks;
        let supervised = Supervised { leader, hold, locks, plan, voice, terminal, kill_leftovers };
        let ended = supervised.until_gone(signals, &timer).await;
        supervised.terminal.give_back();
        Ok(ended)
    }

    /// Releases the lock, now that no process is left.
    pub(crate) async fn finish(&self, hold: Hold, outcome: Result<Ended, Failure>) -> Result<Over, Failure> {
        let ended = match outcome {
            Ok(ended) => ended,
            Err(failure) => {
                let _ = tokio::time::timeout(PARTING, hold.release(None)).await;
                return Err(failure);
            }
        };
        let (code, signal) = (ended.status.exit_status(), ended.status.terminating_signal());
        self.voice.tell(&Event::Exited { code, signal });
        let lost = hold.check().err().map(|error| error.message().to_owned());
        if ended.why.is_some() || lost.is_some() {
            let why = match (ended.why, &lost) {
                (Some(Why::MaxHold), _) => "it was held for as long as --max-hold allows",
                (_, Some(lost)) => lost,
                _ => "it could not be renewed in time",
            };
            let (end, exit) = if ended.outlived && lost.is_some() {
                ("the command is dead now, but could not be killed in time", Exit::Outlived as u8)
            } else {
                ("the command is dead", self.lost_code)
            };
            self.tell_of_loss(&format!("{why}; {end}"), exit);
            // If the store answers, others need not wait for the ttl.
            let _ = tokio::time::timeout(PARTING, hold.release(result(&ended))).await;
            return Ok(Over { ended, lost: Some(exit) });
        }
        match hold.release(result(&ended)).await {
            Ok(GuardState::Lost) => {
                self.tell_of_loss("the store no longer had it when the command ended", self.lost_code);
                return Ok(Over { ended, lost: Some(self.lost_code) });
            }
            Ok(_) => self.voice.tell(&Event::Released),
            Err(error) => self.voice.tell(&Event::NotReleased { why: &error.to_string() }),
        }
        Ok(Over { ended, lost: None })
    }

    fn tell_of_loss(&self, why: &str, exit: u8) {
        self.voice.tell(&Event::Lost { why, exit: self.is_last.then_some(exit) });
    }
}

impl Over {
    /// The exit code of leasehold.
    pub(crate) fn exit(&self) -> ExitCode {
        if let Some(exit) = self.lost {
            return exit.into();
        }
        let (code, signal) = (self.ended.status.exit_status(), self.ended.status.terminating_signal());
        if self.ended.interrupted && signal == Some(Signal::SIGINT as i32) {
            // A shell script ends on Ctrl-C only if the command it runs dies of it.
            signals::take(Signal::SIGINT);
        }
        match (code, signal) {
            (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => by_signal(signal),
            (None, None) => Exit::Internal.into(),
        }
    }

    /// Whether a signal asked leasehold to end. A HUP counts only if the command ended by it: to many programs it means
    /// to read their settings again.
    pub(crate) fn was_asked(&self) -> bool {
        match self.ended.asked {
            Some(Signal::SIGHUP) => self.ended.status.terminating_signal() == Some(Signal::SIGHUP as i32),
            asked => asked.is_some(),
        }
    }

    /// Whether the command ended by itself, and well.
    pub(crate) fn succeeded(&self) -> bool {
        self.ended.status.exit_status() == Some(0)
    }

    /// How the command ended, for people.
    pub(crate) fn how(&self) -> String {
        match (self.ended.status.exit_status(), self.ended.status.terminating_signal()) {
            (Some(code), _) => format!("the command ended with exit code {code}"),
            (None, Some(signal)) => format!("signal {signal} ended the command"),
            (None, None) => "the command ended".into(),
        }
    }
}

/// How a command ended, for the record of its tick. `None` if it was stopped together with leasehold: then it is as if
/// this node had died.
fn result(ended: &Ended) -> Option<TickResult> {
    match (ended.status.exit_status(), ended.status.terminating_signal()) {
        (Some(0), _) => Some(TickResult::Done),
        _ if ended.asked.is_some() => None,
        (Some(code), _) => Some(TickResult::Failed(format!("exit {code}").into())),
        (None, signal) => Some(TickResult::Failed(format!("signal {}", signal.unwrap_or_default()).into())),
    }
}

/// What the command learns about its locks.
fn variables(name: &Name, guards: &[Guard]) -> Vec<(&'static str, Option<OsString>)> {
    let guard = guards.iter().find(|guard| guard.name() == name);
    let of_name = |show: &dyn Fn(&Guard) -> String| guard.map(|guard| show(guard).into());
    let fences: BTreeMap<&str, Fence> =
        guards.iter().map(|guard| (guard.name().as_str(), guard.fence())).collect();
    vec![
        ("LEASEHOLD_NAME", of_name(&|guard| guard.name().as_str().to_owned())),
        ("LEASEHOLD_FENCE", of_name(&|guard| guard.fence().to_string())),
        ("LEASEHOLD_FENCES", serde_json::to_string(&fences).ok().map(Into::into)),
        ("LEASEHOLD_LEASE_ID", of_name(&|guard| guard.lease_id().expose().to_owned())),
    ]
}
