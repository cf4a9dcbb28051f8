//! `postgres://` — leases in tables of a PostgreSQL database: one function call and one round trip per verb.
//! `docs/postgres.md` describes the tables, the rights that are needed, and what happens when.
//!
//! One file because it is the store itself: the eight verbs, and what they share of calling the server.

// What belongs here: the store with tables; its rules are in `schema/`. Before changing anything here:
// `cargo test -p leasehold --all-features --test postgres_tables`, then `make model`, and `make torture` with
// STORES=postgres.

mod answers;
mod builder;
mod lanes;
mod pool;
mod record;
mod schema;
mod subscribe;
mod text;
mod verbs;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub use self::builder::PostgresBuilder;
pub use self::pool::Lent;

use self::answers::Answer;
use self::lanes::Call;
use self::pool::Pool;
use self::verbs::{Param, Verb};
use super::Address;
use crate::backend::{
    Attempt, Backend, Claim, Info, NameInfo, Page, PageBuilder, Query, Release, Released, Renewal, Renewed,
    Revoked, Swept, Wake,
};
use crate::backends::wakes::{Wakes, ends_wait};
use crate::doctor::Finding;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::state;

const INFO: Info = Info::new("postgres");

/// How many names one part of a sweep looks at: those with something that has ended stay locked until that part ends.
const SWEPT_AT_ONCE: i32 = 500;

/// How many names in use the first part of a listing asks for, and any part at most. Few at first, because a name with
/// many holders can take 400 KB. If a later part is too much for the server, the next call begins small again.
const LISTED_AT_ONCE: (usize, usize) = (16, 256);

/// How many bytes a part of a listing may take for the next part to ask for more names.
const SMALL_PART: usize = 512 * 1024;

/// How many names a part of a listing looks at for each name in use that it asks for, because some may be out of use.
const LOOKED_AT_FOR_EACH: usize = 4;

/// How many names any part of a listing looks at: a statement over that many names ends long before the server would
/// cancel it, even if it has to read each row from disk.
const LOOKED_AT_ONCE: usize = 4000;

/// How long a sweep or a listing walks through names. Then it answers with what it has, and the next one goes on from
/// there. With the part under way this stays within the 5 s that a request has by default.
const WALK_FOR: Duration = Duration::from_secs(3);

/// The most names on a page, whatever the caller asks for.
const PAGE: usize = 1000;

/// The patience with which the function skips a locked row. Of revision 3, it waits this many milliseconds for the row
/// of a single renewal.
const SKIP_LOCKED: i32 = 1;

/// Longer durations, in microseconds, count as this: 285 years, which doubles still hold exactly.
const FOR_EVER: u64 = 1 << 53;

/// A store in the tables of a PostgreSQL database. Clones are the same store.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("postgres://app@db.example/prod?sslmode=verify-full").await?;
/// let guard = locks.mutex("nightly-report").lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<Pool>,
    /// `None` where the server cannot send wake-ups: then the client polls.
    bell: Option<Wakes<Address>>,
    /// Whether the functions know notes: not if an older client made them and this one may not replace them.
    notes: bool,
    schema: String,
    clock: AtomicU64,
    /// Expired leases that verbs found and that no sweep has reported yet.
    expired: AtomicU64,
    pass: Mutex<Pass>,
}

/// How far the sweeps have got on their walk through all names. The next call continues there, so that the last names
/// are reached even if calls are cut short.
#[derive(Debug, Clone)]
struct Pass {
    /// The last name that a sweep looked at; empty before the first.
    after: String,
    /// How many leases and tickets this pass has found so far.
    found: (u64, u64),
    /// How many the last complete pass found.
    complete: Option<(u64, u64)>,
    /// How many names the next call looks at. A call without an answer lowers it.
    most: i32,
}

impl Default for Pass {
    fn default() -> Self {
        Pass { after: String::new(), found: (0, 0), complete: None, most: SWEPT_AT_ONCE }
    }
}

impl Postgres {
    /// Connects to the server of a URL: [`builder`](Postgres::builder) without further settings.
    ///
    /// # Cancel safety
    /// As [`PostgresBuilder::open`].
    ///
    /// # Errors
    /// As [`Postgres::builder`] and [`PostgresBuilder::open`].
    pub async fn connect(url: &str) -> Result<Self> {
        Postgres::builder(url)?.open().await
    }

