//! `leasehold torture --hours`: runs rounds repeatedly, beside long-lived processes whose figures must stay constant.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_torture::hours::Hours;
use leasehold_torture::report::Outcome;
use leasehold_torture::store::Store;
use tokio::signal::unix::{SignalKind, signal};

use crate::report::Failure;

use super::Torture;

/// The time limit if only the number of acquires is given.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long the rounds go on.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct Long {
    /// Run rounds for this many hours, and check that nothing grows
    #[arg(long, value_name = "N", value_parser = positive)]
    hours: Option<f64>,
    /// The same, for this many minutes
    #[arg(long, value_name = "N", value_parser = positive)]
    minutes: Option<f64>,
    /// The same, until the long-lived processes were granted this many locks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    acquires: Option<u64>,
}

/// A number of hours or minutes.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number <= 10_000.0 {
        Ok(number)
    } else {
        Err("must be above 0 and at most 10000".into())
    }
}

impl Long {
    pub(super) fn is_wanted(&self) -> bool {
        self.hours.is_some() || self.minutes.is_some() || self.acquires.is_some()
    }

    fn time(&self) -> Duration {
        let hours = self.hours.or(self.minutes.map(|minutes| minutes / 60.0));
        hours.map_or(LONGEST, |hours| Duration::from_secs_f64(hours * 3600.0))
    }
}

/// Runs rounds until the time is over, or until SIGINT or SIGTERM.
pub(super) fn run(args: &Torture, stores: Vec<Store>, seed: u64) -> Result<ExitCode, Failure> {
    let super::Workers::Processes(workers) = args.workers else {
        return Err(Failure::Usage("--hours takes a number of --workers: they are in Rust".into()));
    };
    let workers = usize::from(workers);
    let out = args.out.clone();
    let out = out.unwrap_or_else(|| std::env::temp_dir().join(format!("leasehold-torture-hours-{seed}")));
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signal(Arc::clone(&stop))?;
    let hours = Hours {
        stores,
        url: args.url.clone(),
        profiles: args.profile.clone(),
        time: args.long.time(),
        acquires: args.long.acquires,
        round: Duration::from_secs(args.secs.unwrap_or(20)),
        seed,
        workers,
        out: out.clone(),
        progress: true,
        stop,
    };
    let report = hours.run().map_err(super::cannot_go_on)?;
    if args.out.is_none() && report.outcome == Outcome::Passed {
        let _ = std::fs::remove_dir_all(&out);
    }
    super::tell(&report, args.json)?;
    Ok(super::exit(report.outcome).into())
}

/// The first signal ends the run in order; the second ends it at once, with all its processes.
fn stop_on_signal(stop: Arc<AtomicBool>) -> Result<(), Failure> {
    let cannot = |error| Failure::system("signals cannot be handled", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    drop(entered);
    let wait = move || {
        runtime.block_on(async {
            for first in [true, false] {
                let number = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
                    _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                };
                if first {
                    stop.store(true, Ordering::Relaxed);
                } else {
                    std::process::exit(128 + number);
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(cannot)?;
    Ok(())
}
