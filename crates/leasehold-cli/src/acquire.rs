//! `leasehold acquire`: prints a lease as plain data. Only `leasehold renew` renews it.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::engine::limits::DEFAULT_TTL;
use leasehold::{Lease, Locks};

use crate::args::Output;
use crate::exit::Exit;
use crate::lock::{self, ModeArgs};
use crate::report::{Failure, deliver, whole};
use crate::run::signals::{Blocked, Signals};
use crate::url::StoreArgs;
use crate::{duration, interrupt, store, table, view};

const EXAMPLES: &str = "\
Examples:
  eval \"$(leasehold acquire deploy --ttl 5m --export)\"  Take it
  leasehold renew                                       … while the work goes on
  leasehold release                                     … and give it back
  leasehold acquire deploy -n > lease.json              The same with a file
  leasehold release --lease lease.json

Only `leasehold renew` renews the lease: after its ttl another client can take the
lock. `leasehold run` does all of this by itself. Needs a store with a ttl.

Exit status: 0 taken, 75 held or the wait timed out, 64 the store has no ttl.";

/// Take a lock and print its lease, for scripts.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Acquire {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Do not wait: if the lock is held, exit 75.
    #[arg(short, long = "nonblock", conflicts_with = "wait")]
    no_wait: bool,
    /// Wait at most this many seconds; fractions and units (500ms, 10m) are allowed.
    #[arg(short, long, value_name = "SECS", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// How long the lease lasts unless renewed [default: 30s]
    #[arg(long, env = "LEASEHOLD_TTL", value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Label that others see as the holder [default: host:pid of the caller]
    #[arg(long)]
    owner: Option<String>,
    /// Text to store and show with the lease.
    #[arg(long, value_name = "TEXT")]
    metadata: Option<String>,
    /// Print shell variables for `eval`.
    #[arg(long, conflicts_with = "output")]
    export: bool,
    /// How to print the lease.
    #[arg(long, value_enum, default_value = "json", value_name = "FORM")]
    output: Output,
    /// The name of the lock.
    name: String,
}

pub(crate) fn run(args: Acquire) -> Result<ExitCode, Failure> {
    // Before any other thread starts. Signals stay blocked while the lease is printed, so that it is either printed or
    // given back.
    let blocked = Blocked::new()?;
    crate::runtime()?.block_on(async { acquire(args, blocked.read()?).await })
}

async fn acquire(args: Acquire, signals: Signals) -> Result<ExitCode, Failure> {
    let opened = tokio::select! {
        biased;
        arrived = interrupt::leaving(&signals) => return Ok(interrupt::end(arrived)),
        opened = store::open_ttl(&args.store, args.wait, store::ENDS_AT_ONCE) => opened?,
    };
    let lease = tokio::select! {
        biased;
        arrived = interrupt::leaving(&signals) => {
            // After this the dropped attempt has left the queue, or given back its lease.
            interrupt::part(&opened.locks).await;
            return Ok(interrupt::end(arrived));
        }
        lease = lease(&args, &opened.locks) => lease,
    };
    let lease = match lease {
        Ok(lease) => lease,
        Err(error) => {
            // An attempt without an answer may have got it.
            interrupt::part(&opened.locks).await;
            return Err(error.into());
        }
    };
    let Some(lease) = lease else {
        let holder = lock::keeper(&opened.locks, &args.name).await;
        interrupt::part(&opened.locks).await;
        return Err(lock::held(&opened, &args.name, "", holder.as_deref()));
    };
    let printed = if args.export { export(&lease) } else { print(&lease, args.output)? };
    if let Err(failure) = deliver(&printed) {
        return Err(give_back(&opened.locks, &lease, failure).await);
    }
    Ok(Exit::Success.into())
}

/// Gives back a lease that was never printed: nobody else could release it. Returns the failure to report.
async fn give_back(locks: &Locks, lease: &Lease, failure: Failure) -> Failure {
    let released = locks.release(lease).await;
    if !failure.is_unread() {
        return failure;
    }
    let fate = match released {
        Ok(_) => "so it was given back".to_owned(),
        Err(error) => {
            format!("and it could not be given back, so it lasts until its ttl ends: {}", whole(&error))
        }
    };
    Failure::Ended(Exit::Output, format!("nobody read the lease, {fate}"))
}

async fn lease(args: &Acquire, locks: &Locks) -> Result<Option<Lease>, leasehold::Error> {
    let ttl = args.ttl.unwrap_or(DEFAULT_TTL);
    let mut leasing = locks.leasing(&args.name).mode(args.mode.mode()).ttl(ttl);
    leasing = leasing.owner(args.owner.clone().unwrap_or_else(|| owner(locks.options().owner.as_ref())));
    if let Some(metadata) = &args.metadata {
        leasing = leasing.metadata(metadata.clone());
    }
    match if args.no_wait { Some(Duration::ZERO) } else { args.wait } {
        Some(wait) => leasing.try_acquire_for(wait).await,
        None => leasing.acquire().await.map(Some),
    }
}

/// This process ends at once, so the owner names its caller.
fn owner(own: &str) -> String {
    let host = own.rsplit_once(':').map_or(own, |(host, _)| host);
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    format!("{host}:{parent}")
}

fn print(lease: &Lease, output: Output) -> Result<String, Failure> {
    Ok(match output {
        Output::Json => view::json(lease)?,
        Output::Table => format!(
            "{}  fence {}  ttl {}  lease id {}\n",
            table::plain(lease.name.as_str()),
            lease.fence,
            duration::show(lease.ttl),
            lease.id.expose()
        ),
    })
}

fn export(lease: &Lease) -> String {
    let variables = [
        ("LEASEHOLD_NAME", lease.name.as_str().to_owned()),
        ("LEASEHOLD_FENCE", lease.fence.to_string()),
        ("LEASEHOLD_LEASE_ID", lease.id.expose().to_owned()),
        ("LEASEHOLD_TTL", format!("{}ms", lease.ttl.as_millis())),
    ];
    variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

/// Quotes any text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_name_is_one_word_for_the_shell() {
        for text in ["plain", "it's $(touch /tmp/x) `y` \"z\"\n", "''"] {
            let out = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(text))])
                .output();
            assert_eq!(String::from_utf8(out.unwrap().stdout).unwrap(), text);
        }
    }
}
