//! `leasehold revoke`: taking a lock away.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer};
use crate::url::StoreArgs;
use crate::{lock, store, table, view};

/// Take a lock away from whoever holds it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Renewals are refused from here on, so that the lock passes on when its ttl has
passed; the holder learns of it at its next renewal, and `leasehold run` then
asks its command to end. With --now it is free at once, while the old holder may
still be at work: only its fence tells what it protects to refuse it.

Exit status: 0 revoked, or nobody held it; 64 not confirmed, or the store cannot.

Examples:
  leasehold revoke nightly-report
  leasehold revoke nightly-report --now --yes")]
pub(crate) struct Revoke {
    #[command(flatten)]
    store: StoreArgs,
    /// Free it at once, without waiting for the ttl.
    #[arg(long)]
    now: bool,
    /// Do not ask.
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
    if !args.yes {
        let owner = lock::holder(&opened.locks, &args.name).await?;
        ask(&args, owner.as_deref())?;
    }
    let revoked = opened.locks.revoke(&args.name, args.now).await?;
    answer(&match args.output {
        Output::Json => view::json(&serde_json::json!({ "name": args.name, "leases": revoked.leases }))?,
        Output::Table => match (revoked.leases, args.now) {
            (0, _) => "nobody held it\n".to_owned(),
            (count, true) => format!("{count} revoked; it is free\n"),
            (count, false) => format!("{count} revoked; it is free when the ttl has passed\n"),
        },
    })?;
    Ok(Exit::Success.into())
}

fn ask(args: &Revoke, owner: Option<&str>) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::Usage("there is nobody to ask: say --yes to revoke without a question".into()));
    }
    let held =
        owner.map_or_else(|| "held by nobody".to_owned(), |owner| format!("held by {}", table::plain(owner)));
    let _ = write!(std::io::stderr(), "Revoke {:?}, {held}? [y/N] ", args.name);
    let mut line = String::new();
    stdin.lock().read_line(&mut line)?;
    if matches!(line.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Usage("not revoked".into())) }
}
