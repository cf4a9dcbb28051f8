//! From the start of the command until nothing of it is left: signals, the deadline, the end.

use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::{Gone, Guard, Locks, LostReason, State};
use nix::sys::signal::Signal;
use rustix::process::{Pid, Signal as Sent, WaitStatus, getpgid, getpgrp};

use super::alarm::{Alarm, now};
use super::plan::{Plan, Step, Why};
use super::signals::{self, Arrived, Signals};
use super::standing::{Change, Standing};
use super::tree::{self, Reaped};
use super::voice::{Event, Voice};

/// A second TERM kills, but not one that comes with the first: `timeout` sends one to the process and one
/// to its group.
const SECOND: Duration = Duration::from_millis(100);

/// How often what does not die, or is started meanwhile, is killed again.
const AGAIN: Duration = Duration::from_millis(20);

/// What is left over is told of only if it is not gone in a moment: it usually is.
const MOMENT: Duration = Duration::from_millis(250);

/// After having let the command go on, a stop that everybody has from the terminal is passed on for this long: the
/// command may have had it before it was let go on, and would run while nothing renews its lock.
const RESUMED: Duration = Duration::from_secs(1);

/// How it all ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How the command itself ended.
    pub(crate) status: WaitStatus,
    /// Why it had to end, if we ended it.
    pub(crate) why: Option<Why>,
    /// It was interrupted from the terminal.
    pub(crate) interrupted: bool,
}

/// The command and everything it has started.
#[derive(Debug)]
pub(crate) struct Supervised<'a> {
    pub(crate) leader: Pid,
    pub(crate) guard: &'a Guard,
    pub(crate) locks: &'a Locks,
    pub(crate) plan: Plan,
    pub(crate) voice: Voice,
    pub(crate) kill_leftovers: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running,
    /// Asked to end; killed at this moment.
    Stopping(Moment),
    Killing,
}

struct Course<'a> {
    standing: Standing<'a>,
    phase: Phase,
    status: Option<WaitStatus>,
    why: Option<Why>,
    interrupted: bool,
    first_term: Option<Moment>,
    /// When the command was last let go on.
    resumed: Option<Moment>,
    /// When to tell of what is left over.
    leftovers: Option<Moment>,
}

