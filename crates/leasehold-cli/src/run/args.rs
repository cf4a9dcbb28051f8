//! The options of `run`.

use std::ffi::OsString;
use std::time::Duration;

use leasehold::backend::Liveness;
use leasehold::engine::limits::DEFAULT_TTL;
use leasehold::{Locks, Mode, MultiLock};

use crate::duration;
use crate::exit::Exit;
use crate::lock::ModeArgs;
use crate::report::Failure;
use crate::store::Store;
use crate::url::StoreArgs;

use super::child::Start;
use super::voice::Voice;

const EXAMPLES: &str = "\
Examples:
  leasehold run backup -- ./backup.sh          Wait for the lock, then run
  leasehold run -n backup -- ./backup.sh       Run only if the lock is free; else exit 75
  leasehold run -n --skip-ok backup -- ./b.sh  The same for cron: busy is success
  leasehold run -w 2.5 backup -- ./backup.sh   Wait at most 2.5 seconds
  leasehold run backup -c 'a && b'             Through the shell
  leasehold run --limit 3 gpu -- ./train       At most three at a time
  leasehold run a --also b -- ./move a b       Hold both locks, or none
  leasehold run --url sqlite:/var/lib/app/locks.db --ttl 1m job -- ./job

The command sees LEASEHOLD_NAME, LEASEHOLD_FENCE, LEASEHOLD_LEASE_ID and LEASEHOLD_URL,
and in LEASEHOLD_FENCES the fence of each name, as a JSON object.

If the lease cannot be renewed on a store with a ttl, the command and all its
processes are killed before another client can take the lock: TERM at
--kill-after before the lease would end, KILL right before it ends. The lock is
released when all processes are gone. TERM, INT, HUP, QUIT, USR1, USR2 and WINCH
are passed on to the command; a second TERM kills it.

Exit status: that of the command, or 128 + n if signal n ended it; 75 (or -E) the
lock is held; 79 (or --lost-code) the lock was lost; 82 the lock was lost, and the
command could not be killed in time; 69 the store does not work; 77 not allowed;
64 wrong usage; 126 the command cannot be run; 127 the command was not found.";

/// Run a command under a lock.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "leasehold run [OPTIONS] <NAME> -- <COMMAND> [ARGS]...\n       leasehold run [OPTIONS] <NAME> -c <LINE>"
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Do not wait: if the lock is held, exit 75.
    #[arg(short, long = "nonblock", visible_alias = "nb", conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait at most this many seconds; fractions and units (500ms, 10m) are allowed.
    #[arg(short, long, visible_alias = "timeout", value_name = "SECS", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit code if the lock is held, or the wait timed out.
    #[arg(short = 'E', long = "conflict-exit-code", value_name = "CODE", default_value_t = Exit::Busy as u8)]
    pub(crate) conflict_code: u8,
    /// Exit 0 without a message if the lock is held (for cron).
    #[arg(long, conflicts_with = "conflict_code")]
    pub(crate) skip_ok: bool,
    /// Exit code if the lock was lost and the command was therefore ended.
    #[arg(long, value_name = "CODE", default_value_t = Exit::Lost as u8)]
    pub(crate) lost_code: u8,
    /// End the command if it runs longer than this.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Run this command line with the shell.
    #[arg(short, long = "command", value_name = "LINE", conflicts_with = "command")]
    c: Option<OsString>,
    /// Hold this name alone as well: the command runs once all names are held. All such commands take them in one order,
    /// so that no two wait for each other. Can be repeated.
    #[arg(long, value_name = "NAME")]
    also: Vec<String>,
    /// Hold this name as well, together with other readers. Can be repeated.
    #[arg(long, value_name = "NAME")]
    also_shared: Vec<String>,
    /// The name of the lock.
    pub(crate) name: String,
    /// The command and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

