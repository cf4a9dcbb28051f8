//! `leasehold bench`: many clients on a few locks, some of which stall past their ttl, and a fenced resource that
//! checks every write.

mod resource;
mod summary;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::backend::Renewed;
use leasehold::{Error, Lease, Locks};

use crate::access::AccessArgs;
use crate::args::Output;
use crate::exit::Exit;
use crate::report::Failure;
use crate::url::Url;
use crate::{duration, store};

use resource::Resource;
use summary::{Seen, Summary};

/// Load a server or a store, and check what it promises.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold bench --duration 5
  leasehold bench --url http://127.0.0.1:7420 --clients 64 --locks 8")]
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
    /// How long each holds its lock
    #[arg(long, default_value = "10ms", value_parser = duration::parse, value_name = "TIME")]
    hold: Duration,
    /// How much longer or shorter, as a part of it
    #[arg(long, default_value_t = 0.2, value_name = "PART")]
    jitter: f64,
    /// The part of the holders that stall past their ttl and write afterwards
    #[arg(long, default_value_t = 0.02, value_name = "PART")]
    failure_rate: f64,
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
            dice: Dice(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1)),
            ttl: args.ttl,
            hold: args.hold,
            jitter: args.jitter,
            failure_rate: args.failure_rate,
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

/// A generator that needs no state of the system.
struct Dice(u64);

impl Dice {
    /// Between 0 and 1.
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Client {
    locks: Locks,
    resources: Arc<Vec<Resource>>,
    names: Arc<Vec<String>>,
    dice: Dice,
    ttl: Duration,
    hold: Duration,
    jitter: f64,
    failure_rate: f64,
}

impl Client {
    async fn run(mut self, ended: Arc<AtomicBool>) -> Seen {
        let mut seen = Seen::default();
        while !ended.load(Ordering::SeqCst) {
            let which = ((self.dice.roll() * self.names.len() as f64) as usize).min(self.names.len() - 1);
            let began = Instant::now();
            let floor = self.resources[which].floor();
            let leasing = self.locks.leasing(&self.names[which]).ttl(self.ttl);
            match leasing.try_acquire_for(Duration::from_secs(1)).await {
                Ok(Some(lease)) => {
                    seen.acquires.push(began.elapsed());
                    // Plain leases do not say when they were measured; renewed at once, this one does.
                    let sent = Instant::now();
                    if let Ok(Renewed::Held(_)) = self.locks.renew(&lease).await {
                        let gap =
                            self.resources[which].granted(lease.fence, floor, sent + believed(self.ttl));
                        seen.handovers.extend(gap);
                        self.hold(&lease, which, &mut seen).await;
                    }
                }
                Ok(None) => seen.timeouts += 1,
                Err(error) => {
                    seen.failed(&error);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        seen
    }

    /// Writes at the beginning and at the end, as a holder does; one that stalls writes too late.
    async fn hold(&mut self, lease: &Lease, which: usize, seen: &mut Seen) {
        let resource = &self.resources[which];
        resource.write(lease.fence);
        if self.dice.roll() < self.failure_rate {
            tokio::time::sleep(self.ttl + self.ttl / 4).await;
            seen.stalls += 1;
            seen.stale_rejected += u64::from(!resource.write(lease.fence));
            // A stale release must not touch the next holder.
            let _ = self.locks.release(lease).await;
            return;
        }
        let spread = 1.0 + self.jitter * (2.0 * self.dice.roll() - 1.0);
        let end = Instant::now() + self.hold.mul_f64(spread.max(0.0));
        loop {
            let left = end.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.min(self.ttl / 3)).await;
            if left <= self.ttl / 3 {
                break;
            }
            let sent = Instant::now();
            match self.locks.renew(lease).await {
                Ok(Renewed::Held(_)) => resource.renewed(lease.fence, sent + believed(self.ttl)),
                Ok(_) => {
                    seen.lost += 1;
                    return;
                }
                Err(error) => seen.failed(&error),
            }
        }
        resource.write(lease.fence);
        resource.leave(lease.fence);
        if let Err(error) = self.locks.release(lease).await {
            seen.failed(&error);
        }
    }
}

/// How long the library's guards would believe: 1 % and 2 ms less.
fn believed(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
}
