//! `leasehold cron`: runs a command at each tick of a schedule, on one of the nodes that have started it.

// What belongs here: the ticks, and what happens between them. A command under its lock is in `run`, when a tick is due
// and who takes it in the library. Before changing anything here: `cargo test -p leasehold-cli --test cron`.

mod args;
mod status;

use std::process::ExitCode;
use std::time::SystemTime;

use leasehold::{ErrorKind, Schedule, TickGuard, Ticks};

use crate::elect::pause::Pause;
use crate::exit::Exit;
use crate::interrupt;
use crate::report::Failure;
use crate::run::hold::Hold;
use crate::run::job::{Job, Over};
use crate::run::plan::Plan;
use crate::run::signals::{Arrived, Signals};
use crate::run::voice::{Event, Voice};
use crate::run::{self, Risks, now};
use crate::store::{self, Store};

pub(crate) use self::args::Cron;

/// Runs the command at each tick until a signal ends this; returns the exit code.
pub(crate) fn run(args: Cron) -> Result<ExitCode, Failure> {
    if let Some(name) = &args.status {
        return crate::runtime()?.block_on(status::show(&args, name));
    }
    let voice = args.hold.voice();
    run::session(voice, !args.hold.no_warnings, async |signals, risks| {
        let node = Node { schedule: args.schedule()?, args: &args, signals, voice };
        match node.serve(risks).await {
            Ok(exit) => Ok(exit),
            Err(End::Told(arrived)) => Ok(run::interrupted(arrived, voice)),
            Err(End::Failed(failure)) => Err(failure),
        }
    })
}

/// Why a node no longer waits for ticks.
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

struct Node<'a> {
    schedule: Schedule,
    args: &'a Cron,
    signals: &'a Signals,
    voice: Voice,
}

impl Node<'_> {
    async fn serve(&self, risks: &mut Risks) -> Result<ExitCode, End> {
        let start = self.args.command()?;
        start.check()?;
        run::warn_of_user(&self.args.hold, &start);
        let opened = self.open().await?;
        self.args.hold.check(&opened)?;
        risks.examine(&opened);
        let locks = self.args.hold.locks(&opened);
        let mut ticks =
            self.args.job(self.schedule.clone()).ticks(&locks).map_err(|error| opened.failed(error))?;
        if let Some(next) = self.schedule.next_after(SystemTime::now()) {
            let (name, next) = (self.args.name(), self.schedule.show(next));
            self.voice.tell(&Event::Scheduled { name, store: &opened.url.shown(), next: &next });
        }
        loop {
            let tick = self.next(&mut ticks, &opened).await?;
            if let Some(over) = self.run(&opened, tick).await?
                && over.was_asked()
            {
                interrupt::part(&opened.locks).await;
                return Ok(over.exit());
            }
        }
    }

    /// Opens the store; tries again while it is away.
    async fn open(&self) -> Result<Store, End> {
        let url = self.args.store.resolve()?;
        let access = self.args.store.access.resolve(&url)?;
        let (mut pause, mut told) = (Pause::between_tries(), None);
        loop {
            let failure = match self.unless_told(store::open_at(&url, &access)).await? {
                Ok(opened) => return Ok(opened),
                Err(failure) if failure.is_retryable() => failure,
                Err(failure) => return Err(failure.into()),
            };
            let (_, why) = failure.describe();
            if told != why {
                self.voice.tell(&Event::Retrying { why: why.as_deref().unwrap_or_default() });
                told = why;
            }
            self.unless_told(tokio::time::sleep(pause.take())).await?;
        }
    }

    /// Waits for the next tick that this node is to run.
    async fn next(&self, ticks: &mut Ticks, opened: &Store) -> Result<TickGuard, End> {
        match self.unless_told(ticks.next()).await {
            Ok(tick) => Ok(tick.map_err(|error| opened.failed(error))?),
            Err(end) => {
                interrupt::part(&opened.locks).await;
                Err(end)
            }
        }
    }

    /// Runs the command for one tick. `None` if the lock was lost before the command was started.
    async fn run(&self, opened: &Store, tick: TickGuard) -> Result<Option<Over>, End> {
        let (name, shown) = (self.args.name(), self.schedule.show(tick.tick()));
        let fence = tick.fence();
        self.voice.tell(&Event::Tick { name, store: &opened.url.shown(), tick: &shown, fence });
        let mut start = self.args.command()?;
        start.env.push(("LEASEHOLD_TICK", Some(shown.clone().into())));
        start.env.push(("LEASEHOLD_TICK_MS", Some(tick.tick().to_string().into())));
        let ttl = self.args.hold.check(opened)?;
        let job = Job {
            name,
            opened,
            signals: self.signals,
            voice: self.voice,
            plan: Plan::new(ttl, self.args.hold.kill_after(), None, now()),
            kill_leftovers: self.args.hold.kill_leftovers,
            lost_code: Exit::Lost as u8,
            is_last: false,
        };
        let hold = Hold::Tick(tick);
        let outcome = job.supervise(start, &hold).await;
        match job.finish(hold, outcome).await {
            Ok(over) => {
                if !over.succeeded() {
                    self.voice.tell(&Event::TickFailed { tick: &shown, why: &over.how() });
                }
                Ok(Some(over))
            }
            Err(Failure::Lock(error)) if error.kind() == ErrorKind::Lost => {
                self.voice.tell(&Event::Lost { why: error.message(), exit: None });
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Does this unless a signal ends this process before.
    async fn unless_told<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        tokio::select! {
            biased;
            arrived = interrupt::leaving(self.signals) => Err(End::Told(arrived)),
            done = work => Ok(done),
        }
    }
}
