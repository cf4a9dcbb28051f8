//! What `run` prints on stderr: lines for people, or with `--json` one JSON object per line.

use std::fmt;
use std::time::Duration;

use leasehold::Fence;
use serde::Serialize;

use crate::duration;
use crate::report::say;

/// An event. The names of the variants and fields are those of the JSON output.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    /// A warning from the library.
    Warning {
        what: &'a str,
    },
    Waiting {
        name: &'a str,
        /// The other names, if there are several.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        also: &'a [&'a str],
        store: &'a str,
        /// Which of several names is held.
        #[serde(skip_serializing_if = "Option::is_none")]
        held: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        trouble: Option<&'a str>,
    },
    Acquired {
        name: &'a str,
        store: &'a str,
        fence: Fence,
        waited_ms: u128,
    },
    /// A candidate of `elect` leads from here on.
    Leading {
        name: &'a str,
        store: &'a str,
        term: Fence,
        waited_ms: u128,
    },
    /// `cron` waits for its next tick.
    Scheduled {
        name: &'a str,
        store: &'a str,
        next: &'a str,
    },
    /// `cron` has taken this tick, and runs the command.
    Tick {
        name: &'a str,
        store: &'a str,
        tick: &'a str,
        fence: Fence,
    },
    /// The command of `cron` has not succeeded.
    TickFailed {
        tick: &'a str,
        why: &'a str,
    },
    /// `elect` answers HTTP here.
    Listening {
        url: &'a str,
    },
    /// The command of `elect` has ended by itself.
    Pausing {
        why: &'a str,
        #[serde(rename = "pause_ms", serialize_with = "millis")]
        pause: Duration,
    },
    /// `elect` or `cron` tries again.
    Retrying {
        why: &'a str,
    },
    Started {
        pid: i32,
    },
    /// Renewals fail or hang. Unless one succeeds, the command is asked to end in `stopped_in_ms`.
    AtRisk {
        expires_in_ms: u128,
        stopped_in_ms: u128,
    },
    /// A renewal has succeeded again.
    Renewed,
    Suspended {
        expires: bool,
        #[serde(skip)]
        left: Option<Duration>,
    },
    Stopping {
        why: &'a str,
        #[serde(skip)]
        grace: Duration,
    },
    Killing {
        why: &'a str,
    },
    /// The command can switch to another user, and then we may not be allowed to kill it.
    MayOutlive {
        program: &'a str,
    },
    /// Processes of another user, which the system does not let us kill.
    CannotKill {
        processes: usize,
    },
    Leftovers {
        processes: usize,
    },
    Exited {
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    Released,
    NotReleased {
        why: &'a str,
    },
    Busy {
        name: &'a str,
        store: &'a str,
        exit: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        owner: Option<&'a str>,
        #[serde(skip)]
        quiet: bool,
    },
    Lost {
        why: &'a str,
        /// `None` if leasehold goes on.
        #[serde(skip_serializing_if = "Option::is_none")]
        exit: Option<u8>,
    },
    Interrupted {
        signal: i32,
    },
    Failed {
        why: &'a str,
        exit: u8,
    },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Warning { what } => write!(f, "warning: {what}"),
            Event::Waiting { name, also, store, held, owner, trouble } => {
                write!(f, "waiting for {name:?}")?;
                also.iter().try_for_each(|name| write!(f, " and {name:?}"))?;
                write!(f, " on {store}")?;
                match (held, owner, trouble) {
                    (Some(held), Some(owner), _) => write!(f, "; {owner} holds {held:?}"),
                    (None, Some(owner), _) => write!(f, ", held by {owner}"),
                    (_, None, Some(trouble)) => write!(f, ": {trouble}"),
                    (_, None, None) => Ok(()),
                }
            }
            Event::Suspended { left: Some(left), .. } => write!(
                f,
                "suspended: nothing renews the lock; resume within {}, or the command is killed and others can \
                 take the lock",
                duration::show(*left)
            ),
            Event::Suspended { .. } => write!(f, "suspended: the lock stays held"),
            Event::Stopping { why, grace } => {
                write!(
                    f,
                    "{why}; the command was asked to end, and will be killed in {}",
                    duration::show(*grace)
                )
            }
            Event::Killing { why } => write!(f, "{why}; killing the command"),
            Event::MayOutlive { program } => write!(
                f,
                "{program} can run the command as another user; leasehold may then not be allowed to kill it, and it \
                 may run on after another client has taken the lock; use `{program} leasehold run …` instead, \
                 or pass `--no-warnings`"
            ),
            Event::CannotKill { processes } => write!(
                f,
                "{} as another user, and leasehold may not kill {}: the command may run on after another client \
                 has taken the lock",
                if *processes == 1 {
                    "a process of the command runs".into()
                } else {
                    format!("{processes} processes of the command run")
                },
                if *processes == 1 { "it" } else { "them" },
            ),
            Event::Leftovers { processes } => write!(
                f,
                "the command has ended but left {processes} {} running; the lock stays held until {}",
                if *processes == 1 { "process" } else { "processes" },
                if *processes == 1 { "it ends" } else { "they end" }
            ),
            Event::NotReleased { why } => {
                write!(f, "the command has ended, but the lock could not be released: {why}")
            }
            Event::Busy { name, store, owner: Some(owner), .. } => {
                write!(f, "{name:?} on {store} is held by {owner}; the command was not run")
            }
            Event::Busy { name, store, .. } => {
                write!(f, "{name:?} on {store} is held; the command was not run")
            }
            Event::Leading { name, store, term, .. } => {
                write!(f, "leading: term {term} of {name:?} on {store}")
            }
            Event::Scheduled { name, store, next } => write!(f, "{name:?} on {store} is due next at {next}"),
            Event::TickFailed { tick, why } => write!(f, "tick {tick}: {why}"),
            Event::Listening { url } => write!(f, "{url} says whether this process leads"),
            Event::Pausing { why, pause } => {
                write!(f, "{why}; standing for election again in {}", duration::show(*pause))
            }
            Event::Retrying { why } => write!(f, "{why}; trying again"),
            Event::Lost { why, .. } => write!(f, "the lock was lost: {why}"),
            Event::Interrupted { .. } => write!(f, "interrupted while waiting; the command was not run"),
            Event::Failed { why, .. } => f.write_str(why),
            Event::Acquired { .. }
            | Event::Tick { .. }
            | Event::Started { .. }
            | Event::AtRisk { .. }
            | Event::Renewed
            | Event::Exited { .. }
            | Event::Released => Ok(()),
        }
    }
}

fn millis<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u128(time.as_millis())
}

/// Prints events in one of the two forms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Voice {
    pub(crate) json: bool,
}

impl Voice {
    pub(crate) fn tell(self, event: &Event<'_>) {
        if self.json {
            if let Ok(line) = serde_json::to_string(event) {
                say(&line);
            }
            return;
        }
        // People see only what is out of the ordinary.
        let quiet = matches!(
            event,
            Event::Acquired { .. }
                | Event::Tick { .. }
                | Event::Started { .. }
                | Event::AtRisk { .. }
                | Event::Renewed
                | Event::Exited { .. }
                | Event::Released
                | Event::Interrupted { .. }
                | Event::Busy { quiet: true, .. }
        );
        if !quiet {
            say(&format!("leasehold: {event}"));
        }
    }
}
