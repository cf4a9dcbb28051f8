//! `leasehold elect`: runs a command while this process leads an election, term after term.

// What belongs here: the terms, and what happens between them. A command under its lock is in `run`. Before changing
// anything here: `cargo test -p leasehold-cli --test elect --test elect_http`.

mod args;
mod http;
pub(crate) mod pause;

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;

use leasehold::{ErrorKind, Fence, GuardState, Mode, MultiGuard};

use crate::exit::Exit;
use crate::interrupt::{self, PARTING};
use crate::lock;
use crate::report::Failure;
use crate::run::hold::Hold;
use crate::run::job::{Job, Over};
use crate::run::plan::Plan;
use crate::run::signals::{Arrived, Signals};
use crate::run::voice::{Event, Voice};
use crate::run::{self, Risks, announced, now};
use crate::store::{self, Store};

pub(crate) use self::args::Elect;
use self::http::Seat;
use self::pause::Pause;

/// Stands for election until it ends; returns the exit code.
pub(crate) fn run(args: Elect) -> Result<ExitCode, Failure> {
    let voice = args.hold.voice();
    run::session(voice, !args.hold.no_warnings, async |signals, risks| {
        let seat = Seat::new(&args.name);
        let candidate = Candidate { args: &args, signals, voice, seat, told: RefCell::default() };
        match candidate.stand(risks).await {
            Ok(exit) => Ok(exit),
            Err(End::Told(arrived)) => Ok(run::interrupted(arrived, voice)),
            Err(End::Failed(failure)) => Err(failure),
        }
    })
}

/// Why a candidate no longer stands.
enum End {
    /// A signal ends this process.
    Told(Arrived),
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failed(failure)
    }
}

/// How a term ended.
enum Term {
    /// The command has ended, and the term was resigned or lost.
    Over(Over),
    /// It was lost, and there was no command.
    Lost,
}

struct Candidate<'a> {
    args: &'a Elect,
    signals: &'a Signals,
    voice: Voice,
    seat: Arc<Seat>,
    /// The trouble with the store that was reported last: each is reported once.
    told: RefCell<Option<String>>,
}

