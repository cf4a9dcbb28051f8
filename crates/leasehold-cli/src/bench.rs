//! `leasehold bench`: many clients on a few locks. Some renew for longer than a ttl, some stall past it, and a fenced
//! resource checks every write.

mod client;
mod resource;
mod summary;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Error, Guard, Locks};

use crate::access::AccessArgs;
use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer, say};
use crate::url::{self, StoreArgs, Url};
use crate::{duration, store};

use client::{Client, Dice};
use resource::Resource;
use summary::{ClientFigures, Summary};

/// How many runs may load a store at the same time. Each takes the first unused set of names, so that successive runs
/// use the same names and leave no more behind.
const RUNS: usize = 64;

/// How long a set of names stays taken after its run was killed: about as long as the places it left in queues.
const RUN_TTL: Duration = Duration::from_secs(15);

/// Put load on a server or a store, and check that it keeps its promises.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold bench --duration 5
  leasehold bench --url http://127.0.0.1:7420 --clients 64 --locks 8
  leasehold bench --ttl 1 --hold 0.5    Every holder renews while the others wait

Before it starts, bench prints which store it loads. Its locks are named bench/0/…, or with the
next number while another run uses those.

Exit status: 70 if a promise was broken: two holders at once, a fence that did not rise, a lease
that was gone before its ttl had passed, or a release that ended an expired lease. A lease lost
because everything took too long is counted, but breaks no promise.")]
pub(crate) struct Bench {
    #[command(flatten)]
    access: AccessArgs,
    /// The server or store to test [default: $LEASEHOLD_URL, then the file in $LEASEHOLD_URL_FILE, then memory:]
    #[arg(long, value_name = "URL", conflicts_with = "url_file", help_heading = "Store")]
    url: Option<String>,
    /// File that contains the URL, to keep a password out of `ps`
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    url_file: Option<PathBuf>,
    /// Number of clients
    #[arg(long, default_value_t = 16, value_name = "N")]
    clients: usize,
    /// Number of locks they share
    #[arg(long, default_value_t = 4, value_name = "N")]
    locks: usize,
    /// How long to run
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "TIME")]
    duration: Duration,
    /// The ttl of the leases
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "TIME")]
    ttl: Duration,
    /// How long each client holds a lock; it renews after each third of the ttl
    #[arg(long, default_value = "10ms", value_parser = duration::parse, value_name = "TIME")]
    hold: Duration,
    /// Vary --hold by up to this fraction
    #[arg(long, default_value_t = 0.2, value_name = "PART")]
    jitter: f64,
    /// Fraction of holders that stall past their ttl and write afterwards
    #[arg(long, default_value_t = 0.02, value_name = "PART")]
    failure_rate: f64,
    /// Fraction of holders that hold for one and a half ttls, and renew
    #[arg(long, default_value_t = 0.01, value_name = "PART")]
    long_rate: f64,
    /// How to print the results
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
}

/// Runs the load; fails if a promise was broken.
pub(crate) fn run(args: Bench) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::system("cannot start the async runtime", error))?;
    let summary = runtime.block_on(load(&args))?;
    let text = match args.output {
        Output::Table => summary.to_string(),
        Output::Json => serde_json::to_string_pretty(&summary).map_err(std::io::Error::from)? + "\n",
    };
    answer(&text)?;
    Ok(if summary.violations == 0 { Exit::Success } else { Exit::Internal })
}

