//! `leasehold bench`: many clients on a few locks, some of which renew for longer than a ttl and some of which stall
//! past it, and a fenced resource that checks every write.

mod client;
mod resource;
mod summary;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::Error;

use crate::access::AccessArgs;
use crate::args::Output;
use crate::exit::Exit;
use crate::report::Failure;
use crate::url::Url;
use crate::{duration, store};

use client::{Client, Dice};
use resource::Resource;
use summary::{Seen, Summary};

/// Load a server or a store, and check what it promises.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold bench --duration 5
  leasehold bench --url http://127.0.0.1:7420 --clients 64 --locks 8
  leasehold bench --ttl 1 --hold 0.5    Every holder renews while the others wait

It ends with 70 if a promise was broken: two at once, a fence that did not rise, a lease that was
gone before its time, or a release that ended a lease after it. A lease that is lost because
everything took too long is counted, and is no such breach.")]
pub(crate) struct Bench {
    #[command(flatten)]
    access: AccessArgs,
    /// The server or the store
    #[arg(
        long,
        env = "LEASEHOLD_URL",
        default_value = "memory:",
        value_name = "URL",
        hide_env_values = true
    )]
    url: String,
    /// How many clients
    #[arg(long, default_value_t = 16, value_name = "N")]
    clients: usize,
    /// How many locks they share
    #[arg(long, default_value_t = 4, value_name = "N")]
    locks: usize,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "TIME")]
    duration: Duration,
    /// The ttl of the leases
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "TIME")]
    ttl: Duration,
    /// How long each holds its lock; it renews after each third of the ttl
    #[arg(long, default_value = "10ms", value_parser = duration::parse, value_name = "TIME")]
    hold: Duration,
    /// How much longer or shorter, as a part of it
    #[arg(long, default_value_t = 0.2, value_name = "PART")]
    jitter: f64,
    /// The part of the holders that stall past their ttl and write afterwards
    #[arg(long, default_value_t = 0.02, value_name = "PART")]
    failure_rate: f64,
    /// The part of the holders that hold for one and a half ttls, and renew
    #[arg(long, default_value_t = 0.01, value_name = "PART")]
    long_rate: f64,
    /// How to print the figures
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
}

/// Runs the load; violations make it fail.
pub(crate) fn run(args: Bench) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let summary = runtime.block_on(load(&args))?;
    let text = match args.output {
        Output::Table => summary.to_string(),
        Output::Json => serde_json::to_string_pretty(&summary).map_err(std::io::Error::from)? + "\n",
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(if summary.violations == 0 { Exit::Success } else { Exit::Internal })
}

async fn load(args: &Bench) -> Result<Summary, Failure> {
    if args.clients == 0 || args.locks == 0 {
        return Err(Error::invalid("there must be at least one client and one lock").into());
    }
    if args.duration.is_zero() {
        return Err(Error::invalid("--duration must be above zero").into());
    }
    let url = Url::new(&args.url, None)?;
    let access = args.access.resolve(&url)?;
    let locks = store::client(&url, &access).await?.build();
    let run = leasehold::LeaseId::random();
    let resources: Arc<Vec<Resource>> = Arc::new((0..args.locks).map(|_| Resource::default()).collect());
    let names: Arc<Vec<String>> =
        Arc::new((0..args.locks).map(|n| format!("bench/{}/{n}", run.expose())).collect());
    // A ttl that the store does not take is a wrong call, and no error of the store's to be counted.
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
    let mut seen = Seen::default();
    while let Some(client) = clients.join_next().await {
        let client = client.map_err(|error| {
            Error::new(leasehold::ErrorKind::Internal, "a client of the load panicked").with_source(error)
        })?;
        seen.add(client);
    }
    let took = began.elapsed();
    locks.close().await;
    Ok(Summary::new(seen, &resources, args.clients, took))
}
