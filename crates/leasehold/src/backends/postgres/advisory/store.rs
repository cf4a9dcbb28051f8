//! The verbs that do not wait. Each runs to its end even if its caller is gone.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio_postgres::types::{ToSql, Type};

use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, Mode, Release, Released, Renewal, Renewed, Swept, refuse_note,
};
use crate::backends::held::Held;
use crate::clock::{Clock, Moment};
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

use super::super::fault;
use super::book::{Book, Known, Lease};
use super::key::AdvisoryKey;
use super::pool::{Loan, Pool};
use super::sql::{Sql, TABLES, query};

/// When a blocked claim tries again by itself: hardly ever. Its `wait` is in the server's queue, and would lose its
/// place there.
const RETRY_IN: Duration = Duration::from_secs(24 * 3600);

/// How many counters a sweep looks at at a time, and for how long: less than a request has.
const SWEEP: (i64, Duration) = (2_000, Duration::from_secs(3));

/// Where a sweep begins: before every key, because spaces are 1 and 2.
const BEFORE_ALL_KEYS: (i16, i64) = (0, 0);

#[derive(Debug)]
pub(super) struct Store {
    /// The schema of the fence tables.
    pub(super) schema: String,
    pub(super) sql: Sql,
    pub(super) allow_hashing: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) pool: Arc<Pool>,
    pub(super) book: Mutex<Book>,
    /// The key that sweeps have reached, in each of [`TABLES`].
    pub(super) swept: [Mutex<(i16, i64)>; TABLES.len()],
}

impl Store {
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The key of a name: of the name alone, as in .NET, unless it is in a namespace.
    pub(super) fn key(&self, name: &Name) -> Result<AdvisoryKey> {
        let text = if name.namespace().is_empty() { name.as_str() } else { name.stored() };
        AdvisoryKey::from_name(text, self.allow_hashing)
    }

    pub(super) async fn try_acquire(self: Arc<Self>, claim: Claim) -> Result<Attempt> {
        if let Mode::Permit { .. } = claim.mode {
            return Err(Error::new(ErrorKind::Unsupported, "postgres+advisory: has no semaphores"));
        }
        let key = self.key(&claim.name)?;
        let not = loop {
            let known = self.book.lock().begin(&claim, key, self.now())?;
            match known {
                Known::Answer(attempt) => return Ok(attempt),
                Known::Held => return Ok(busy()),
                Known::Later(settled) => settled.await,
                Known::Ask(not) => break not,
            }
        };
        let _attempt = UnderWay { store: &self, key, changes: None };
        let loan = self.pool.shared(&not).await?;
        match loan.session().attempt(&self.sql, key, claim.mode).await {
            Ok(None) => Ok(busy()),
            Ok(Some(fence)) => match self.keep(&claim, key, fence, loan) {
                Ok(grant) => Ok(Attempt::Granted(grant)),
                Err(loan) => {
                    loan.session().free(&self.sql, key, claim.mode).await?;
                    Ok(Attempt::Gone(Gone::Superseded))
                }
            },
            Err(error) => {
                // The fence may have failed after the lock was taken.
                if !loan.session().is_over() {
                    let _ = loan.session().free(&self.sql, key, claim.mode).await;
                }
                Err(error)
            }
        }
    }

    /// Keeps what was granted. If its id was given up meanwhile, returns the session, still locked.
    pub(super) fn keep(
        &self,
        claim: &Claim,
        key: AdvisoryKey,
        fence: Fence,
        loan: Loan,
    ) -> Result<Grant, Loan> {
        let held = Held::new(claim, fence, self.clock.wall_micros());
        let grant = held.grant.clone();
        let (name, metadata) = (claim.name.clone(), claim.metadata.clone());
        let lease = Lease { name, key, loan, held, metadata, changing: false };
        let kept = self.book.lock().keep(claim.id, lease, self.now());
        kept.map(|()| grant).map_err(|lease| lease.loan)
    }

