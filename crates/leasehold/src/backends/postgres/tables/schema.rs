//! The tables and functions: their script, making them on first use, and replacing functions that an older client has
//! made.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::verbs::query;
use crate::backends::postgres::{fault, quoted};
use crate::bugs;
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};

/// The version that this build works with: of the tables, and of how to call the functions.
const VERSION: i32 = 3;

/// The revision of this build's functions. Older functions are replaced; newer ones are as good: with either, every
/// client of this version keeps every promise.
const REVISION: i32 = 5;

/// The first revision whose functions write notes.
pub(super) const NOTES: i32 = 5;

const TABLES: &str = include_str!("schema/1_tables.sql");

/// Runs before the functions where they replace older ones.
const ADD_COLUMNS: &str = include_str!("schema/2_columns.sql");

/// Runs after the functions where they replace older ones.
const SET_REVISION: &str = include_str!("schema/9_revision.sql");

/// The functions, in order.
const FUNCTIONS: [&str; 8] = [
    include_str!("schema/2_name.sql"),
    include_str!("schema/3_wake.sql"),
    include_str!("schema/4_acquire.sql"),
    include_str!("schema/5_release.sql"),
    include_str!("schema/6_renew.sql"),
    include_str!("schema/7_revoke.sql"),
    include_str!("schema/8_sweep.sql"),
    include_str!("schema/8_notes.sql"),
];

/// The most bytes of an identifier in PostgreSQL.
const MAX_IDENTIFIER: usize = 63;

/// Rewrites SQL for the schema `leasehold` to another schema.
pub(super) fn within(schema: &str, sql: &str) -> String {
    sql.replace("leasehold.", &format!("{}.", quoted(schema)))
}

/// The script that makes everything, in one transaction.
pub(super) fn script(schema: &str) -> String {
    let tables =
        within(schema, TABLES).replace("CREATE SCHEMA IF NOT EXISTS leasehold;", &create_schema(schema));
    format!("{tables}\n{}", functions(schema))
}

fn functions(schema: &str) -> String {
    within(schema, &bugs::edited("postgres", FUNCTIONS.join("\n")))
}

fn create_schema(schema: &str) -> String {
    format!("CREATE SCHEMA IF NOT EXISTS {};", quoted(schema))
}

/// Refuses a name that PostgreSQL would cut or reject.
pub(super) fn check_name(schema: &str) -> Result<()> {
    // Functions are written between dollar signs.
    let bad = schema.is_empty() || schema.len() > MAX_IDENTIFIER || schema.contains(['\0', '$']);
    if bad || schema.starts_with("pg_") {
        return Err(Error::invalid(
            "the name of the schema must have 1 to 63 bytes, no NUL and no $, and must not begin with pg_",
        ));
    }
    Ok(())
}

/// Makes sure that the tables exist in the right version, and that the functions are not older than ours. `made`: an
/// earlier look found that they exist. The connection must be ours. Returns the revision of the functions.
pub(super) async fn ensure(client: &Client, schema: &str, exists: bool, made: bool) -> Result<i32> {
    if !made {
        create(client, schema, exists).await?;
    }
    match check(client, schema).await? {
        older if older < REVISION => {
            upgrade(client, schema).await?;
            check(client, schema).await
        }
        revision => Ok(revision),
    }
}

/// Refuses tables of another version; otherwise returns the revision of the functions.
pub(super) async fn check(client: &Client, schema: &str) -> Result<i32> {
    let ask = within(schema, const { query("about") });
    let rows = client.query_typed(&ask, &[]).await.map_err(fault::statement)?;
    let row = rows.first();
    match row.and_then(|row| row.try_get(0).ok()) {
        Some(VERSION) => row.and_then(|row| row.try_get(1).ok()).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "the table about has no revision that is a number")
        }),
        Some(other) if other > VERSION => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the tables are of version {other}, written by a newer leasehold; this one knows {VERSION}: \
                 update it, or name another schema"
            ),
        )),
        Some(other) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the tables are of version {other}, and this build knows {VERSION}; name another schema, or drop this one \
                 when nobody holds a lock"
            ),
        )),
        None => Err(Error::new(
            ErrorKind::Internal,
            "the table about is empty; something else is in the schema, or its setup was not finished",
        )),
    }
}

