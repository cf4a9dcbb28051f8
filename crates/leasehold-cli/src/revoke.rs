//! `leasehold revoke`: takes a lock away from its holder.

use std::collections::BTreeSet;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use leasehold::backend::{HolderInfo, NameInfo};
use leasehold::{Fence, Locks};

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer};
use crate::url::StoreArgs;
use crate::{store, table, view};

/// Take a lock away from its holder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The store refuses renewals from now on, so the lock is free when its ttl has
passed. The holder notices at its next renewal; `leasehold run` then asks its
command to end. With --now the lock is free at once, while the old holder may
still be working: only a check of its fence keeps out its writes.

Without --yes, the command shows the holders, asks, and revokes only those shown:
of more than a hundred, the oldest hundred.

Exit status: 0 revoked, or nobody held it; 64 not confirmed, or the store cannot
revoke; 75 nothing was revoked, because the holders shown no longer hold it.

Examples:
  leasehold revoke nightly-report
  leasehold revoke nightly-report --now --yes")]
pub(crate) struct Revoke {
    #[command(flatten)]
    store: StoreArgs,
    /// Free the lock at once, without waiting for the ttl.
    #[arg(long)]
    now: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// The name of the lock.
    name: String,
}

pub(crate) async fn run(args: Revoke) -> Result<ExitCode, Failure> {
    let otherwise = "and in no other way; `leasehold show` says which one that is";
    let opened = store::open_ttl(&args.store, None, otherwise).await?;
    let (leases, others) = if args.yes {
        (opened.locks.revoke(&args.name, args.now).await?.leases, 0)
    } else {
        let seen = opened.locks.inspect(&args.name).await?;
        ask(&args, &seen)?;
        let others = seen.holder_count.saturating_sub(seen.holders.len() as u64);
        (revoke_only(&args, &opened.locks, &seen.holders).await?, others)
    };
    answer(&match args.output {
        Output::Json => view::json(&serde_json::json!({ "name": args.name, "leases": leases }))?,
        Output::Table => match (leases, args.now) {
            (0, _) => "nobody held it\n".to_owned(),
            (count, _) if others > 0 => {
                format!("{count} revoked, and {others} others hold it; --yes revokes all\n")
            }
            (count, true) => format!("{count} revoked; it is free\n"),
            (count, false) => format!("{count} revoked; it is free when the ttl has passed\n"),
        },
    })?;
    Ok(Exit::Success.into())
}

/// Revokes the leases shown in the question. A holder that came later keeps the lock.
async fn revoke_only(args: &Revoke, locks: &Locks, seen: &[HolderInfo]) -> Result<u64, Failure> {
    // In a quorum, readers may share a fence.
    let fences: BTreeSet<Fence> = seen.iter().map(|holder| holder.grant.fence).collect();
    let mut leases = 0;
    for fence in fences {
        leases += locks.revoke_only(&args.name, fence, args.now).await?.leases;
    }
    if leases == 0 && !seen.is_empty() {
        let message = format!("the holder of {:?} has changed since: nothing was revoked", args.name);
        return Err(Failure::Ended(Exit::Busy, message));
    }
    Ok(leases)
}

fn ask(args: &Revoke, seen: &NameInfo) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::Usage(
            "cannot ask for confirmation, because standard input is not a terminal; use `--yes`".into(),
        ));
    }
    let held = match seen.holders.as_slice() {
        [] => "held by nobody".to_owned(),
        [one] => format!("held by {}", table::plain(&one.owner)),
        [first, ..] => format!("held by {} and {} more", table::plain(&first.owner), seen.holder_count - 1),
    };
    let shown = seen.holders.len();
    let held =
        if seen.holder_count > shown as u64 { format!("{held}: the oldest {shown} of them") } else { held };
    let _ = write!(std::io::stderr(), "Revoke {:?}, {held}? [y/N] ", args.name);
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    read.map_err(|error| Failure::system("cannot read the confirmation", error))?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Usage("not revoked".into())) }
}
