//! Opens the store: checks for a pooler in the way, and makes the fence tables.

use tokio_postgres::types::Type;

use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;

use super::super::quoted;
use super::pool::Pool;
use super::session::{Session, in_transaction_mode};
use super::sql::{TABLES, body, query};

/// How often to check whether two connections share a session: other clients' work can hide it, behind a busy pooler
/// about every third time.
const PROBES: usize = 20;

/// Refuses a pooler that is said to be in session mode but gives each transaction any free session.
///
/// Through such a pooler, a second connection gets the first one's session; or, while it keeps that session busy, the
/// first connection gets another one.
pub(super) async fn check_session_mode(pool: &Pool, first: &Session) -> Result<()> {
    let Some(second) = pool.open().await? else {
        return Err(Error::invalid("the URL's option connections must be at least 2"));
    };
    for _ in 0..PROBES {
        pool.address.in_time(probe(first, &second)).await?;
    }
    Ok(())
}

async fn probe(first: &Session, second: &Session) -> Result<()> {
    let secret = LeaseId::random();
    mark(first, secret.expose()).await?;
    // Sent together, one after the other.
    let (begun, shared) =
        tokio::join!(second.ask(|client| client.batch_execute("BEGIN")), is_marked(second, secret.expose()));
    begun?;
    // If they share one session, the first would wait for the second here.
    let moved = match shared {
        Ok(false) => is_marked(first, secret.expose()).await.map(|same| !same),
        Ok(true) | Err(_) => Ok(false),
    };
    let ended = second.ask(|client| client.batch_execute("ROLLBACK")).await;
    if shared? || moved? {
        return Err(in_transaction_mode());
    }
    ended
}

/// Leaves a mark on the current session.
async fn mark(session: &Session, secret: &str) -> Result<()> {
    let sql = "SELECT set_config('leasehold.probe', $1, false)";
    session.ask(async |client| client.query_typed(sql, &[(&secret, Type::TEXT)]).await).await.map(drop)
}

/// Whether the current session has that mark.
async fn is_marked(session: &Session, secret: &str) -> Result<bool> {
    let sql = "SELECT current_setting('leasehold.probe', true) IS NOT DISTINCT FROM $1";
    session.ask(async |client| client.query_typed_one(sql, &[(&secret, Type::TEXT)]).await?.try_get(0)).await
}

/// Makes the fence tables if they do not exist. Returns whether they can be used; if not, leases have no fences.
pub(super) async fn prepare_fences(pool: &Pool, session: &Session, schema: &str) -> Result<bool> {
    let tables = TABLES.map(|table| format!("{}.{table}", quoted(schema)));
    // Twice: another client may be making them at the same moment.
    for last in [false, true] {
        match pool.address.in_time(is_ready(session, &tables)).await {
            Ok((true, usable)) => {
                if !usable {
                    reporter::log(|| {
                        tracing::warn!(
                            "no fences: this user may not read and write the tables advisory_fences and advisory_fences_live"
                        );
                    });
                }
                return Ok(usable);
            }
            Ok((false, _)) => {}
            Err(error) => return forbidden(error),
        }
        let script = body(include_str!("fences.sql")).replace("%SCHEMA%", &quoted(schema));
        match pool.address.in_time(session.ask(|client| client.batch_execute(&script))).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AuthFailed => return forbidden(error),
            Err(error) if last => return Err(error),
            Err(_) => {}
        }
    }
    Ok(pool.address.in_time(is_ready(session, &tables)).await?.1)
}

async fn is_ready(session: &Session, tables: &[String]) -> Result<(bool, bool)> {
    let sql = const { query("ready") };
    session
        .ask(async |client| {
            let row = client.query_typed_one(sql, &[(&tables, Type::TEXT_ARRAY)]).await?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        })
        .await
}

fn forbidden(error: Error) -> Result<bool> {
    if error.kind() != ErrorKind::AuthFailed {
        return Err(error);
    }
    reporter::log(move || {
        tracing::warn!(%error, "no fences: this user may not make or use the tables advisory_fences and advisory_fences_live");
    });
    Ok(false)
}
