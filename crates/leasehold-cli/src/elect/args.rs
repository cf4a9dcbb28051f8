//! The options of `elect`.

use std::ffi::OsString;

use crate::report::Failure;
use crate::run::args::HoldArgs;
use crate::run::child::Start;
use crate::url::StoreArgs;

const EXAMPLES: &str = "\
Examples:
  leasehold elect sync -- ./sync --forever       Start it several times; one runs
  leasehold elect --once sync -- ./sync          Until the command ends, or the term is lost
  leasehold elect --http 127.0.0.1:4040 sync -- ./sync
  leasehold elect --http 127.0.0.1:4040 sync     Without a command: only lead, and say so

The command runs only while this process leads. It is started when this process
wins, and dead before another can lead; then this process stands for election again.
The command sees LEASEHOLD_TERM, the number of the term, which is also its fence,
and LEASEHOLD_NAME, LEASEHOLD_FENCE, LEASEHOLD_LEASE_ID and LEASEHOLD_URL.

If the command ends by itself, the term is resigned, and this process stands again
after a pause of 1 s, which doubles up to 30 s while the command ends within 10 s of
its start. If the store cannot be reached, it goes on trying.

With --http, GET / answers 200 while this process leads, and otherwise 503 and, if
the store can say so, the leader. The body is JSON.

TERM, INT and QUIT end the command and the election.

Exit status: that of the command, or 128 + n if signal n ended it; 79 the term was
lost (with --once); 82 it was lost, and the command could not be killed in time;
77 not allowed; 64 wrong usage; 126 the command cannot be run; 127 it was not found.";

/// Run a command while this process leads an election, term after term.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "leasehold elect [OPTIONS] <NAME> -- <COMMAND> [ARGS]...\n       leasehold elect [OPTIONS] <NAME> -c <LINE>\n       leasehold elect [OPTIONS] --http <ADDRESS> <NAME>"
)]
pub(crate) struct Elect {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// End after one term.
    #[arg(long)]
    pub(crate) once: bool,
    /// Answer on this address whether this process leads, for load balancers and health checks.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<String>,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Run this command line with the shell.
    #[arg(short, long = "command", value_name = "LINE", conflicts_with = "command")]
    c: Option<OsString>,
    /// The name of the election.
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

impl Elect {
    /// The command to start, if there is one.
    pub(crate) fn command(&self) -> Option<Start> {
        Start::new(self.c.as_deref(), &self.command)
    }

    /// Checks what can be checked before anything else happens.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.command() {
            Some(start) => start.check(),
            None if self.http.is_some() => Ok(()),
            None => Err(Failure::Usage(
                "there is neither a command to run nor an address to answer on: leasehold elect NAME -- COMMAND, \
                 -c 'LINE' for a shell, or --http ADDRESS"
                    .into(),
            )),
        }
    }
}