    /// Locks the book once no downgrade of this lease is under way, nor a session given up during one.
    async fn settled(&self, id: &LeaseId) -> MutexGuard<'_, Book> {
        loop {
            let (over, session) = {
                let book = self.book.lock();
                match book.changing(id) {
                    Some(change) => change,
                    None => return book,
                }
            };
            tokio::select! {
                () = over => {}
                () = session.given_up() => {}
            }
        }
    }

    pub(super) async fn renew(self: Arc<Self>, renewal: Renewal) -> Result<Renewed> {
        refuse_note("postgres+advisory", renewal.note.as_ref())?;
        let (key, session, downgrades) = {
            let mut book = self.settled(&renewal.id).await;
            let Some(lease) = book.lease(&renewal.name, &renewal.id, self.now()) else {
                return Ok(Renewed::Gone(Gone::NotFound));
            };
            if !lease.held.matches(renewal.fence, renewal.owner.as_deref()) {
                return Ok(Renewed::Gone(Gone::NotFound));
            }
            if let Some(raise) = renewal.raise_fence {
                if raise > Fence::MAX {
                    return Err(Fence::too_high());
                }
                if raise < lease.held.grant.fence {
                    return Ok(Renewed::Gone(Gone::Superseded));
                }
            }
            let mode = lease.held.grant.mode;
            match renewal.mode {
                Some(Mode::Shared) | None => {}
                Some(wanted) if wanted == mode => {}
                Some(wanted) => return Err(wanted.mismatch(mode)),
            }
            let (key, session) = (lease.key, Arc::clone(lease.session()));
            let downgrades = renewal.mode == Some(Mode::Shared) && mode == Mode::Exclusive;
            if downgrades {
                book.change(&renewal.id);
            }
            (key, session, downgrades)
        };
        // One at a time: a second one would take the key once more, and a release meanwhile would free the wrong half.
        let _change = downgrades.then(|| UnderWay { store: &self, key, changes: Some(renewal.id) });
        session.take_home();
        if let Some(raise) = renewal.raise_fence.filter(|raise| !raise.is_unfenced()) {
            self.raise(key, raise).await?;
        }
        if downgrades {
            tokio::select! {
                biased;
                // The session is gone, and its holder learns of it before the server does.
                () = session.given_up() => {}
                // Not to know which of the two modes it has would be worse than losing it.
                done = session.downgrade(&self.sql, key) => done.inspect_err(|_| session.give_up())?,
            }
        }
        let mut book = self.book.lock();
        let Some(lease) = book.lease(&renewal.name, &renewal.id, self.now()) else {
            return Ok(Renewed::Gone(Gone::NotFound));
        };
        if downgrades {
            lease.held.grant.mode = Mode::Shared;
        }
        Ok(Renewed::Held(lease.held.renewed(&renewal)))
    }

    /// Raises the counter of a key.
    async fn raise(&self, key: AdvisoryKey, to: Fence) -> Result<()> {
        if !self.sql.fenced {
            return Err(Error::new(ErrorKind::Unsupported, "this store has no fences to raise"));
        }
        let to = i64::try_from(to.get()).unwrap_or(i64::MAX);
        let sql = const { query("raise") }
            .replace("%SCHEMA%", &self.sql.schema)
            .replace("%CLOCK%", const { query("clock") });
        let loan = self.pool.shared(&[]).await?;
        let (space, packed) = (key.space(), key.packed());
        let day = i64::try_from(Fence::DAY).unwrap_or(i64::MAX);
        let params: [(&(dyn ToSql + Sync), Type); 4] =
            [(&space, Type::INT2), (&packed, Type::INT8), (&to, Type::INT8), (&day, Type::INT8)];
        let raised = loan.session().ask(|client| client.query_typed(&sql, &params)).await?;
        if raised.is_empty() { Err(Fence::too_high()) } else { Ok(()) }
    }

    pub(super) async fn release(self: Arc<Self>, release: Release) -> Result<Released> {
        refuse_note("postgres+advisory", release.note.as_ref())?;
        let (released, lease) = self.settled(&release.id).await.release(&release, self.now());
        let Some(lease) = lease else {
            // A claim that no longer waits is out of the server's queue when this is answered.
            let leaving = self.book.lock().leaving(&release.id);
            if let Some(left) = leaving {
                left.await;
            }
            return Ok(released);
        };
        let _release = UnderWay { store: &self, key: lease.key, changes: None };
        // In any doubt the session ends together with the key.
        match lease.session().free(&self.sql, lease.key, lease.held.grant.mode).await? {
            true => Ok(released),
            false => {
                reporter::log(|| {
                    tracing::warn!("PostgreSQL no longer had a session lock that was to be released");
                });
                Ok(Released::Gone(Gone::NotFound))
            }
        }
    }

    /// Forgets old counters, on a session of its own and in parts, so that no holder and no caller waits for it.
    pub(super) async fn sweep(self: Arc<Self>) -> Result<Swept> {
        let mut swept = Swept::default();
        if self.sql.fenced {
            let Some(loan) = self.pool.own().await? else {
                return Err(Error::new(
                    ErrorKind::Overloaded,
                    "this client has no connection to PostgreSQL left for a sweep; raise the URL option `connections`",
                ));
            };
            let began = self.now();
            // The fast table first, in the same order as a grant, so that the two never wait for each other.
            for (table, seen) in TABLES.iter().zip(&self.swept).rev() {
                swept.counters = self.forget(&loan, table, seen, began).await?;
            }
        }
        let mut book = self.book.lock();
        book.drop_all_lost(self.now());
        (swept.held, swept.waiting) = (book.leases().count() as u64, book.waiting.len() as u64);
        Ok(swept)
    }

    /// Forgets old counters of one table, after the last key that a sweep has seen. Returns how many. If there is no
    /// time for all of them, the next sweep goes on from there.
    async fn forget(&self, loan: &Loan, table: &str, seen: &Mutex<(i16, i64)>, began: Moment) -> Result<u64> {
        let after = i64::try_from(Fence::RETENTION.as_secs() * 256_000).unwrap_or(i64::MAX);
        let sql = const { query("forget") }
            .replace("%SCHEMA%", &self.sql.schema)
            .replace("%TABLE%", table)
            .replace("%CLOCK%", const { query("clock") });
        let mut forgotten = 0;
        loop {
            let (space, key) = *seen.lock();
            let params: [(&(dyn ToSql + Sync), Type); 4] =
                [(&after, Type::INT8), (&space, Type::INT2), (&key, Type::INT8), (&SWEEP.0, Type::INT8)];
            let row = loan.session().ask(|client| client.query_typed_opt(&sql, &params)).await?;
            let part = row.map(|row| -> Result<(i64, i64, (i16, i64)), tokio_postgres::Error> {
                Ok((row.try_get(0)?, row.try_get(1)?, (row.try_get(2)?, row.try_get(3)?)))
            });
            let (looked_at, gone, last) =
                part.transpose().map_err(fault::statement)?.unwrap_or((0, 0, BEFORE_ALL_KEYS));
            forgotten += u64::try_from(gone).unwrap_or_default();
            let is_over = looked_at < SWEEP.0;
            *seen.lock() = if is_over { BEFORE_ALL_KEYS } else { last };
            if is_over || self.now().since(began) >= SWEEP.1 {
                return Ok(forgotten);
            }
        }
    }
}

/// When dropped, records that the work under way on a key is over.
struct UnderWay<'a> {
    store: &'a Store,
    key: AdvisoryKey,
    /// The lease that is downgraded.
    changes: Option<LeaseId>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.store.book.lock().end(self.key, self.changes.as_ref());
    }
}

fn busy() -> Attempt {
    Attempt::Busy(Busy { retry_in: Some(RETRY_IN), ..Busy::unknown() })
}