/// How a lock is held while a command runs: the options of `run` and `elect`.
#[derive(Debug, clap::Args)]
pub(crate) struct HoldArgs {
    /// How long the lock stays taken after leasehold or its machine dies; renewed while the command runs. Has no
    /// effect on file:, which frees the lock at once [default: 30s]
    #[arg(long, env = "LEASEHOLD_TTL", value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Time between TERM and KILL, at most a third of the ttl [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    kill_after: Option<Duration>,
    /// End the processes that the command leaves running, instead of waiting for them.
    #[arg(long)]
    pub(crate) kill_leftovers: bool,
    /// Use a store without fences. Without a fence, the protected resource cannot refuse a holder that was paused too
    /// long.
    #[arg(long)]
    pub(crate) allow_unfenced: bool,
    /// Do not warn about risks in the store's setup, or about a command that leasehold may not be able to kill.
    #[arg(long, env = "LEASEHOLD_NO_WARNINGS")]
    pub(crate) no_warnings: bool,
    /// Label that others see as the holder [default: host:pid]
    #[arg(long)]
    owner: Option<String>,
    /// Text to store and show with the lock.
    #[arg(long, value_name = "TEXT")]
    metadata: Option<String>,
    /// Print events on stderr as JSON, one object per line.
    #[arg(long)]
    json: bool,
}

impl HoldArgs {
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }

    pub(crate) fn kill_after(&self) -> Duration {
        self.kill_after.unwrap_or(Duration::from_secs(5))
    }

    pub(crate) fn voice(&self) -> Voice {
        Voice { json: self.json }
    }

    /// The store's locks with these options.
    pub(crate) fn locks(&self, opened: &Store) -> Locks {
        opened.locks.with_options(|options| {
            options.ttl = self.ttl();
            options.allow_unfenced = self.allow_unfenced;
            if let Some(owner) = &self.owner {
                options.owner = owner.as_str().into();
            }
            options.metadata = self.metadata.as_deref().map(Into::into);
        })
    }

    /// Checks the options against what the store can do. Returns the ttl, if its locks expire.
    pub(crate) fn check(&self, opened: &Store) -> Result<Option<Duration>, Failure> {
        let info = opened.locks.info();
        let ttl = (info.liveness == Liveness::Ttl).then(|| self.ttl());
        if let (Some(ttl), Some(kill_after)) = (ttl, self.kill_after)
            && kill_after > ttl / 3
        {
            return Err(Failure::Usage(format!(
                "--kill-after must be at most a third of the ttl, or a healthy lock would look like one \
                 about to end: use --ttl {}s or more",
                (kill_after * 3).as_secs_f64()
            )));
        }
        if !info.fenced && !self.allow_unfenced {
            return Err(Failure::Usage(format!(
                "{}: gives no fences as it is set up, so that a command that was paused too long cannot be told from \
                 its successor; `leasehold doctor` says more, --allow-unfenced accepts it",
                info.scheme
            )));
        }
        Ok(ttl)
    }
}

impl Run {
    /// All names and how each is shared, the main one first.
    pub(crate) fn wanted(&self) -> Vec<(&str, Mode)> {
        let alone = self.also.iter().map(|name| (&**name, Mode::Exclusive));
        let shared = self.also_shared.iter().map(|name| (&**name, Mode::Shared));
        std::iter::once((&*self.name, self.mode.mode())).chain(alone).chain(shared).collect()
    }

    /// The lock of all names.
    pub(crate) fn lock(&self, locks: &Locks) -> MultiLock {
        self.wanted().into_iter().fold(locks.all::<&str>([]), |lock, (name, mode)| match mode {
            Mode::Permit { limit } => lock.also_permit(name, limit),
            Mode::Shared => lock.also_read(name),
            _ => lock.also(name),
        })
    }

    /// The command to start.
    pub(crate) fn command(&self) -> Result<Start, Failure> {
        let start = Start::new(self.c.as_deref(), &self.command).ok_or_else(|| {
            Failure::Usage(
                "there is no command to run: leasehold run NAME -- COMMAND, or -c 'LINE' for a shell".into(),
            )
        })?;
        // In `leasehold run -- echo hi` the name is `echo`. A name may stand there, but this one hardly should.
        let behind_dashes = std::env::args_os().skip_while(|arg| arg != "--").skip(1).count();
        if self.c.is_none()
            && behind_dashes == self.command.len() + 1
            && let Err(Failure::Ended(Exit::NotFound, why)) = start.check()
        {
            return Err(Failure::Ended(
                Exit::NotFound,
                format!("{why}; {:?} is the name of the lock: leasehold run NAME -- COMMAND", self.name),
            ));
        }
        Ok(start)
    }

    /// Checks the options against what the store can do. Returns the ttl, if its locks expire.
    pub(crate) fn check(&self, opened: &Store) -> Result<Option<Duration>, Failure> {
        let ttl = self.hold.check(opened)?;
        if self.max_hold.is_some_and(|hold| hold.is_zero()) {
            return Err(Failure::Usage("--max-hold must be above zero".into()));
        }
        Ok(ttl)
    }
}