    /// Returns a builder for a store on the server of a URL. Besides the options of [`Address`] the URL may set
    /// `schema`, `pool_size` and `pooler` (`auto`, `none`, `session`, `transaction`), like the methods of the builder.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid URL. The error contains no part of the URL.
    pub fn builder(url: &str) -> Result<PostgresBuilder> {
        PostgresBuilder::from_url(url)
    }

    /// Returns a builder for a store on the server of an address.
    pub fn at(address: Address) -> PostgresBuilder {
        PostgresBuilder::new(Some(address), None)
    }

    /// Returns a builder for a store that uses only connections that the caller lends, for one round trip each. The
    /// tables must exist, and waiters poll.
    pub fn lent(
        lend: impl Fn() -> BoxFuture<'static, Result<Lent>> + Send + Sync + 'static,
    ) -> PostgresBuilder {
        PostgresBuilder::new(None, Some(Arc::new(lend)))
    }

    /// The SQL that makes the tables and functions in this schema, for an administrator to run in one transaction.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that no schema can have.
    pub fn script(schema: &str) -> Result<String> {
        schema::check_name(schema)?;
        Ok(schema::script(schema))
    }

    /// What such a store can do, unless a pooler is in the way.
    pub(crate) fn abilities() -> Info {
        INFO
    }

    /// The server's clock in the last answer, in microseconds since 1970: the time that decided that answer.
    pub fn clock(&self) -> u64 {
        self.inner.clock.load(Ordering::Relaxed)
    }

