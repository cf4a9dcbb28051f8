//! Watches the command from its start until none of its processes is left: signals, the deadline, the end.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use leasehold::clock::{BootTimer, Moment};
use leasehold::{Gone, Guard, GuardState, Locks, LostReason};
use nix::sys::signal::Signal;
use rustix::process::{Pid, Signal as Sent, WaitStatus};

use crate::interrupt;

use super::hold::Hold;
use super::now;
use super::plan::{Plan, Step, Why};
use super::signals::{Arrived, Signals};
use super::suspend::Stop;
use super::terminal::Terminal;
use super::tree::{self, Reaped};
use super::validity::{Change, Validity};
use super::voice::{Event, Voice};

/// A second TERM kills, unless it comes together with the first: `timeout` sends one to the process and one to its
/// group.
const SECOND: Duration = Duration::from_millis(100);

/// How often processes that do not die, or start meanwhile, are killed again.
const AGAIN: Duration = Duration::from_millis(20);

/// Leftover processes are reported only if they live longer than this; usually they do not.
const MOMENT: Duration = Duration::from_millis(250);

/// How the run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How the command itself ended.
    pub(crate) status: WaitStatus,
    /// Why it had to end, if we ended it.
    pub(crate) why: Option<Why>,
    /// Interrupted from the terminal.
    pub(crate) interrupted: bool,
    /// The last signal that asked to end.
    pub(crate) asked: Option<Signal>,
    /// Some process could not be killed when it had to be.
    pub(crate) outlived: bool,
}

/// The command and everything it has started.
#[derive(Debug)]
pub(crate) struct Supervised<'a> {
    pub(crate) leader: Pid,
    pub(crate) hold: &'a Hold,
    pub(crate) locks: &'a Locks,
    pub(crate) plan: Plan,
    pub(crate) voice: Voice,
    pub(crate) terminal: Terminal,
    pub(crate) kill_leftovers: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running,
    /// Asked to end; will be killed at this moment.
    Stopping(Moment),
    Killing,
}

pub(super) struct Course<'a> {
    validity: Validity<'a>,
    phase: Phase,
    /// The command's exit status, once it has ended.
    pub(super) status: Option<WaitStatus>,
    why: Option<Why>,
    interrupted: bool,
    asked: Option<Signal>,
    /// Whether the system refused to kill one of the command's processes.
    outlived: bool,
    first_term: Option<Moment>,
    /// Whether the command itself is stopped.
    pub(super) stopped: bool,
    /// A stop request that we are to follow.
    pub(super) stop: Option<Stop>,
    /// The process group for which the command took the terminal.
    pub(super) took_terminal: Option<Pid>,
    /// Whether the command itself has stopped or continued since we last stopped.
    pub(super) heard: bool,
    /// When one of the command's processes was last continued.
    pub(super) resumed: Option<Moment>,
    /// Whether we have just continued, and the signal for it is still to be read.
    pub(super) going_on: bool,
    /// When to report leftover processes.
    leftovers: Option<Moment>,
}

impl Course<'_> {
    pub(super) fn is_killing(&self) -> bool {
        matches!(self.phase, Phase::Killing)
    }
}

