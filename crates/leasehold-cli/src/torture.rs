//! `leasehold torture`: puts a store under faults, and checks what happened.

mod hours;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use leasehold_torture::check;
use leasehold_torture::plan::HOT;
use leasehold_torture::report::Outcome;
use leasehold_torture::roles;
use leasehold_torture::store::{Front, Language, Profile, Store};
use leasehold_torture::supervise::{NAMES, Order};

use crate::exit::Exit;
use crate::report::{Failure, answer, say};

const EXAMPLES: &str = "\
Examples:
  leasehold torture                                     A temporary SQLite file, no faults
  leasehold torture --store redis --profile pause       A temporary Redis; workers are paused
  leasehold torture --url redis://host --profile kill   Your own Redis; workers are killed
  leasehold torture --store postgres --profile all --seed 7 --out DIR
  leasehold torture --store redis --front two-servers   Two lock servers in front of one Redis
  leasehold torture --store redis-sentinel --profile failover --wait-replicas 1
  leasehold torture --store http --workers python       Workers of the SDK in sdk/python
  leasehold torture check DIR                           Judge a run again
  leasehold torture --hours 8 --store redis,postgres --profile calm,kill,cancel
                                                        Rounds for 8 hours; nothing may grow

Stores: memory, sqlite, file, redis, redis-sentinel, redis-cluster, quorum, quorum-mixed,
  postgres, postgres+advisory, http
Fronts: none, server, two-servers, pgbouncer, tls
Profiles: calm, kill, pause, net, restart, clock, cancel, leak, resources, crowd,
  logs, many, failover, all";

/// Test a store under faults, and check that it kept its promises.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Torture {
    #[command(subcommand)]
    command: Option<TortureCommand>,
    /// The store to test, or several with --hours [default: that of --url, else sqlite]
    #[arg(long, value_name = "STORE", value_delimiter = ',')]
    store: Vec<Store>,
    /// What clients go through to reach the store
    #[arg(long, default_value = "none", value_name = "FRONT")]
    front: Front,
    /// Test your own store instead of a temporary one
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The faults to inject; with --hours several, in turn
    #[arg(long, default_value = "calm", value_name = "PROFILE", value_delimiter = ',')]
    profile: Vec<Profile>,
    #[command(flatten)]
    long: hours::Long,
    /// How long to run, in seconds; with --hours, each round [default: 20; 200 with the profile failover]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    secs: Option<u64>,
    /// Seed of the plan; the same number gives the same plan [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of worker processes, or the language of an SDK whose workers take part: python, typescript or go
    #[arg(long, default_value_t = Workers::Processes(12), value_name = "N|LANGUAGE")]
    workers: Workers,
    /// Directory of the SDKs, with workers in another language
    #[arg(long, default_value = "sdk", value_name = "DIR")]
    sdk: PathBuf,
    /// Number of hot locks; each beyond the third gets four more workers' tasks
    #[arg(long, default_value_t = HOT, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    hot: u16,
    /// With the profile many: the number of idle names, and of other programs' keys
    #[arg(long, default_value_t = NAMES, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    names: u32,
    /// How many replicas must confirm a grant: 0 or 1, for redis-sentinel and redis-cluster
    #[arg(long, default_value_t = 0, value_name = "N")]
    wait_replicas: u32,
    /// Directory for all files of the run; without it, they are removed if the run passes
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// How many workers there are, or which.
#[derive(Debug, Clone, Copy)]
enum Workers {
    Processes(u16),
    Of(Language),
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u16>() {
            Ok(number @ 2..=256) => Ok(Workers::Processes(number)),
            Ok(number) => Err(format!("{number} is not in 2..=256")),
            Err(_) => text.parse().map(Workers::Of),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workers::Processes(number) => number.fmt(f),
            Workers::Of(language) => language.fmt(f),
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum TortureCommand {
    /// Judge the histories of a run.
    #[command(
        after_help = "Examples:\n  leasehold torture check /tmp/run\n  leasehold torture check --json /tmp/run"
    )]
    Check {
        /// The directory of the run
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Print the verdict as JSON
        #[arg(long)]
        json: bool,
    },
    /// One of the processes that a run starts; standard input says which.
    #[command(hide = true)]
    Process,
}