    /// Examines how the server is set up.
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let settings = self.inner.pool.settings(&self.inner.schema).await?;
        let mut found =
            settings.findings("the latest grants are forgotten, and a second holder is let in")?;
        found.push(match self.inner.bell {
            Some(_) => {
                Finding::ok("nothing stands between leasehold and the server that shares its sessions")
            }
            None => Finding::note("a pooler that shares sessions stands before the server").because(
                "none to safety, but waiters are not woken and have to poll",
                "give leasehold a way past it",
            ),
        });
        found.push(Finding::ok("locks suit migrations: waiters have no transaction open"));
        Ok(found)
    }

    async fn call(&self, verb: Verb, call: Call<'_>, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.inner.pool.call(verb, call, params).await
    }

    /// Calls a verb that answers with one row.
    async fn call_one(&self, verb: Verb, call: Call<'_>, params: &[Param<'_>]) -> Result<Row> {
        self.call(verb, call, params).await?.into_iter().next().ok_or_else(too_few)
    }

    fn read_clock(&self, row: &impl Answer, column: usize) -> Result<()> {
        self.inner.clock.store(answers::time(row, column)?, Ordering::Relaxed);
        Ok(())
    }

    /// Remembers how many expired leases a verb found, for the next sweep to report.
    fn count_expired(&self, row: &impl Answer, column: usize) -> Result<()> {
        self.inner.expired.fetch_add(answers::expired(row, column)?, Ordering::Relaxed);
        Ok(())
    }

    async fn attempt(&self, claim: &Claim, number: Option<i64>) -> Result<Attempt> {
        let (name, owner) = (text::write(claim.name.stored()), text::write(&claim.owner));
        let metadata = claim.metadata.as_deref().map(text::write);
        let (mode, permits) = answers::words(claim.mode);
        let (ttl, queue) = (micros(claim.ttl), claim.queue.map(micros));
        let channel = self.inner.bell.as_ref().filter(|_| number.is_some()).map(|bell| bell.channel());
        let params: [Param<'_>; 13] = [
            (&name, Type::TEXT),
            (&claim.id.expose(), Type::TEXT),
            (&mode, Type::TEXT),
            (&permits, Type::INT8),
            (&ttl, Type::INT8),
            (&owner, Type::TEXT),
            (&metadata, Type::TEXT),
            (&queue, Type::INT8),
            (&claim.repeat, Type::BOOL),
            (&claim.nonce.cast_signed(), Type::INT8),
            (&claim.first, Type::BOOL),
            (&channel, Type::TEXT),
            (&number, Type::INT8),
        ];
        let row = self.call_one(Verb::Acquire, Call::Attempt(&name), &params).await?;
        let record = answers::get(&row, 0)?;
        self.read_clock(&record, 1)?;
        self.count_expired(&record, 2)?;
        answers::attempt(&record, claim)
    }

    /// Renews leases in one call that skips locked rows; with `patience` they are leases of one name, and the call
    /// waits this long for its row.
    async fn renew_all(
        &self,
        leases: &[Renewal],
        patience: Option<Duration>,
    ) -> Result<Vec<Result<Renewed>>> {
        let names: Vec<_> = leases.iter().map(|lease| text::write(lease.name.stored())).collect();
        let ids: Vec<_> = leases.iter().map(|lease| lease.id.expose()).collect();
        let ttls: Vec<_> = leases.iter().map(|lease| micros(lease.ttl)).collect();
        let fences: Vec<_> = leases.iter().map(|lease| lease.fence.map(fence)).collect();
        let owners: Vec<_> = leases.iter().map(|lease| lease.owner.as_deref().map(text::write)).collect();
        let shorten: Vec<_> = leases.iter().map(|lease| lease.shorten.map(saturated)).collect();
        let modes: Vec<_> =
            leases.iter().map(|lease| lease.mode.map(|mode| answers::words(mode).0)).collect();
        let permits: Vec<_> =
            leases.iter().map(|lease| lease.mode.and_then(|mode| answers::words(mode).1)).collect();
        let raise: Vec<_> = leases.iter().map(|lease| lease.raise_fence.map(fence)).collect();
        let notes: Vec<_> =
            leases.iter().map(|lease| lease.note.as_ref().map(|note| text::write(&note.text))).collect();
        let revisions: Vec<_> =
            leases.iter().map(|lease| lease.note.as_ref().map(|note| saturated(note.revision))).collect();
        let waits = patience.map(|patience| i32::try_from(patience.as_millis()).unwrap_or(i32::MAX));
        let mut params: Vec<Param<'_>> = vec![
            (&names, Type::TEXT_ARRAY),
            (&ids, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&fences, Type::INT8_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&shorten, Type::INT8_ARRAY),
            (&modes, Type::TEXT_ARRAY),
            (&permits, Type::INT8_ARRAY),
            (&raise, Type::INT8_ARRAY),
            (&SKIP_LOCKED, Type::INT4),
        ];
        // Only where there are notes: a batch without one has no use for more parameters.
        let writes = notes.iter().any(Option::is_some);
        if writes {
            params.push((&notes, Type::TEXT_ARRAY));
            params.push((&revisions, Type::INT8_ARRAY));
        }
        let (renew, waiting) = match writes {
            true => (Verb::RenewWithNotes, Verb::RenewWithNotesWaiting),
            false => (Verb::Renew, Verb::RenewWaiting),
        };
        let rows = match (&names[..], &waits) {
            ([name, ..], Some(waits)) => {
                params.push((waits, Type::INT4));
                self.call(waiting, Call::Renewal(name), &params).await?
            }
            _ => self.call(renew, Call::Renewals, &params).await?,
        };
        if rows.len() != leases.len() {
            return Err(too_few());
        }
        self.read_clock(&rows[0], 0)?;
        rows.iter().try_for_each(|row| self.count_expired(row, 8))?;
        Ok(rows.iter().map(answers::renewed).collect())
    }

    /// Repeats the renewals of one name, because another session had locked its row, usually for a moment.
    async fn renew_name(&self, leases: &[Renewal], patience: Duration) -> Vec<Result<Renewed>> {
        let answers = tokio::time::timeout(patience * 3 / 2, self.renew_all(leases, Some(patience))).await;
        answers.unwrap_or_else(|_| Err(answers::locked())).unwrap_or_else(|error| for_each(leases, &error))
    }

    /// Walks through the names of a prefix in parts, until the page is full, there are no more names, or its time is
    /// over.
    async fn look_at_prefix(&self, stored: &str, limit: usize, cursor: Option<&str>) -> Result<Page> {
        let began = Instant::now();
        let limit = limit.min(PAGE);
        let from = text::write(stored);
        let end = text::end_of(&from);
        let mut after = cursor.map(text::write).unwrap_or_default().into_owned();
        let (mut part, most_of_all) = LISTED_AT_ONCE;
        let mut looks_at = part * LOOKED_AT_FOR_EACH;
        let mut page = PageBuilder::new(limit)?;
        loop {
            // One more than fits shows that there is a next page.
            let wanted = part.min(page.room() + 1);
            let (names, looks) = (count(wanted), count(looks_at));
            let params: [Param<'_>; 5] = [
                (&from, Type::TEXT),
                (&end, Type::TEXT),
                (&after, Type::TEXT),
                (&names, Type::INT8),
                (&looks, Type::INT8),
            ];
            let mut rows = self.look(Verb::LookPrefix, Call::Walk, &params).await?;
            let mut reached = answers::reached(&rows)?;
            if reached.is_some() {
                rows.pop();
            }
            let found = answers::seen(&rows)?;
            let is_small = found.iter().map(NameInfo::size).sum::<usize>() < SMALL_PART;
            part = if is_small { (part * 2).min(most_of_all) } else { (part / 2).max(1) };
            looks_at = (looks_at * 2).min(LOOKED_AT_ONCE);
            if found.len() == wanted {
                // The part may have ended before the last name that it looked at.
                reached = found.last().map(|info| text::write(info.name.stored()).into_owned());
                looks_at = part * LOOKED_AT_FOR_EACH;
            }
            for info in found {
                if !page.take(info) {
                    return Ok(page.finish());
                }
            }
            let Some(reached) = reached else { return Ok(page.finish()) };
            if began.elapsed() >= WALK_FOR {
                return Ok(Page { next: Some(text::read(&reached)?.into_owned()), ..page.finish() });
            }
            after = reached;
        }
    }

    async fn look(&self, verb: Verb, call: Call<'_>, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let rows = self.call(verb, call, params).await?;
        if let Some(row) = rows.first() {
            self.read_clock(row, 0)?;
        }
        Ok(rows)
    }

    /// Where functions of an older client know no notes, the answers to a batch in which there is one.
    fn refuse_notes(&self, leases: &[Renewal]) -> Option<Vec<Result<Renewed>>> {
        let refused = self.info().require_notes().err()?;
        leases.iter().any(|lease| lease.note.is_some()).then(|| for_each(leases, &refused))
    }

    async fn send_release(&self, lease: &Release) -> Result<Released> {
        let name = text::write(lease.name.stored());
        let owner = lease.owner.as_deref().map(text::write);
        let (fence, nonce) = (lease.fence.map(fence), lease.nonce.map(u64::cast_signed));
        let note = lease.note.as_ref().map(|note| (text::write(&note.text), saturated(note.revision)));
        let (id, unanswered) = (lease.id.expose(), lease.unanswered.map(micros));
        let mut params: Vec<Param<'_>> = vec![
            (&name, Type::TEXT),
            (&id, Type::TEXT),
            (&fence, Type::INT8),
            (&owner, Type::TEXT),
            (&unanswered, Type::INT8),
            (&nonce, Type::INT8),
        ];
        let mut verb = Verb::Release;
        if let Some((note, revision)) = &note {
            verb = Verb::ReleaseWithNote;
            params.extend([(note as _, Type::TEXT), (revision as _, Type::INT8)]);
        }
        let row = self.call_one(verb, Call::Release(&name), &params).await?;
        let record = answers::get(&row, 0)?;
        self.read_clock(&record, 1)?;
        self.count_expired(&record, 2)?;
        answers::released(&record)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("push", &self.inner.bell.is_some()).finish_non_exhaustive()
    }
}

