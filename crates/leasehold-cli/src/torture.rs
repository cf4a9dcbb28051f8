//! `leasehold torture`: provokes the worst moments of a store, and judges what happened.

mod hours;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use leasehold_torture::check;
use leasehold_torture::report::Outcome;
use leasehold_torture::roles;
use leasehold_torture::store::{Front, Profile, Store};
use leasehold_torture::supervise::{NAMES, Order};

use crate::exit::Exit;
use crate::report::{Failure, answer, say};

const EXAMPLES: &str = "\
Examples:
  leasehold torture                                     A throw-away SQLite file, calm
  leasehold torture --store redis --profile pause       A throw-away Redis; workers stand still
  leasehold torture --url redis://host --profile kill   Your own Redis, with faults of workers
  leasehold torture --store postgres --profile all --seed 7 --out DIR
  leasehold torture --store redis --front two-servers   Two lock servers before one Redis
  leasehold torture --store redis-sentinel --profile failover --wait-replicas 1
  leasehold torture check DIR                           Judge a run once more
  leasehold torture --hours 8 --store redis,postgres --profile calm,kill,cancel
                                                        Again and again; nothing may grow

Stores: memory, sqlite, file, redis, redis-sentinel, redis-cluster, quorum, quorum-mixed,
  postgres, postgres+advisory, http
Fronts: none, server, two-servers, pgbouncer, tls
Profiles: calm, kill, pause, net, restart, clock, cancel, leak, resources, crowd,
  logs, many, failover, all";

/// Provoke the worst moments of a store, and judge what happened.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Torture {
    #[command(subcommand)]
    command: Option<TortureCommand>,
    /// Which store; with --hours several [default: that of --url, else sqlite]
    #[arg(long, value_name = "STORE", value_delimiter = ',')]
    store: Vec<Store>,
    /// What is before it
    #[arg(long, default_value = "none", value_name = "FRONT")]
    front: Front,
    /// A store of your own, instead of a throw-away one
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Which faults; with --hours several, in turn
    #[arg(long, default_value = "calm", value_name = "PROFILE", value_delimiter = ',')]
    profile: Vec<Profile>,
    #[command(flatten)]
    long: hours::Long,
    /// For how long, in seconds, with --hours for each round [default: 20; with the profile failover 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    secs: Option<u64>,
    /// The same number gives the same plan [default: at random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many worker processes
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=256))]
    workers: u16,
    /// In the profile many: how many names are at rest, and as many keys of others
    #[arg(long, default_value_t = NAMES, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    names: u32,
    /// How many replicas have to confirm a grant: 0 or 1, for redis-sentinel and redis-cluster
    #[arg(long, default_value_t = 0, value_name = "N")]
    wait_replicas: u32,
    /// Where everything is written; without it, what has passed is removed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
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

/// Runs it, or judges a run once more.
pub(crate) fn run(args: Torture) -> Result<ExitCode, Failure> {
    match args.command {
        Some(TortureCommand::Check { directory, json }) => return judge(&directory, json),
        Some(TortureCommand::Process) => return Ok(roles::play()),
        None => {}
    }
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 ^ clock());
    let named = args.url.as_deref().map(|url| {
        let unknown = || Failure::Usage("this URL names no store that several processes can share".into());
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
        return hours::run(&args, stores, seed);
    }
    let ([store], [profile]) = (&stores[..], &args.profile[..]) else {
        return Err(Failure::Usage("several stores or profiles take --hours".into()));
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
    order.workers = usize::from(args.workers);
    order.names = args.names;
    order.progress = true;
    let report = order.run().map_err(cannot_go_on)?;
    if args.out.is_none() && report.outcome == Outcome::Passed {
        // It can be had again by its seed.
        let _ = std::fs::remove_dir_all(&out);
    }
    tell(&report, args.json)?;
    Ok(exit(report.outcome).into())
}

fn cannot_go_on(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::Usage(error.to_string()),
        _ => Failure::Ended(Exit::CannotRun, format!("the torture cannot go on: {error}")),
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
        // Ends the line of progress.
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