async fn load(args: &Bench) -> Result<Summary, Failure> {
    if args.clients == 0 || args.locks == 0 {
        return Err(Error::invalid("`--clients` and `--locks` must be at least 1").into());
    }
    if args.duration.is_zero() {
        return Err(Error::invalid("--duration must be above zero").into());
    }
    let url = named(args)?;
    let access = args.access.resolve(&url)?;
    announce(args, &url);
    let failed = |error| Failure::Store(url.shown(), error);
    let locks = store::client(&url, &access).await.map_err(failed)?.build();
    let run = Run::begin(&locks, args.ttl).await?;
    let resources: Arc<Vec<Resource>> = Arc::new((0..args.locks).map(|_| Resource::default()).collect());
    let names: Arc<Vec<String>> =
        Arc::new((0..args.locks).map(|n| format!("bench/{}/{n}", run.number)).collect());
    // If the store refuses the ttl, that is a usage error, not an error to count.
    if let Some(lease) = locks.leasing(&names[0]).ttl(args.ttl).try_acquire().await? {
        locks.release(&lease).await?;
    }
    let ended = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..args.clients {
        let client = Client {
            locks: locks.with_options(|options| options.owner = format!("bench-{number}").into()),
            resources: Arc::clone(&resources),
            names: Arc::clone(&names),
            dice: Dice::new(number),
            ttl: args.ttl,
            hold: args.hold,
            jitter: args.jitter,
            failure_rate: args.failure_rate,
            long_rate: args.long_rate,
        };
        clients.spawn(client.run(Arc::clone(&ended)));
    }
    let progress = std::io::stderr().is_terminal();
    while began.elapsed() < args.duration {
        tokio::time::sleep(Duration::from_millis(500).min(args.duration.saturating_sub(began.elapsed())))
            .await;
        if progress {
            let writes: u64 = resources.iter().map(Resource::accepted).sum();
            let _ = write!(std::io::stderr(), "\r{:5.1} s, {writes} writes", began.elapsed().as_secs_f64());
        }
    }
    ended.store(true, Ordering::SeqCst);
    if progress {
        let _ = writeln!(std::io::stderr());
    }
    let mut seen = ClientFigures::default();
    while let Some(client) = clients.join_next().await {
        let client = client.map_err(|error| {
            Error::new(leasehold::ErrorKind::Internal, "a client of the load panicked").with_source(error)
        })?;
        seen.add(client);
    }
    let took = began.elapsed();
    run.end().await;
    locks.close().await;
    Ok(Summary::new(url.shown(), seen, &resources, args.clients, took))
}

/// The store to load; a store in memory if none is named.
fn named(args: &Bench) -> Result<Url, Failure> {
    let store = StoreArgs { url: args.url.clone(), url_file: args.url_file.clone(), ..StoreArgs::default() };
    if let Some(url) = store.named()? {
        return Ok(url);
    }
    let mut memory = Url::new("memory:", None)?;
    memory.is_default = true;
    Ok(memory)
}

/// Prints which store is about to be loaded and, unless the command line named it, where its URL came from: it may be
/// the production store.
fn announce(args: &Bench, url: &Url) {
    let variable = [url::URL, url::URL_FILE].into_iter().find(|name| std::env::var_os(name).is_some());
    let why = match variable {
        _ if args.url.is_some() || args.url_file.is_some() => String::new(),
        Some(variable) => format!(" ({variable} names it)"),
        None => " (none is named)".into(),
    };
    let (store, time) = (url.shown(), duration::show(args.duration));
    let (clients, locks) = (args.clients, args.locks);
    say(&format!("leasehold: bench loads {store}{why}: clients {clients}, locks {locks}, for {time}"));
}

/// A set of names that no other run uses while this value lives.
struct Run {
    number: usize,
    guard: Guard,
}

impl Run {
    async fn begin(locks: &Locks, ttl: Duration) -> Result<Self, Failure> {
        let ttl = ttl.max(RUN_TTL).min(locks.info().max_ttl);
        for number in 0..RUNS {
            let taken = locks.mutex(format!("bench/{number}")).ttl(ttl).try_lock().await?;
            if let Some(guard) = taken {
                return Ok(Run { number, guard });
            }
        }
        let line =
            format!("{RUNS} other bench runs already use this store; wait until one of them has ended");
        Err(Failure::Ended(Exit::Busy, line))
    }

    /// Frees the names for the next run. If the store does not answer, they are free after the ttl.
    async fn end(self) {
        let _ = self.guard.release().await;
    }
}