/// How long a renewal waits for the row of its name. In all it has a sixth of its ttl (`engine/limits.rs`); the call
/// takes up to 3/2 of this, an eighth. No patience may be 0: for the server that is no limit.
fn patience(lease: &Renewal) -> Duration {
    (lease.ttl / 12).clamp(Duration::from_millis(2), Duration::from_secs(2))
}

/// The same error for each lease.
fn for_each(leases: &[Renewal], error: &Error) -> Vec<Result<Renewed>> {
    leases.iter().map(|_| Err(error.duplicate())).collect()
}

fn is_busy(answer: &Result<Renewed>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Overloaded)
}

/// Microseconds, rounded up.
fn micros(duration: Duration) -> i64 {
    saturated(state::micros(duration).min(FOR_EVER))
}

fn fence(fence: Fence) -> i64 {
    saturated(fence.get())
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// No counter gets that far.
fn saturated(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn too_few() -> Error {
    Error::new(ErrorKind::Internal, "the functions in the database gave too few answers")
}

#[async_trait]
impl Backend for Postgres {
    fn info(&self) -> Info {
        Info { push: self.inner.bell.is_some(), notes: self.inner.notes, ..INFO }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let (Some(bell), Some(ticket_ttl)) = (&self.inner.bell, claim.queue) else {
            return self.attempt(claim, None).await;
        };
        let number = bell.enter(claim, ticket_ttl);
        let answer = self.attempt(claim, Some(saturated(number))).await;
        match &answer {
            Ok(Attempt::Busy(_)) => bell.listen(),
            // It may have a place all the same.
            Err(error) if error.is_retryable() => {}
            _ => bell.leave(&claim.name, &claim.id),
        }
        answer
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        match &self.inner.bell {
            Some(bell) => bell.wait(claim).await,
            None => std::future::pending().await,
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        if leases.is_empty() {
            return Vec::new();
        }
        if let Some(refused) = self.refuse_notes(leases) {
            return refused;
        }
        let mut answers = match self.renew_all(leases, None).await {
            Ok(answers) => answers,
            // How functions of revision 3 answer for a locked row.
            Err(error) if leases.len() == 1 => vec![Err(error)],
            Err(error) => return for_each(leases, &error),
        };
        // No lease of the batch waits longer for the rows of others than its own time allows.
        let patience = leases.iter().map(patience).min().unwrap_or_default();
        let mut locked: BTreeMap<&Name, (Vec<Renewal>, Vec<&mut Result<Renewed>>)> = BTreeMap::new();
        for (answer, lease) in answers.iter_mut().zip(leases).filter(|(answer, _)| is_busy(answer)) {
            let (again, places) = locked.entry(&lease.name).or_default();
            again.push(lease.clone());
            places.push(answer);
        }
        let each = locked.into_values().map(async |(again, places)| {
            let answers = self.renew_name(&again, patience).await;
            places.into_iter().zip(answers).for_each(|(place, answer)| *place = answer);
        });
        join_all(each).await;
        answers
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        if lease.note.is_some() {
            self.info().require_notes()?;
        }
        let answer = self.send_release(lease).await;
        if let Some(bell) = &self.inner.bell
            && ends_wait(&answer)
        {
            bell.leave(&lease.name, &lease.id);
        }
        answer
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let name = text::write(name.stored());
        let only = only.map(fence);
        let params: [Param<'_>; 3] = [(&name, Type::TEXT), (&now, Type::BOOL), (&only, Type::INT8)];
        // Without a condition, call the older function, which also exists where an older client has made the
        // functions.
        let (verb, params) =
            if only.is_some() { (Verb::RevokeOnly, &params[..]) } else { (Verb::Revoke, &params[..2]) };
        let row = self.call_one(verb, Call::Attempt(&name), params).await?;
        self.read_clock(&row, 1)?;
        self.count_expired(&row, 2)?;
        Ok(Revoked { leases: answers::number(&row, 0)? })
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let rows = match query {
            Query::Name(name) => {
                let name = text::write(name.stored());
                self.look(Verb::LookName, Call::Look, &[(&name, Type::TEXT)]).await?
            }
            Query::LeaseId(id) => self.look(Verb::LookId, Call::Look, &[(&id.expose(), Type::TEXT)]).await?,
            Query::Prefix { stored, limit, cursor } => {
                return self.look_at_prefix(stored, *limit, cursor.as_deref()).await;
            }
        };
        Ok(Page::new(answers::seen(&rows)?, None))
    }

    async fn sweep(&self) -> Result<Swept> {
        let began = Instant::now();
        let mut swept = Swept::default();
        // Counters below this are no longer needed: for the whole retention the clock alone has given higher ones. If
        // the clock was never read, nothing is forgotten.
        let retention = u64::try_from(Fence::RETENTION.as_micros()).unwrap_or(u64::MAX);
        // Two sweeps at once each go their way; the next one goes on from where either was last.
        let mut pass = self.inner.pass.lock().clone();
        loop {
            // If no answer comes, the next try asks for less.
            self.inner.pass.lock().most = (pass.most / 2).max(1);
            let forgettable = fence(Fence::at(self.clock().saturating_sub(retention)));
            let params: [Param<'_>; 3] =
                [(&pass.after, Type::TEXT), (&pass.most, Type::INT4), (&forgettable, Type::INT8)];
            let row = self.call_one(Verb::Sweep, Call::Walk, &params).await?;
            self.read_clock(&row, 0)?;
            self.count_expired(&row, 2)?;
            swept.tickets += answers::number(&row, 3)?;
            swept.counters += answers::number(&row, 4)?;
            pass.found.0 += answers::number(&row, 5)?;
            pass.found.1 += answers::number(&row, 6)?;
            pass.most = (pass.most * 2).min(SWEPT_AT_ONCE);
            let last: Option<String> = answers::get(&row, 1)?;
            let is_complete = last.is_none();
            match last {
                Some(last) => pass.after = last,
                None => pass = Pass { complete: Some(pass.found), most: pass.most, ..Pass::default() },
            }
            self.inner.pass.lock().clone_from(&pass);
            if is_complete || began.elapsed() >= WALK_FOR {
                break;
            }
        }
        (swept.held, swept.waiting) = pass.complete.unwrap_or(pass.found);
        // Last, so that the next sweep reports what a failed one has counted.
        swept.expired = self.inner.expired.swap(0, Ordering::Relaxed);
        Ok(swept)
    }
}
