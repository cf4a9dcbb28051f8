//! Advisory locks on the caller's own connections: for one transaction, or for one session.
//!
//! These are the bare locks, with the keys of the store: no lease, no fence, no lost signal. A lock in a transaction
//! is freed with it, so what it protects is best in the same database:
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold::{Mode, backends::postgres::{AdvisoryKey, advisory::scope::InTransaction}};
//!
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let transaction = client.transaction().await?;
//! let key = AdvisoryKey::from_name("invoice-numbers", true)?;
//! if InTransaction::new(&transaction).lock_within(key, Mode::Exclusive, Duration::from_secs(2)).await? {
//!     transaction.execute("UPDATE invoices SET last = last + 1", &[]).await?;
//!     transaction.commit().await?; // and the lock is free
//! }
//! # Ok(())
//! # }
//! ```
//!
//! On the caller's own connection, for example from a pool, a lock lasts until it is freed or the session ends. A
//! caller that returns the connection to the pool first gives the lock away with it:
//!
//! ```no_run
//! use leasehold::{Mode, backends::postgres::{AdvisoryKey, advisory::scope::OnClient}};
//!
//! # async fn example(client: &mut tokio_postgres::Client) -> leasehold::Result<()> {
//! let (mut locks, key) = (OnClient::new(client), AdvisoryKey::from_name("nightly-report", true)?);
//! if locks.try_lock(key, Mode::Exclusive).await? {
//!     // … work …
//!     locks.unlock(key, Mode::Exclusive).await?;
//! }
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient, Transaction};

use crate::backend::Mode;
use crate::error::{Error, ErrorKind, Result};

use super::super::fault;
use super::key::AdvisoryKey;
use super::sql::{held, query};

/// Takes locks inside the caller's transaction. The server frees them when the transaction ends, however it ends;
/// there is no other way to free them. This also works behind a pooler in transaction mode.
#[derive(Clone, Copy)]
pub struct InTransaction<'t, 'c> {
    transaction: &'t Transaction<'c>,
}

impl std::fmt::Debug for InTransaction<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InTransaction")
    }
}

impl<'t, 'c> InTransaction<'t, 'c> {
    /// Takes locks in this transaction.
    pub fn new(transaction: &'t Transaction<'c>) -> Self {
        InTransaction { transaction }
    }

    /// Takes a lock if it is free. Returns whether it was.
    ///
    /// # Cancel safety
    /// If dropped, the transaction may have the lock.
    ///
    /// # Errors
    /// `Deadlock` if this session has it already; `Unsupported` for permits; faults of the server, after which
    /// the transaction can only be rolled back.
    pub async fn try_lock(&self, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        take(self.transaction, key, call("pg_try_advisory_xact_lock", key, mode)?).await
    }

    /// Waits for a lock in the server's queue.
    ///
    /// # Cancel safety
    /// If dropped, the server goes on waiting: roll the transaction back, and cancel the query if the rollback must
    /// not wait.
    ///
    /// # Errors
    /// As [`try_lock`](InTransaction::try_lock); `Deadlock` also if the server found that the transaction waits for
    /// itself.
    pub async fn lock(&self, key: AdvisoryKey, mode: Mode) -> Result<()> {
        take(self.transaction, key, waiting("pg_advisory_xact_lock", key, mode)?).await.map(drop)
    }

    /// Waits for a lock for at most this long. Returns whether it was granted. If it was not, the transaction can go
    /// on, and its `lock_timeout` is unchanged.
    ///
    /// # Cancel safety
    /// As [`lock`](InTransaction::lock); the transaction is then in a savepoint.
    ///
    /// # Errors
    /// As [`lock`](InTransaction::lock), but the transaction can go on.
    pub async fn lock_within(&self, key: AdvisoryKey, mode: Mode, wait: Duration) -> Result<bool> {
        if wait.is_zero() {
            return self.try_lock(key, mode).await;
        }
        let lock = waiting("pg_advisory_xact_lock", key, mode)?;
        let transaction = self.transaction;
        transaction.batch_execute("SAVEPOINT leasehold").await.map_err(fault::statement)?;
        match take_within(transaction, key, lock, wait).await {
            Ok(granted @ true) => {
                transaction.batch_execute("RELEASE SAVEPOINT leasehold").await.map_err(fault::statement)?;
                Ok(granted)
            }
            vain => {
                // This also undoes the setting.
                let back = "ROLLBACK TO SAVEPOINT leasehold; RELEASE SAVEPOINT leasehold";
                transaction.batch_execute(back).await.map_err(fault::statement)?;
                vain
            }
        }
    }
}

/// Takes locks on the caller's session. The server frees them when the session ends, or [`unlock`](OnClient::unlock)
/// does.
///
/// Do not use it on a connection from a pool that others get next, nor behind a pooler in transaction mode: the lock
/// would stay behind.
#[derive(Debug)]
pub struct OnClient<'c> {
    client: &'c mut Client,
}

impl<'c> OnClient<'c> {
    /// Takes locks on this session, which is in no transaction.
    pub fn new(client: &'c mut Client) -> Self {
        OnClient { client }
    }

    /// Takes a lock if it is free. Returns whether it was.
    ///
    /// # Cancel safety
    /// If dropped, the session may have the lock.
    ///
    /// # Errors
    /// `Deadlock` if this session has it already; `Unsupported` for permits; faults of the server.
    pub async fn try_lock(&mut self, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        take(&*self.client, key, call("pg_try_advisory_lock", key, mode)?).await
    }

