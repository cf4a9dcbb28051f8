//! Suspends this process only after the command has stopped.
//!
//! A shell shows its prompt as soon as the process it started, this one, is stopped. A command that received the stop
//! signal in the same moment may stop later, because it was not scheduled yet or restores the terminal first;
//! meanwhile it would read what is typed to the shell. Or it does not stop at all, and would run while nothing renews
//! its lock. So the command and its children stop first.

use std::time::Duration;

use leasehold::clock::Moment;
use nix::sys::signal::Signal;
use rustix::process::{Signal as Sent, WaitStatus, getpgid, getpgrp};

use super::now;
use super::signals;
use super::supervise::{Course, Supervised};
use super::tree::{self, State};
use super::voice::Event;

/// How long the command's other processes may take to stop after the command itself has: they may restore a terminal
/// first. Meanwhile a person waits for a prompt.
const OTHERS: Duration = Duration::from_secs(2);

/// How often to check them: a process is notified only about its own children.
const LOOK: Duration = Duration::from_millis(5);

/// A command that stops later than this after the stop signal has another reason for it.
const MEANT: Duration = Duration::from_secs(10);

/// For this long after a process was continued, it may miss a stop signal: SIGCONT removes one that was still pending.
const MISSED: Duration = Duration::from_secs(1);

/// How long a process that may have missed the stop signal has to show that it has not; and how often to check whether
/// a command that has not stopped is stuck.
const AGAIN: Duration = Duration::from_millis(100);

/// The signals by which a terminal, or a program in its place, stops processes.
const BY_TERMINAL: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// A stop in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop {
    signal: Signal,
    since: Moment,
    /// Whether other processes than the command received the signal too.
    told: bool,
    /// When the command itself was seen to be stopped.
    stopped: Option<Moment>,
    /// When to check a command that has not stopped.
    again: Moment,
    /// Whether processes that may have missed the signal must still get it again.
    missed: bool,
    /// Whether the command was stuck at the last check.
    stuck: bool,
}

impl Stop {
    fn new(signal: Signal, told: bool, since: Moment) -> Self {
        Stop { signal, since, told, stopped: None, again: since + AGAIN, missed: false, stuck: false }
    }
}