impl Supervised<'_> {
    /// Returns when nothing that the command has started is left.
    pub(crate) async fn until_gone(&self, signals: &Signals, alarm: &Alarm) -> Ended {
        let mut course = Course {
            standing: Standing::new(self.guard, self.locks),
            phase: Phase::Running,
            status: None,
            why: None,
            interrupted: false,
            first_term: None,
            resumed: None,
            leftovers: None,
        };
        let mut lost = std::pin::pin!(self.guard.lost());
        let mut known_lost = false;
        loop {
            // The deadline first: after a pause nothing else may come before it.
            let wake = self.keep_to_plan(&mut course);
            if let Some(ended) = self.reap(&mut course) {
                return ended;
            }
            tokio::select! {
                biased;
                _ = &mut lost, if !known_lost => known_lost = true,
                () = course.standing.learned(), if known_lost => {}
                arrived = signals.next() => self.handle(arrived, &mut course),
                () = alarm.at(wake) => {}
            }
        }
    }

    /// Ends the command if it is time to. When to look again.
    fn keep_to_plan(&self, course: &mut Course<'_>) -> Option<Moment> {
        // A lock without ttl shows a loss only by its state.
        let now = now();
        let valid_for = course.standing.valid_for();
        let step = match self.plan.step(now, valid_for) {
            Step::Wait(_) if course.standing.is_revoked() => {
                Step::Stop(Why::Lease, self.plan.end(now, valid_for.unwrap_or_default()))
            }
            step => step,
        };
        match (course.phase, step) {
            (Phase::Killing, _) => {}
            (_, Step::Kill(why)) => {
                course.why = course.why.or(Some(why));
                self.kill(course, self.reason(why));
            }
            (Phase::Stopping(at), _) if now >= at => self.kill(course, "it did not end when asked to"),
            (Phase::Stopping(at), Step::Stop(_, kill)) => course.phase = Phase::Stopping(at.min(kill)),
            (Phase::Stopping(_), Step::Wait(_)) => {}
            (Phase::Running, Step::Stop(why, kill)) => {
                course.why = Some(why);
                self.stop(course, self.reason(why), kill);
            }
            (Phase::Running, Step::Wait(_)) => {}
        }
        let next = match (course.phase, step) {
            (Phase::Killing, _) => {
                // Again and again: what was started after the last time has not got it.
                tree::signal(Sent::KILL);
                Some(now + AGAIN)
            }
            (Phase::Stopping(at), _) => Some(at),
            (Phase::Running, Step::Wait(at)) => at,
            (Phase::Running, _) => Some(now),
        };
        let others = [self.tell_of_renewals(course), self.tell_of_leftovers(course, now)];
        others.into_iter().chain([next]).flatten().min()
    }

    /// Tells programs whether the lease is renewed as it should be; people hear of it when it matters. When to
    /// look again.
    fn tell_of_renewals(&self, course: &mut Course<'_>) -> Option<Moment> {
        let ttl = self.plan.ttl().filter(|_| self.voice.json && matches!(course.phase, Phase::Running))?;
        let (change, again) = course.standing.renewals(ttl);
        match change {
            Some(Change::AtRisk(left)) => {
                let stopped_in_ms = left.saturating_sub(self.plan.grace()).as_millis();
                self.voice.tell(&Event::AtRisk { expires_in_ms: left.as_millis(), stopped_in_ms });
            }
            Some(Change::Renewed) => self.voice.tell(&Event::Renewed),
            None => {}
        }
        Some(again)
    }

    fn tell_of_leftovers(&self, course: &mut Course<'_>, now: Moment) -> Option<Moment> {
        let at = course.leftovers?;
        if at > now {
            return Some(at);
        }
        course.leftovers = None;
        let processes = tree::count();
        if processes > 0 {
            self.voice.tell(&Event::Leftovers { processes });
        }
        None
    }

    fn reason(&self, why: Why) -> &'static str {
        match why {
            Why::MaxHold => "the lock was held for as long as --max-hold allows",
            Why::Lease if self.guard.lost().now() == Some(LostReason::Refused(Gone::Revoked)) => {
                "the lock was revoked"
            }
            Why::Lease if self.guard.state() == State::Lost => "the lock was lost",
            Why::Lease => "the lock could not be renewed and is about to end",
        }
    }

    fn stop(&self, course: &mut Course<'_>, why: &str, kill: Moment) {
        self.voice.tell(&Event::Stopping { why, grace: kill.since(now()) });
        course.phase = Phase::Stopping(kill);
        tree::signal(Sent::TERM);
        // What was stopped could not end otherwise.
        tree::signal(Sent::CONT);
    }

    fn kill(&self, course: &mut Course<'_>, why: &str) {
        if !matches!(course.phase, Phase::Killing) {
            course.phase = Phase::Killing;
            // First do it, then talk about it: a terminal may be slow.
            tree::signal(Sent::KILL);
            self.voice.tell(&Event::Killing { why });
        }
    }

    /// Takes note of what children have done; how it ended, if nothing is left.
    fn reap(&self, course: &mut Course<'_>) -> Option<Ended> {
        loop {
            match tree::reap() {
                Reaped::AllGone => {
                    let status = course.status?;
                    return Some(Ended { status, why: course.why, interrupted: course.interrupted });
                }
                Reaped::Nothing => return None,
                Reaped::Child(pid, _) if pid != self.leader => {}
                Reaped::Child(_, status) if status.stopped() => self.follow(status, course),
                Reaped::Child(_, status) => {
                    course.status = Some(status);
                    course.leftovers = Some(now() + MOMENT);
                    if self.kill_leftovers && matches!(course.phase, Phase::Running) && tree::count() > 0 {
                        self.stop(
                            course,
                            "the command has ended and left something running",
                            now() + self.plan.grace(),
                        );
                    }
                }
            }
        }
    }

    /// The command was stopped from the terminal: so are we, or whoever started us would never know.
    fn follow(&self, status: WaitStatus, course: &mut Course<'_>) {
        let by_terminal = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
        let stopped = status.stopping_signal().and_then(|number| Signal::try_from(number).ok());
        if stopped.is_some_and(|signal| by_terminal.contains(&signal))
            && getpgid(Some(self.leader)).is_ok_and(|group| group == getpgrp())
            && has_terminal()
        {
            self.suspend(course);
        }
    }

    /// Stops this process, and with it the renewals.
    fn suspend(&self, course: &mut Course<'_>) {
        let left = self.guard.valid_for();
        self.voice.tell(&Event::Suspended { expires: left.is_some(), left });
        signals::take(Signal::SIGTSTP);
        // Somebody let us go on. The command too, but perhaps not yet: without this it would look stopped.
        self.resume(course);
    }

    /// Lets the command go on, unless its time is over: then it is killed where it stands.
    fn resume(&self, course: &mut Course<'_>) {
        self.keep_to_plan(course);
        if !matches!(course.phase, Phase::Killing) {
            tree::signal(Sent::CONT);
            course.resumed = Some(now());
        }
    }

    fn handle(&self, arrived: Arrived, course: &mut Course<'_>) {
        let Arrived { signal, by_terminal } = arrived;
        match signal {
            // Whoever waits for children looks after every signal.
            Signal::SIGCHLD => {}
            Signal::SIGTSTP => {
                if !by_terminal || course.resumed.is_some_and(|at| now().since(at) < RESUMED) {
                    forward(signal);
                }
                self.suspend(course);
            }
            Signal::SIGCONT => self.resume(course),
            Signal::SIGTERM => {
                let now = now();
                match course.first_term {
                    Some(first) if now.since(first) >= SECOND => {
                        self.kill(course, "told to end a second time")
                    }
                    Some(_) => {}
                    None => course.first_term = Some(now),
                }
                forward(signal);
                forward(Signal::SIGCONT);
            }
            // Everybody in the foreground has it from the terminal itself.
            _ if by_terminal => course.interrupted |= signal == Signal::SIGINT,
            _ => forward(signal),
        }
    }
}

/// Passes a signal on to everything the command has started.
fn forward(signal: Signal) {
    if let Some(signal) = Sent::from_named_raw(signal as i32) {
        tree::signal(signal);
    }
}

fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}
