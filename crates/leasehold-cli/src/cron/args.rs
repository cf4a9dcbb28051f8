//! The options of `cron`.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;
use leasehold::{Missed, Schedule, ScheduledJob, TickPolicy};

use crate::args::Output;
use crate::duration;
use crate::report::Failure;
use crate::run::args::HoldArgs;
use crate::run::child::Start;
use crate::url::StoreArgs;

const EXAMPLES: &str = "\
Examples:
  leasehold cron '0 2 * * *' report -- ./report   Start it on every node; one runs it
  leasehold cron '*/10 * * * * *' poll -- ./poll  With seconds first
  leasehold cron '@every 90s' sync -- ./sync      @hourly, @daily, @weekly … too
  leasehold cron --time-zone Europe/Berlin --jitter 5m '0 2 * * *' report -- ./report
  leasehold cron --status report                  The last runs, and the next

When a tick is due, one node takes the lock of the name and records in the store that
the tick has begun; then it runs the command, and records how it ended. The others see
that the tick runs, or has run, however late they come. What `leasehold run` says about
the command holds here too: it is dead before another node can run the next tick.

--policy says what happens to a tick whose node dies, or is stopped, while it runs:
  at-most-once   It is not run again (the default).
  at-least-once  Another node runs it again. The command must bear that.
--missed says what happens to ticks that no node has run, because all were down, the
store was away, or the command took longer than until its next tick:
  run-once       The latest of them runs, once, for all (the default).
  skip           They are left out.
  run-all        Each of them runs, one after the other.
Use the same expression and options on all nodes.

The command sees LEASEHOLD_TICK, the time at which it was due, LEASEHOLD_TICK_MS, the
same in milliseconds since 1970, and LEASEHOLD_NAME, LEASEHOLD_FENCE,
LEASEHOLD_LEASE_ID and LEASEHOLD_URL.

TERM, INT and QUIT end the command and the schedule.

Exit status: that of the command, or 128 + n if signal n ended it or the wait for a
tick; 77 not allowed; 64 wrong usage, or the store keeps no notes; 126 the command
cannot be run; 127 it was not found.";

/// Run a command at the times of a cron expression, once among all nodes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "leasehold cron [OPTIONS] <EXPR> <NAME> -- <COMMAND> [ARGS]...\n       leasehold cron [OPTIONS] <EXPR> <NAME> -c <LINE>\n       leasehold cron --status <NAME>"
)]
pub(crate) struct Cron {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Show the last runs of this name and the next one, and run nothing.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["expression", "name", "c", "command"])]
    pub(crate) status: Option<String>,
    /// How to print the answer of --status.
    #[arg(long, value_enum, default_value_t, value_name = "FORM", requires = "status")]
    pub(crate) output: Output,
    /// The time zone of the expression.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    time_zone: String,
    /// Delay each tick by up to this time, the same on all nodes, so that not all jobs start at the full hour.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    jitter: Option<Duration>,
    /// What happens to ticks that no node has run.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    missed: MissedArg,
    /// What happens to a tick whose node dies.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t)]
    policy: PolicyArg,
    /// How far the clocks of the nodes may be apart.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "2s")]
    clock_bound: Duration,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Run this command line with the shell.
    #[arg(short, long = "command", value_name = "LINE", conflicts_with = "command")]
    c: Option<OsString>,
    /// When to run: minute, hour, day of the month, month, day of the week; or with the second first.
    #[arg(value_name = "EXPR", required_unless_present = "status")]
    expression: Option<String>,
    /// The name of the schedule, and of its lock.
    #[arg(required_unless_present = "status")]
    name: Option<String>,
    /// The command and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum MissedArg {
    #[default]
    RunOnce,
    Skip,
    RunAll,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum PolicyArg {
    #[default]
    AtMostOnce,
    AtLeastOnce,
}

impl Cron {
    /// The name; empty only with `--status`.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// When to run.
    pub(crate) fn schedule(&self) -> Result<Schedule, Failure> {
        let expression = self.expression.as_deref().unwrap_or_default();
        Ok(Schedule::cron(expression)?.in_zone(&self.time_zone)?)
    }

    /// The job, as the library knows it.
    pub(crate) fn job(&self, schedule: Schedule) -> ScheduledJob {
        let missed = match self.missed {
            MissedArg::RunOnce => Missed::RunOnce,
            MissedArg::Skip => Missed::Skip,
            MissedArg::RunAll => Missed::RunAll,
        };
        let policy = match self.policy {
            PolicyArg::AtMostOnce => TickPolicy::AtMostOnce,
            PolicyArg::AtLeastOnce => TickPolicy::AtLeastOnce,
        };
        ScheduledJob::new(self.name(), schedule)
            .missed(missed)
            .policy(policy)
            .jitter(self.jitter.unwrap_or_default())
            .clock_bound(self.clock_bound)
    }

    /// The command to start.
    pub(crate) fn command(&self) -> Result<Start, Failure> {
        Start::new(self.c.as_deref(), &self.command).ok_or_else(|| {
            Failure::Usage(
                "there is no command to run: leasehold cron 'EXPR' NAME -- COMMAND, or -c 'LINE' for a shell"
                    .into(),
            )
        })
    }
}
