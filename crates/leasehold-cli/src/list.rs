//! `leasehold list` and `leasehold show`: holders and waiters.

use std::fmt::Write as _;
use std::process::ExitCode;

use leasehold::Locks;
use leasehold::backend::NameInfo;

use crate::args::Output;
use crate::exit::Exit;
use crate::report::{Failure, answer};
use crate::store::Store;
use crate::url::StoreArgs;
use crate::{duration, store, table, view};

/// Names per request.
const PAGE: usize = 200;

/// List the locks that are held or waited for.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold list\n  leasehold list deploy/ --output json | jq '.[].name'")]
pub(crate) struct List {
    #[command(flatten)]
    store: StoreArgs,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// Only names that start with this.
    #[arg(default_value = "")]
    prefix: String,
}

/// Show who has a lock, since when, and its queue of waiters.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  leasehold show nightly-report")]
pub(crate) struct Show {
    #[command(flatten)]
    store: StoreArgs,
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
    /// The name of the lock.
    name: String,
}

/// All names in use that start with this prefix.
pub(crate) async fn all(locks: &Locks, prefix: &str) -> Result<Vec<NameInfo>, leasehold::Error> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = locks.list(prefix, PAGE, cursor).await?;
        found.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

/// Opens a store whose names can be listed by others than their holders.
pub(crate) async fn open(args: &StoreArgs) -> Result<Store, Failure> {
    let opened = store::open(args).await?;
    let scheme = opened.locks.info().scheme;
    if scheme == "postgres+advisory" {
        return Err(Failure::Usage(format!(
            "{scheme}: stores keys instead of names, so it cannot list names; look at one with `leasehold show NAME`"
        )));
    }
    Ok(opened)
}

pub(crate) async fn list(args: List) -> Result<ExitCode, Failure> {
    let opened = open(&args.store).await?;
    let names: Vec<view::Name> =
        all(&opened.locks, &args.prefix).await?.iter().map(view::Name::from).collect();
    answer(&match args.output {
        Output::Json => view::json(&names)?,
        Output::Table if names.is_empty() => {
            let which = Some(&args.prefix).filter(|prefix| !prefix.is_empty());
            let which = which.map(|prefix| format!(" that begins with {prefix:?}")).unwrap_or_default();
            format!("nothing{which} is locked or waited for on {}\n", opened.url.shown())
        }
        Output::Table => rows(&names),
    })?;
    Ok(Exit::Success.into())
}

/// How long a lease lasts, and whether it can be renewed.
fn left(holder: &view::Holder) -> String {
    let left = holder.left().map_or("while it lives".into(), duration::show);
    if holder.revoked { left + ", revoked" } else { left }
}

fn rows(names: &[view::Name]) -> String {
    // The most important columns first: a narrow terminal shows fewer.
    const HEAD: [&str; 7] = ["NAME", "OWNER", "LEFT", "WAITING", "HELD FOR", "MODE", "FENCE"];
    let mut lines = vec![HEAD.map(String::from)];
    for name in names {
        let shown = table::plain(&name.name);
        let waiting = name.queue_length.to_string();
        for (number, holder) in name.holders.iter().enumerate() {
            let first = number == 0;
            lines.push([
                if first { shown.clone() } else { String::new() },
                table::plain(&holder.owner),
                left(holder),
                if first { waiting.clone() } else { String::new() },
                holder.held_for().map_or("-".into(), duration::show),
                holder.mode.to_string(),
                holder.fence.to_string(),
            ]);
        }
        if name.more_holders() > 0 {
            let more = format!("and {} more", name.more_holders());
            lines.push(["", &more, "", "", "", "", ""].map(String::from));
        }
        if name.holders.is_empty() {
            let none = || String::from("-");
            lines.push([shown, none(), none(), waiting, none(), none(), none()]);
        }
    }
    table::table(&lines, table::width(), table::colour())
}

pub(crate) async fn show(args: Show) -> Result<ExitCode, Failure> {
    let opened = store::open(&args.store).await?;
    let name = view::Name::from(&opened.locks.inspect(&args.name).await?);
    answer(&match args.output {
        Output::Json => view::json(&name)?,
        Output::Table => describe(&name, &opened.url.shown()),
    })?;
    Ok(Exit::Success.into())
}

fn describe(name: &view::Name, store: &str) -> String {
    let mut out = format!("{} on {store}: ", table::bold(&table::plain(&name.name), table::colour()));
    out.push_str(if name.held { "held\n" } else { "free\n" });
    // Writing to a String cannot fail.
    for holder in &name.holders {
        let _ = write!(out, "  held by {} ({}), ", table::plain(&holder.owner), holder.mode);
        if let (Some(held_for), Some(at)) = (holder.held_for(), holder.acquired_at_ms) {
            let _ = write!(out, "for {}, since {}, ", duration::show(held_for), view::date_and_time(at));
        }
        if holder.fence != leasehold::Fence::UNFENCED {
            let _ = write!(out, "fence {}, ", holder.fence);
        }
        let _ = match holder.left().map(duration::show) {
            Some(left) if holder.revoked => writeln!(out, "revoked: it ends in {left} at the latest"),
            Some(left) => writeln!(out, "renewed {} times, {left} left unless renewed", holder.renewals),
            None => writeln!(out, "until it is released or its process ends"),
        };
        if let Some(metadata) = &holder.metadata {
            let _ = writeln!(out, "    {}", table::plain(metadata));
        }
    }
    if name.more_holders() > 0 {
        let _ = writeln!(out, "  and {} more: {} hold it", name.more_holders(), name.holder_count);
    }
    for (number, waiter) in name.waiters.iter().enumerate() {
        let waited = duration::show(std::time::Duration::from_millis(waiter.waited_ms as u64));
        let owner = table::plain(&waiter.owner);
        let _ = writeln!(out, "  {}. in the queue: {owner} ({}), for {waited}", number + 1, waiter.mode);
    }
    let more = name.queue_length.saturating_sub(name.waiters.len() as u64);
    if more > 0 {
        let _ = writeln!(out, "  and {more} more");
    }
    if !name.held && name.last_fence != leasehold::Fence::UNFENCED {
        let _ = writeln!(out, "  last fence {}", name.last_fence);
    }
    if let Some(note) = &name.note {
        let _ = writeln!(out, "  note of fence {}: {}", note.fence, table::plain(&note.text));
    }
    out
}
