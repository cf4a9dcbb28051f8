//! `leasehold renew` and `leasehold release`: they take the lease from a file or a variable, because its id is secret
//! and must not be an argument.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::backend::{Released, Renewed};
use leasehold::engine::limits::DEFAULT_TTL;
use leasehold::{Fence, Gone, Lease, LeaseId, Locks, Mode};

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer};
use crate::store::Store;
use crate::url::StoreArgs;
use crate::{duration, store, view};

/// The variables that `acquire --export` sets.
const LEASE_ID: &str = "LEASEHOLD_LEASE_ID";
const NAME: &str = "LEASEHOLD_NAME";
const FENCE: &str = "LEASEHOLD_FENCE";

/// Options that say which lease.
#[derive(Debug, clap::Args)]
struct LeaseArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// File with the lease as `acquire` printed it, or with a lease id; - for standard input [default: the lease in
    /// $LEASEHOLD_LEASE_ID, $LEASEHOLD_NAME and $LEASEHOLD_FENCE; the first is enough, but then a server's token needs
    /// the permission `read`]
    #[arg(long, value_name = "FILE")]
    lease: Option<PathBuf>,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
}

/// Renew a lease that `acquire` has taken.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 renewed, 79 the lease is gone.\n\nExample:\n  leasehold renew --ttl 5m"
)]
pub(crate) struct Renew {
    #[command(flatten)]
    lease: LeaseArgs,
    /// The ttl from now on [default: that of the lease if known, else 30s]
    #[arg(long, env = "LEASEHOLD_TTL", value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
}

/// Release a lease that `acquire` has taken.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 released, 79 the lease was gone already.\n\nExample:\n  leasehold release --lease lease.json"
)]
pub(crate) struct Release {
    #[command(flatten)]
    lease: LeaseArgs,
}

/// What is known of a lease.
enum Known {
    Lease(Box<Lease>),
    /// The lease as exported variables name it. They may be left over from another lock.
    Exported(Box<Lease>),
    Id(LeaseId),
}

/// The lease that the variables name besides its id, if they do. Neither its mode nor its owner is used.
fn exported(id: LeaseId, locks: &Locks) -> Option<Lease> {
    let name = locks.name(std::env::var(NAME).ok()?).ok()?;
    let fence = Fence::new(std::env::var(FENCE).ok()?.parse().ok()?);
    Some(Lease::new(name, id, Mode::Exclusive, fence, "", DEFAULT_TTL))
}

impl LeaseArgs {
    /// Reads the lease, and opens its store.
    async fn open(&self) -> Result<(Known, Store), Failure> {
        let known = self.known()?;
        let opened = store::open_ttl(&self.store, None, store::ENDS_AT_ONCE).await?;
        Ok(match known {
            Known::Id(id) if self.lease.is_none() => {
                let known =
                    exported(id, &opened.locks).map_or(Known::Id(id), |it| Known::Exported(Box::new(it)));
                (known, opened)
            }
            known => (known, opened),
        })
    }

    fn known(&self) -> Result<Known, Failure> {
        let text = match &self.lease {
            Some(path) => {
                let mut text = String::new();
                let read = if path.as_os_str() == "-" {
                    std::io::stdin().read_to_string(&mut text).map(drop)
                } else {
                    std::fs::read_to_string(path).map(|read| text = read)
                };
                read.map_err(|error| {
                    Failure::Usage(format!("cannot read the lease from {path:?}: {error}"))
                })?;
                text
            }
            None => std::env::var(LEASE_ID).map_err(|_| {
                Failure::Usage(format!(
                    "which lease? Give the output of `leasehold acquire` with --lease FILE, or set {LEASE_ID}"
                ))
            })?,
        };
        let text = text.trim();
        if text.starts_with('{') {
            let lease = serde_json::from_str(text);
            return lease.map(Known::Lease).map_err(|error| Failure::Usage(format!("not a lease: {error}")));
        }
        LeaseId::parse(text).map(Known::Id).map_err(|_| {
            Failure::Usage(
                "not a lease: expected the output of `leasehold acquire`, or a lease id of 22 characters"
                    .into(),
            )
        })
    }
}

pub(crate) async fn renew(args: Renew) -> Result<ExitCode, Failure> {
    let (known, opened) = args.lease.open().await?;
    let locks = &opened.locks;
    let renewed = match known {
        Known::Lease(mut lease) => {
            lease.ttl = args.ttl.unwrap_or(lease.ttl);
            locks.renew(&lease).await?
        }
        Known::Exported(mut lease) => {
            lease.ttl = args.ttl.unwrap_or(lease.ttl);
            match locks.renew(&lease).await? {
                Renewed::Gone(Gone::NotFound) if locks.info().find_by_id => {
                    locks.renew_by_id(lease.id, lease.ttl).await?
                }
                renewed => renewed,
            }
        }
        Known::Id(id) => locks.renew_by_id(id, args.ttl.unwrap_or(DEFAULT_TTL)).await?,
    };
    match renewed {
        Renewed::Held(grant) => {
            let left = grant.left.unwrap_or_default();
            answer(&match args.lease.output {
                Output::Table => format!("renewed, {} left\n", duration::show(left)),
                Output::Json => view::json(&serde_json::json!({
                    "renewed": true, "fence": grant.fence, "expires_in_ms": left.as_millis() as u64,
                }))?,
            })?;
            Ok(Exit::Success.into())
        }
        Renewed::Gone(gone) => refused(args.lease.output, "renewed", gone),
        _ => Err(Failure::Ended(Exit::Internal, "the store gave an unknown answer".into())),
    }
}

pub(crate) async fn release(args: Release) -> Result<ExitCode, Failure> {
    let (known, opened) = args.lease.open().await?;
    let locks = &opened.locks;
    let released = match known {
        Known::Lease(lease) => locks.release(&lease).await?,
        Known::Exported(lease) => match locks.release(&lease).await? {
            Released::Gone(Gone::NotFound) if locks.info().find_by_id => {
                locks.release_by_id(lease.id).await?
            }
            released => released,
        },
        Known::Id(id) => locks.release_by_id(id).await?,
    };
    match released {
        Released::Done => {
            answer(&match args.lease.output {
                Output::Table => "released\n".to_owned(),
                Output::Json => view::json(&serde_json::json!({ "released": true }))?,
            })?;
            Ok(Exit::Success.into())
        }
        Released::Gone(gone) => refused(args.lease.output, "released", gone),
        _ => Err(Failure::Ended(Exit::Internal, "the store gave an unknown answer".into())),
    }
}

fn refused(output: Output, verb: &str, gone: Gone) -> Result<ExitCode, Failure> {
    if let Output::Json = output {
        answer(&view::json(&serde_json::json!({ verb: false, "reason": gone.as_str() }))?)?;
    }
    let why = match gone {
        Gone::Expired => "its ttl has passed",
        Gone::Revoked => "it was revoked",
        Gone::Superseded => "another has taken its place",
        _ => "the store has no such lease: it was released, or has expired",
    };
    Err(Failure::Ended(Exit::Lost, format!("not {verb}: {why}")))
}