impl Supervised<'_> {
    /// We received a stop signal. The command must stop too; it has the signal from the terminal already, unless it
    /// was sent to us alone.
    pub(super) fn asked_to_stop(&self, signal: Signal, by_terminal: bool, course: &mut Course<'_>) {
        if !by_terminal {
            super::supervise::forward(signal);
        }
        let (since, stopped) = (now(), course.stop.and_then(|stop| stop.stopped));
        let missed = course.resumed.is_some_and(|at| since.since(at) < MISSED);
        course.stop = Some(Stop { stopped, missed, ..Stop::new(signal, true, since) });
    }

    /// The command was stopped. If the terminal did it, we stop too; otherwise the shell that started us would not
    /// notice.
    pub(super) fn has_stopped(&self, status: WaitStatus, course: &mut Course<'_>) {
        course.stopped = true;
        course.heard = true;
        let signal = status.stopping_signal().and_then(|number| Signal::try_from(number).ok());
        let signal = signal.filter(|signal| BY_TERMINAL.contains(signal));
        // A shell suspends itself differently and owns the terminal, which would then belong to nobody.
        let group = getpgid(Some(self.leader)).ok().filter(|group| *group != getpgrp());
        let took = group.filter(|group| self.terminal.foreground() == Some(*group));
        course.took_terminal = took.or(course.took_terminal);
        let signal = signal.or(took.map(|_| Signal::SIGTSTP)).filter(|_| self.terminal.is_there());
        let now = now();
        let meant = course.stop.filter(|stop| now.since(stop.since) < MEANT);
        course.stop = meant.or(signal.map(|signal| Stop::new(signal, false, now)));
    }

    /// The command continues, so a stop of its own is over.
    pub(super) fn goes_on(&self, course: &mut Course<'_>) {
        course.stopped = false;
        course.heard = true;
        course.stop = course.stop.filter(|stop| stop.told);
    }

    /// Stops this process if that was asked for and the command is stopped. Returns when to check again without a
    /// signal.
    pub(super) fn stop_if_stopped(&self, course: &mut Course<'_>) -> Option<Moment> {
        let stop = course.stop.as_mut()?;
        let (now, ours) = (now(), getpgrp().as_raw_nonzero().get());
        if stop.missed && now >= stop.again {
            stop.missed = now.since(stop.since) < MISSED;
            tell_again(stop, ours);
        }
        if course.status.is_none() && !course.stopped && now.since(stop.since) < MEANT {
            if now < stop.again {
                return Some(stop.again);
            }
            stop.again = now + AGAIN;
            // The command is slow or refuses to stop; started directly, it would not stop either. The exception is a
            // command that cannot: while it waits for a stopped child that shares its memory, it does nothing.
            let stuck = tree::is_stuck(self.leader);
            course.stopped = stop.stuck && stuck;
            stop.stuck = stuck;
            return Some(stop.again);
        }
        if course.status.is_none() && !course.stopped {
            course.stop = None;
            return None;
        }
        let Some(since) = stop.stopped else {
            // A signal to the others comes to us too, and was read before this.
            stop.stopped = Some(now);
            return Some(now + LOOK);
        };
        let running = tree::running();
        let late = now.since(since);
        let stopping = |it: &&tree::Process| it.pid != self.leader && it.group == ours;
        let stopping = running.iter().filter(stopping).any(|it| !it.ignores(stop.signal));
        if stop.told && late < OTHERS && stopping {
            return Some(now + LOOK);
        }
        // Nothing may run while nothing renews the lock, whatever signal it received; nor what is started meanwhile.
        if self.plan.ttl().is_some() {
            tree::send(&running, Sent::STOP);
            if late < 2 * OTHERS && running.iter().any(|it| it.state == State::Running) {
                return Some(now + LOOK);
            }
        }
        let signal = stop.signal;
        self.suspend(signal, course);
        Some(now)
    }

    /// Stops this process, and the renewals with it.
    fn suspend(&self, signal: Signal, course: &mut Course<'_>) {
        let left = self.hold.valid_for();
        self.voice.tell(&Event::Suspended { expires: left.is_some(), left });
        (course.stop, course.stopped, course.heard) = (None, false, false);
        signals::take(signal);
        course.going_on = signals::is_pending(Signal::SIGCONT);
        // We were continued, and the command too if the signal was for the whole group. What it does from now on is
        // new: if it stops again, it means it.
        self.note_children(course);
        let went_on = course.heard;
        self.resume(went_on, course);
    }

    /// We received SIGCONT: the one that has just continued us, or one meant for the command.
    pub(super) fn told_to_go_on(&self, course: &mut Course<'_>) {
        if !std::mem::take(&mut course.going_on) {
            course.stop = None;
            self.resume(false, course);
        }
    }

    /// Continues everything, with or without the command. If its time is over, it is killed while stopped.
    fn resume(&self, went_on: bool, course: &mut Course<'_>) {
        self.keep_to_plan(course);
        if course.is_killing() {
            return;
        }
        if let Some(group) = course.took_terminal {
            // The shell that brought us to the foreground means the command, but knows only our group.
            self.terminal.hand_over(group);
        }
        let mut stopped = tree::stopped();
        stopped.retain(|process| !(went_on && process.pid == self.leader));
        if !stopped.is_empty() {
            tree::send(&stopped, Sent::CONT);
            course.resumed = Some(now());
        }
    }
}

/// Signals the processes in our group again that would have stopped if they had received it.
fn tell_again(stop: &Stop, ours: i32) {
    let mut missed = tree::running();
    missed.retain(|it| it.group == ours && it.is_older_than(stop.since) && it.does_as_usual_on(stop.signal));
    if let Some(signal) = Sent::from_named_raw(stop.signal as i32) {
        tree::send(&missed, signal);
    }
}