/// Runs a test, or judges an earlier run again.
pub(crate) fn run(args: Torture) -> Result<ExitCode, Failure> {
    match args.command {
        Some(TortureCommand::Check { directory, json }) => return judge(&directory, json),
        Some(TortureCommand::Process) => return Ok(roles::play()),
        None => {}
    }
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 ^ clock());
    let named = args.url.as_deref().map(|url| {
        let unknown =
            || Failure::Usage("`--url`: torture needs a store that several processes can share".into());
        Store::of_url(url).ok_or_else(unknown)
    });
    let stores = match (&args.store[..], named.transpose()?) {
        ([], named) => vec![named.unwrap_or(Store::Sqlite)],
        (stores, _) => stores.to_vec(),
    };
    if args.long.is_wanted() {
        if args.front != Front::None {
            return Err(Failure::Usage(
                "--hours takes no --front: its stores have nothing before them".into(),
            ));
        }
        if args.hot != HOT {
            return Err(Failure::Usage("--hours takes no --hot".into()));
        }
        return hours::run(&args, stores, seed);
    }
    let ([store], [profile]) = (&stores[..], &args.profile[..]) else {
        return Err(Failure::Usage("several stores or profiles need `--hours`".into()));
    };
    let ground = args.front.before(*store).replace('/', "-");
    let name = format!("leasehold-torture-{ground}-{profile}-{seed}");
    let out = args.out.clone().unwrap_or_else(|| std::env::temp_dir().join(name));
    let mut order = Order::new(*store, *profile, &out);
    order.front = args.front;
    order.url.clone_from(&args.url);
    if let Some(secs) = args.secs {
        order.time = Duration::from_secs(secs);
    }
    order.wait_replicas = args.wait_replicas;
    order.seed = seed;
    match args.workers {
        Workers::Processes(number) => order.workers = number.into(),
        Workers::Of(language) => order.language = Some(language),
    }
    order.sdk.clone_from(&args.sdk);
    order.hot = args.hot;
    order.names = args.names;
    order.progress = true;
    let report = order.run().map_err(cannot_go_on)?;
    if args.out.is_none() && report.outcome == Outcome::Passed {
        // The seed reproduces it.
        let _ = std::fs::remove_dir_all(&out);
    }
    tell(&report, args.json)?;
    Ok(exit(report.outcome).into())
}

fn cannot_go_on(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::Usage(error.to_string()),
        _ => Failure::Ended(Exit::CannotRun, format!("torture cannot continue: {error}")),
    }
}

fn exit(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Passed => Exit::Success,
        Outcome::Vacuous => Exit::Vacuous,
        Outcome::Violated => Exit::Violated,
    }
}

fn tell<R: serde::Serialize + std::fmt::Display>(report: &R, json: bool) -> Result<(), Failure> {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() {
        // Ends the progress line.
        say("");
    }
    if json {
        return answer(&(serde_json::to_string_pretty(report).map_err(std::io::Error::from)? + "\n"));
    }
    answer(&report.to_string())
}

fn judge(directory: &std::path::Path, json: bool) -> Result<ExitCode, Failure> {
    let cannot = |error| Failure::Usage(format!("{} cannot be judged: {error}", directory.display()));
    let verdict = check::check(directory).map_err(cannot)?;
    let mut text = serde_json::to_string_pretty(&verdict).map_err(std::io::Error::from)? + "\n";
    if !json {
        text = serde_json::to_string_pretty(&verdict.figures).map_err(std::io::Error::from)? + "\n";
        for violation in &verdict.violations {
            text += &format!("{:?}: {}\n", violation.invariant, violation.seen);
        }
        text += &format!("{} violations\n", verdict.violations.len());
    }
    answer(&text)?;
    Ok(if verdict.violations.is_empty() { Exit::Success } else { Exit::Violated }.into())
}

fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(since.subsec_nanos())
}