    /// Waits for a lock in the server's queue.
    ///
    /// # Cancel safety
    /// If dropped, the server goes on waiting, and the session will get the lock: close it.
    ///
    /// # Errors
    /// As [`try_lock`](OnClient::try_lock).
    pub async fn lock(&mut self, key: AdvisoryKey, mode: Mode) -> Result<()> {
        take(&*self.client, key, waiting("pg_advisory_lock", key, mode)?).await.map(drop)
    }

    /// Waits for a lock for at most this long. Returns whether it was granted. The session's `lock_timeout` does not
    /// change.
    ///
    /// # Cancel safety
    /// As [`lock`](OnClient::lock).
    ///
    /// # Errors
    /// As [`try_lock`](OnClient::try_lock).
    pub async fn lock_within(&mut self, key: AdvisoryKey, mode: Mode, wait: Duration) -> Result<bool> {
        if wait.is_zero() {
            return self.try_lock(key, mode).await;
        }
        let lock = waiting("pg_advisory_lock", key, mode)?;
        // A session's lock outlives the transaction; a setting made for the transaction does not.
        let transaction = self.client.transaction().await.map_err(fault::statement)?;
        let granted = take_within(&transaction, key, lock, wait).await;
        transaction.rollback().await.map_err(fault::statement)?;
        if !granted? {
            // The server may have granted it at the very moment when the time was over: then the session has it.
            let last = ask(&*self.client, key, &call("pg_try_advisory_lock", key, mode)?).await;
            return last.map(|granted| granted.unwrap_or(true)).map_err(refused);
        }
        Ok(true)
    }

    /// Frees a lock. Returns whether the session had it.
    ///
    /// # Cancel safety
    /// If dropped, the lock may or may not be free.
    ///
    /// # Errors
    /// `Unsupported` for permits; faults of the server.
    pub async fn unlock(&mut self, key: AdvisoryKey, mode: Mode) -> Result<bool> {
        let sql = format!("SELECT {}", call("pg_advisory_unlock", key, mode)?);
        let row = self.client.query_typed(&sql, &[]).await.map_err(fault::statement)?;
        Ok(row.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

/// `function(key)`, or the shared variant of that function.
fn call(function: &str, key: AdvisoryKey, mode: Mode) -> Result<String> {
    let shared = match mode {
        Mode::Exclusive => "",
        Mode::Shared => "_shared",
        _ => return Err(Error::new(ErrorKind::Unsupported, "PostgreSQL's advisory locks have no permits")),
    };
    Ok(match key {
        AdvisoryKey::Bigint(key) => format!("{function}{shared}('{key}'::bigint)"),
        AdvisoryKey::Pair(high, low) => format!("{function}{shared}('{high}'::int, '{low}'::int)"),
    })
}

/// The same for a function that waits and returns nothing.
fn waiting(function: &str, key: AdvisoryKey, mode: Mode) -> Result<String> {
    Ok(format!("{}::text IS NOT NULL", call(function, key, mode)?))
}

fn statement(key: AdvisoryKey, lock: &str) -> String {
    const { query("on_session") }.replace("%LOCK%", lock).replace("%HELD%", &held(key))
}

async fn take(session: &impl GenericClient, key: AdvisoryKey, lock: String) -> Result<bool> {
    match ask(session, key, &lock).await {
        Ok(granted) => granted.ok_or_else(twice),
        Err(fault) => Err(refused(fault)),
    }
}

/// Waits for a lock. Returns whether it was granted in time; `lock_timeout` is as before if it was.
async fn take_within(
    session: &impl GenericClient,
    key: AdvisoryKey,
    lock: String,
    wait: Duration,
) -> Result<bool> {
    // The setting is in milliseconds, and 0 means no limit.
    let millis = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX).max(1);
    let rows = session.query_typed("SELECT current_setting('lock_timeout')", &[]).await;
    let before: String =
        rows.map_err(fault::statement)?.first().and_then(|row| row.try_get(0).ok()).unwrap_or_default();
    let set = format!("SET LOCAL lock_timeout = {millis}");
    session.batch_execute(&set).await.map_err(fault::statement)?;
    match ask(session, key, &lock).await {
        Ok(granted) => {
            let set = format!("SET LOCAL lock_timeout = '{before}'");
            session.batch_execute(&set).await.map_err(fault::statement)?;
            granted.ok_or_else(twice)
        }
        Err(fault) if fault.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(false),
        Err(fault) => Err(refused(fault)),
    }
}

/// Asks for a lock. Returns whether it was granted; `None` if the session has it already.
async fn ask(
    session: &impl GenericClient,
    key: AdvisoryKey,
    lock: &str,
) -> std::result::Result<Option<bool>, fault::Fault> {
    // Unnamed, so that it works through a pooler.
    let rows = session.query_typed(&statement(key, lock), &[]).await?;
    rows.first().map_or(Ok(None), |row| row.try_get(0))
}

fn refused(fault: fault::Fault) -> Error {
    if fault.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) {
        return Error::new(
            ErrorKind::Deadlock,
            "PostgreSQL detected a deadlock between sessions; take locks in the same order everywhere",
        )
        .with_source(fault);
    }
    fault::statement(fault)
}

fn twice() -> Error {
    Error::new(ErrorKind::Deadlock, "this session has the lock already, and would have to free it twice")
}