impl Candidate<'_> {
    async fn stand(&self, risks: &mut Risks) -> Result<ExitCode, End> {
        self.args.check()?;
        if let Some(start) = self.args.command() {
            run::warn_of_user(&self.args.hold, &start);
        }
        let _answering = match &self.args.http {
            Some(address) => Some(self.unless_told(http::answer(address, &self.seat, self.voice)).await??),
            None => None,
        };
        let url = self.args.store.resolve()?;
        let access = self.args.store.access.resolve(&url)?;
        let mut pause = Pause::between_tries();
        // Between the terms of one connection, and over all of them.
        let mut rest = Pause::between_terms();
        loop {
            let failed = match self.unless_told(store::open_at(&url, &access)).await? {
                Ok(opened) => match self.serve(&opened, risks, &mut pause, &mut rest).await {
                    Err(End::Failed(failure)) => {
                        // It may have left a place in the queue, or a lease.
                        interrupt::part(&opened.locks).await;
                        if !failure.is_retryable() {
                            return Err(failure.into());
                        }
                        failure
                    }
                    ended => return ended,
                },
                Err(failure) if failure.is_retryable() => failure,
                Err(failure) => return Err(failure.into()),
            };
            self.tell_of_trouble(&failed);
            self.unless_told(tokio::time::sleep(pause.take())).await?;
        }
    }

    /// Stands for election on this store, term after term.
    async fn serve(
        &self,
        opened: &Store,
        risks: &mut Risks,
        pause: &mut Pause,
        rest: &mut Pause,
    ) -> Result<ExitCode, End> {
        let ttl = self.args.hold.check(opened)?;
        risks.examine(opened);
        self.seat.can_ask(self.args.hold.locks(opened).election(&self.args.name));
        loop {
            let guard = self.campaign(opened).await?;
            pause.reset();
            self.told.take();
            let began = now();
            let plan = Plan::new(ttl, self.args.hold.kill_after(), None, began);
            let over = match self.term(opened, guard, plan).await? {
                Term::Lost if self.args.once => return Ok(Exit::Lost.into()),
                Term::Lost => continue,
                Term::Over(over) => over,
            };
            if self.args.once || over.was_asked() {
                return Ok(over.exit());
            }
            if over.lost.is_none() {
                let pause = rest.after(now().since(began));
                self.voice.tell(&Event::Pausing { why: &over.how(), pause });
                self.unless_told(tokio::time::sleep(pause)).await?;
            }
        }
    }

    /// Waits until it leads.
    async fn campaign(&self, opened: &Store) -> Result<MultiGuard, End> {
        let (locks, name, shown) = (self.args.hold.locks(opened), &self.args.name, opened.url.shown());
        // The exclusive lock of its name is the election.
        let lock = locks.all([name]);
        let tell = async {
            let holder = lock::blocking(&locks, name, Mode::Exclusive).await;
            let trouble = holder.as_ref().err().map(ToString::to_string);
            if trouble.is_some() && self.told.borrow().is_some() {
                return;
            }
            let (owner, trouble) = (holder.as_ref().ok().and_then(Option::as_deref), trouble.as_deref());
            self.voice.tell(&Event::Waiting { name, also: &[], store: &shown, held: None, owner, trouble });
        };
        match self.unless_told(announced(lock.lock(), tell)).await {
            Ok(guard) => Ok(guard.map_err(|error| opened.failed(error))?),
            Err(end) => {
                interrupt::part(&opened.locks).await;
                Err(end)
            }
        }
    }

    /// Leads for one term.
    async fn term(&self, opened: &Store, guard: MultiGuard, plan: Plan) -> Result<Term, End> {
        let term = guard.guards().first().map_or(Fence::UNFENCED, |guard| guard.fence());
        let (name, shown, waited_ms) = (&*self.args.name, opened.url.shown(), guard.waited().as_millis());
        self.voice.tell(&Event::Leading { name, store: &shown, term, waited_ms });
        self.seat.take(term, &guard);
        let Some(mut start) = self.args.command() else {
            return self.lead(guard).await;
        };
        start.env.push(("LEASEHOLD_TERM", Some(term.to_string().into())));
        let job = Job {
            name,
            opened,
            signals: self.signals,
            voice: self.voice,
            plan,
            kill_leftovers: self.args.hold.kill_leftovers,
            lost_code: Exit::Lost as u8,
            is_last: self.args.once,
        };
        let hold = Hold::Names(guard);
        let outcome = job.supervise(start, &hold).await;
        self.seat.leave();
        match job.finish(hold, outcome).await {
            Ok(over) => Ok(Term::Over(over)),
            // The wait for the term used it up, and nothing was started.
            Err(Failure::Lock(error)) if error.kind() == ErrorKind::Lost => {
                self.tell_of_loss(error.message());
                Ok(Term::Lost)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Leads without a command, until the term is lost or a signal ends this process.
    async fn lead(&self, guard: MultiGuard) -> Result<Term, End> {
        let lost = self.unless_told(guard.lost()).await;
        self.seat.leave();
        let why = guard.check().err();
        let released = tokio::time::timeout(PARTING, guard.release()).await;
        if lost.is_err() && matches!(released, Ok(Ok(GuardState::Released))) {
            self.voice.tell(&Event::Released);
        }
        lost?;
        self.tell_of_loss(why.as_ref().map_or("the term is over", |error| error.message()));
        Ok(Term::Lost)
    }

    fn tell_of_loss(&self, why: &str) {
        self.voice.tell(&Event::Lost { why, exit: self.args.once.then_some(Exit::Lost as u8) });
    }

    /// Does this unless a signal ends this process before.
    async fn unless_told<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        tokio::select! {
            biased;
            arrived = interrupt::leaving(self.signals) => Err(End::Told(arrived)),
            done = work => Ok(done),
        }
    }

    fn tell_of_trouble(&self, failure: &Failure) {
        let (_, line) = failure.describe();
        let line = line.unwrap_or_default();
        if self.told.borrow().as_ref() != Some(&line) {
            self.voice.tell(&Event::Retrying { why: &line });
            self.told.replace(Some(line));
        }
    }
}
