//! Suspending: this process stops only when the command has.
//!
//! A shell shows its prompt as soon as the process that it has started is stopped, and that is this one. A command
//! that was told to stop in the same moment may take a while, because its turn has not come or because it puts
//! the terminal in order first, and would meanwhile read what is typed to the shell; or it does not stop at all,
//! and would run while nothing renews its lock. So the command comes first, and what it has started.

use std::time::Duration;

use leasehold::clock::Moment;
use nix::sys::signal::Signal;
use rustix::process::{Signal as Sent, WaitStatus, getpgid, getpgrp};

use super::alarm::now;
use super::signals;
use super::supervise::{Course, Supervised};
use super::tree::{self, State};
use super::voice::Event;

/// How long those beside the command that were told to stop may take once it has: they may have a terminal to put in
/// order. A person waits for a prompt meanwhile.
const OTHERS: Duration = Duration::from_secs(2);

/// How often they are looked at: only of its children is a process told that they are stopped.
const LOOK: Duration = Duration::from_millis(5);

/// A command that was told to stop and does so later than this has another reason for it.
const MEANT: Duration = Duration::from_secs(10);

/// After having let something go on, a stop may be missed for this long: who had it before was let go on with it.
const MISSED: Duration = Duration::from_secs(1);

/// How long who may have missed it has to show that it has not; and how often a command that has not stopped is looked
/// at, whether it is stuck.
const AGAIN: Duration = Duration::from_millis(100);

/// What a terminal, or somebody in its place, sends to those that are to stop.
const BY_TERMINAL: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// A stop that has begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop {
    signal: Signal,
    since: Moment,
    /// Whether others than the command were told too.
    told: bool,
    /// When the command itself was seen to be stopped.
    stopped: Option<Moment>,
    /// When to look at a command that has not stopped.
    again: Moment,
    /// Whether those who may have missed it are still to be told.
    missed: bool,
    /// Whether the command was stuck when it was looked at.
    stuck: bool,
}

impl Stop {
    fn new(signal: Signal, told: bool, since: Moment) -> Self {
        Stop { signal, since, told, stopped: None, again: since + AGAIN, missed: false, stuck: false }
    }
}

impl Supervised<'_> {
    /// We are to stop: so is the command, which has it from the terminal already unless it was sent to us alone.
    pub(super) fn asked_to_stop(&self, signal: Signal, by_terminal: bool, course: &mut Course<'_>) {
        if !by_terminal {
            super::supervise::forward(signal);
        }
        let (since, stopped) = (now(), course.stop.and_then(|stop| stop.stopped));
        let missed = course.resumed.is_some_and(|at| since.since(at) < MISSED);
        course.stop = Some(Stop { stopped, missed, ..Stop::new(signal, true, since) });
    }

    /// The command was stopped. If it was from the terminal so are we, or whoever started us would never know.
    pub(super) fn has_stopped(&self, status: WaitStatus, course: &mut Course<'_>) {
        course.stopped = true;
        course.heard = true;
        let signal = status.stopping_signal().and_then(|number| Signal::try_from(number).ok());
        let signal = signal.filter(|signal| BY_TERMINAL.contains(signal));
        // A shell suspends itself in another way, and has the terminal for itself, which would then be nobody's.
        let group = getpgid(Some(self.leader)).ok().filter(|group| *group != getpgrp());
        let took = group.filter(|group| self.terminal.foreground() == Some(*group));
        course.took_terminal = took.or(course.took_terminal);
        let signal = signal.or(took.map(|_| Signal::SIGTSTP)).filter(|_| self.terminal.is_there());
        let now = now();
        let meant = course.stop.filter(|stop| now.since(stop.since) < MEANT);
        course.stop = meant.or(signal.map(|signal| Stop::new(signal, false, now)));
    }

    /// The command goes on, so that what it did alone is over.
    pub(super) fn goes_on(&self, course: &mut Course<'_>) {
        course.stopped = false;
        course.heard = true;
        course.stop = course.stop.filter(|stop| stop.told);
    }

    /// Stops us if that was asked for and the command is stopped. When to look again, if not for a signal.
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
            // It takes its time or does not want to: who has started it directly would not stop either. Unless it
            // cannot: while it waits for a child that shares its memory and was stopped itself, it does nothing.
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
            // What the others were told, we were told too, and hear of it before that.
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
        // Nothing may run while nothing renews the lock, whatever it was told; nor what is started meanwhile.
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

    /// Stops this process, and with it the renewals.
    fn suspend(&self, signal: Signal, course: &mut Course<'_>) {
        let left = self.guard.valid_for();
        self.voice.tell(&Event::Suspended { expires: left.is_some(), left });
        (course.stop, course.stopped, course.heard) = (None, false, false);
        signals::take(signal);
        course.going_on = signals::is_pending(Signal::SIGCONT);
        // Somebody let us go on, and the command too if all of the group was meant. Then what it has done since is
        // news: if it has stopped again it means it.
        self.note_children(course);
        let went_on = course.heard;
        self.resume(went_on, course);
    }

    /// We were told to go on: by what has let us go on just now, or by somebody who means the command.
    pub(super) fn told_to_go_on(&self, course: &mut Course<'_>) {
        if !std::mem::take(&mut course.going_on) {
            course.stop = None;
            self.resume(false, course);
        }
    }

    /// Lets everything go on, with or without the command, unless its time is over: then it is killed where it stands.
    fn resume(&self, went_on: bool, course: &mut Course<'_>) {
        self.keep_to_plan(course);
        if course.is_killing() {
            return;
        }
        if let Some(group) = course.took_terminal {
            // Who has brought us to the foreground means the command, and knows only of our group.
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

/// Tells those in our group again that would have stopped if they had heard it.
fn tell_again(stop: &Stop, ours: i32) {
    let mut missed = tree::running();
    missed.retain(|it| it.group == ours && it.is_older_than(stop.since) && it.does_as_usual_on(stop.signal));
    if let Some(signal) = Sent::from_named_raw(stop.signal as i32) {
        tree::send(&missed, signal);
    }
}