/// Begins a transaction in which no other client changes tables or functions.
async fn begin(client: &Client, schema: &str) -> std::result::Result<(), fault::Fault> {
    // Freed with the transaction, however it ends.
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '60s'; \
         SELECT pg_advisory_xact_lock(hashtextextended('leasehold: setup of {}', 0))",
        schema.replace('\'', "''")
    );
    client.batch_execute(&begin).await
}

/// Makes the tables and functions; other clients wait for that. The connection is ours: if this is dropped half way,
/// the transaction ends with it.
async fn create(client: &Client, schema: &str, exists: bool) -> Result<()> {
    begin(client, schema).await.map_err(fault::statement)?;
    // Another client may have been quicker.
    let ask = "SELECT to_regclass($1) IS NOT NULL";
    let about = format!("{}.about", quoted(schema));
    let asked = client.query_typed(ask, &[(&about, Type::TEXT)]).await.map_err(fault::statement)?;
    let mut script = script(schema);
    if asked.first().and_then(|row| row.try_get(0).ok()) == Some(true) {
        script.clear();
    } else if exists {
        // Even a statement that has nothing to do needs a right on the database.
        script = script.replace(&create_schema(schema), "");
    }
    client.batch_execute(&format!("{script}; COMMIT")).await.map_err(fault::statement)
}

/// Replaces the functions by ours, unless another client was quicker. Calls under way end with the functions they
/// began with. A user that may not replace them, or that would have to wait for a lock on the tables, goes on with the
/// existing ones.
async fn upgrade(client: &Client, schema: &str) -> Result<()> {
    begin(client, schema).await.map_err(fault::statement)?;
    if check(client, schema).await? >= REVISION {
        return client.batch_execute("COMMIT").await.map_err(fault::statement);
    }
    let [columns, revision] = [ADD_COLUMNS, SET_REVISION].map(|sql| within(schema, sql));
    match client.batch_execute(&format!("{columns}\n{}\n{revision}; COMMIT", functions(schema))).await {
        Ok(()) => Ok(()),
        Err(fault) if fault.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            reporter::log(|| {
                tracing::info!(
                    "the functions in the database are older than this client, and a session that is idle in a \
                     transaction keeps them from being replaced; they work, but lack what newer ones mend: end that \
                     session, then connect again"
                );
            });
            client.batch_execute("ROLLBACK").await.map_err(fault::statement)
        }
        Err(fault) if fault.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            reporter::log(|| {
                tracing::info!(
                    "the functions in the database are older than this client, and this user may not replace them; they \
                     work, but lack what newer ones mend: let an administrator replace them"
                );
            });
            client.batch_execute("ROLLBACK").await.map_err(fault::statement)
        }
        Err(fault) => Err(fault::statement(fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mention_of_the_schema_is_replaced_and_quoted() {
        let script = script("it's \"mine\"");
        let code: Vec<&str> = script.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        assert!(
            code.iter()
                .all(|line| !line.contains("leasehold.") && !line.contains("SCHEMA IF NOT EXISTS leasehold"))
        );
        assert!(script.contains("CREATE TABLE \"it's \"\"mine\"\"\".names"));
    }

    #[cfg(feature = "__bugs")]
    #[test]
    fn every_defect_of_the_functions_can_still_be_planted() {
        crate::bugs::can_be_planted("postgres", &[("postgres", FUNCTIONS.join("\n"))]);
    }

    #[test]
    fn the_files_say_which_version_they_are_of() {
        assert!(TABLES.contains(&format!("(version, revision) VALUES ({VERSION}, {REVISION})")));
        assert!(SET_REVISION.contains(&format!("SET revision = {REVISION}")));
    }

    #[test]
    fn a_name_that_would_be_cut_is_refused() {
        for bad in ["", "pg_locks", "a\0b", "a$$b", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("leasehold").is_ok());
    }
}