impl Supervised<'_> {
    /// Returns when none of the processes that the command started is left.
    pub(crate) async fn until_gone(&self, signals: &Signals, timer: &BootTimer) -> Ended {
        let mut course = Course {
            validity: Validity::new(self.hold, self.locks),
            phase: Phase::Running,
            status: None,
            why: None,
            interrupted: false,
            asked: None,
            outlived: false,
            first_term: None,
            stopped: false,
            stop: None,
            took_terminal: None,
            heard: false,
            resumed: None,
            going_on: false,
            leftovers: None,
        };
        let mut losses: FuturesUnordered<_> = self.hold.guards().iter().map(Guard::lost).collect();
        loop {
            // The deadline first: after a pause nothing may come before it.
            self.keep_to_plan(&mut course);
            if let Some(ended) = self.note_children(&mut course) {
                return ended;
            }
            // Again, because the children's changes may have set an earlier moment to wake.
            let wake = self.keep_to_plan(&mut course);
            let wake = [wake, self.stop_if_stopped(&mut course)].into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(_) = losses.next() => course.validity.ask_again(),
                () = course.validity.learned() => {}
                arrived = signals.next() => self.handle(arrived, &mut course),
                () = timer.sleep_until(wake.unwrap_or(Moment::NEVER)) => {}
            }
        }
    }

    /// Ends the command if it is time. Returns when to look again.
    pub(super) fn keep_to_plan(&self, course: &mut Course<'_>) -> Option<Moment> {
        // A lock without ttl shows a loss only by its state.
        let now = now();
        let valid_for = course.validity.valid_for();
        let step = match self.plan.step(now, valid_for) {
            Step::Wait(_) if course.validity.is_revoked() => {
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
                // Repeatedly: processes started after the last kill have not received it.
                let refused = tree::signal(Sent::KILL);
                self.tell_of_refusal(course, refused);
                Some(now + AGAIN)
            }
            (Phase::Stopping(at), _) => Some(at),
            (Phase::Running, Step::Wait(at)) => at,
            (Phase::Running, _) => Some(now),
        };
        let others = [self.tell_of_renewals(course), self.tell_of_leftovers(course, now)];
        others.into_iter().chain([next]).flatten().min()
    }

    /// Reports to programs whether renewals work; people see it only when it matters. Returns when to look again.
    fn tell_of_renewals(&self, course: &mut Course<'_>) -> Option<Moment> {
        let ttl = self.plan.ttl().filter(|_| self.voice.json && matches!(course.phase, Phase::Running))?;
        let (change, again) = course.validity.renewals(ttl);
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
            Why::Lease if self.hold.lost_now() == Some(LostReason::Refused(Gone::Revoked)) => {
                "the lock was revoked"
            }
            Why::Lease if self.hold.state() == GuardState::Lost => "the lock was lost",
            Why::Lease => "the lock could not be renewed and is about to end",
        }
    }

    fn stop(&self, course: &mut Course<'_>, why: &str, kill: Moment) {
        self.voice.tell(&Event::Stopping { why, grace: kill.since(now()) });
        course.phase = Phase::Stopping(kill);
        tree::signal(Sent::TERM);
        // A stopped process could not end otherwise.
        tree::signal(Sent::CONT);
    }

    fn kill(&self, course: &mut Course<'_>, why: &str) {
        if !matches!(course.phase, Phase::Killing) {
            course.phase = Phase::Killing;
            // Kill first, report then: a terminal may be slow.
            let refused = tree::signal(Sent::KILL);
            self.voice.tell(&Event::Killing { why });
            self.tell_of_refusal(course, refused);
        }
    }

    /// Reports once that processes of another user cannot be killed.
    fn tell_of_refusal(&self, course: &mut Course<'_>, refused: usize) {
        if refused > 0 && !course.outlived {
            course.outlived = true;
            self.voice.tell(&Event::CannotKill { processes: refused });
        }
    }

    /// Records what children have done. Returns how the run ended, if no process is left.
    pub(super) fn note_children(&self, course: &mut Course<'_>) -> Option<Ended> {
        loop {
            match tree::reap() {
                Reaped::AllGone => {
                    let status = course.status?;
                    let Course { why, interrupted, asked, outlived, .. } = *course;
                    return Some(Ended { status, why, interrupted, asked, outlived });
                }
                Reaped::Nothing => return None,
                Reaped::Child(pid, _) if pid != self.leader => {}
                Reaped::Child(_, status) if status.stopped() => self.has_stopped(status, course),
                Reaped::Child(_, status) if status.continued() => self.goes_on(course),
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

    fn handle(&self, arrived: Arrived, course: &mut Course<'_>) {
        let Arrived { signal, by_terminal } = arrived;
        if interrupt::asks_to_end(signal) {
            course.asked = Some(signal);
        }
        match signal {
            // The loop checks the children after every signal.
            Signal::SIGCHLD => {}
            Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
                // It replaced a pending SIGCONT, if there was one.
                course.going_on = false;
                self.asked_to_stop(signal, by_terminal, course);
            }
            Signal::SIGCONT => self.told_to_go_on(course),
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
            // The terminal itself has sent it to the whole foreground group.
            _ if by_terminal => course.interrupted |= signal == Signal::SIGINT,
            _ => forward(signal),
        }
    }
}

/// Forwards a signal to everything the command has started.
pub(super) fn forward(signal: Signal) {
    if let Some(signal) = Sent::from_named_raw(signal as i32) {
        tree::signal(signal);
    }
}
