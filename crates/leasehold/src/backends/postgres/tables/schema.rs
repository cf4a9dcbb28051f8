//! The tables and functions: the script that makes them, and making them on first use.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::text::quote;
use crate::backends::postgres::fault;
use crate::bugs;
use crate::error::{Error, ErrorKind, Result};

/// The version that this build works with.
const VERSION: i32 = 1;

/// The files, in order.
const FILES: [&str; 8] = [
    include_str!("schema/1_tables.sql"),
    include_str!("schema/2_name.sql"),
    include_str!("schema/3_wake.sql"),
    include_str!("schema/4_acquire.sql"),
    include_str!("schema/5_release.sql"),
    include_str!("schema/6_renew.sql"),
    include_str!("schema/7_revoke.sql"),
    include_str!("schema/8_sweep.sql"),
];

/// Bytes an identifier may have in PostgreSQL.
const MAX_IDENTIFIER: usize = 63;

/// SQL that was written for the schema `leasehold`, for another one.
pub(super) fn within(schema: &str, sql: &str) -> String {
    sql.replace("leasehold.", &format!("{}.", quote(schema)))
}

/// What makes everything, in one transaction.
pub(super) fn script(schema: &str) -> String {
    let files = bugs::edited("postgres", FILES.join("\n"));
    within(schema, &files).replace("CREATE SCHEMA IF NOT EXISTS leasehold;", &create_schema(schema))
}

fn create_schema(schema: &str) -> String {
    format!("CREATE SCHEMA IF NOT EXISTS {};", quote(schema))
}

/// Refuses a name that PostgreSQL would cut or not understand.
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

/// Makes sure that the tables are there, in the version that is needed. `made`: somebody has made them, as far as
/// was seen before.
pub(super) async fn ensure(client: &Client, schema: &str, exists: bool, made: bool) -> Result<()> {
    if !made {
        create(client, schema, exists).await?;
    }
    let ask = within(schema, "SELECT version FROM leasehold.about");
    let rows = client.query_typed(&ask, &[]).await.map_err(fault::statement)?;
    match rows.first().and_then(|row| row.try_get(0).ok()) {
        Some(VERSION) => Ok(()),
        Some(other) if other > VERSION => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the tables are of version {other}, and this build knows {VERSION}; use a newer leasehold"
            ),
        )),
        Some(other) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("the tables are of version {other}, which this build cannot bring to {VERSION}"),
        )),
        None => Err(Error::new(
            ErrorKind::Internal,
            "the table about is empty; something else is in the schema, or its setup was not finished",
        )),
    }
}

/// One of those who come first makes them, the others wait for it. The connection is ours: dropped half way, the
/// transaction ends with it.
async fn create(client: &Client, schema: &str, exists: bool) -> Result<()> {
    // Freed with the transaction, whatever becomes of it.
    let begin = format!(
        "BEGIN; SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '60s'; \
         SELECT pg_advisory_xact_lock(hashtextextended('leasehold: setup of {}', 0))",
        schema.replace('\'', "''")
    );
    client.batch_execute(&begin).await.map_err(fault::statement)?;
    // Somebody may have been quicker.
    let ask = "SELECT to_regclass($1) IS NOT NULL";
    let about = format!("{}.about", quote(schema));
    let asked = client.query_typed(ask, &[(&about, Type::TEXT)]).await.map_err(fault::statement)?;
    let mut script = script(schema);
    if asked.first().and_then(|row| row.try_get(0).ok()) == Some(true) {
        script.clear();
    } else if exists {
        // It takes a right on the database even to say that there is nothing to do.
        script = script.replace(&create_schema(schema), "");
    }
    client.batch_execute(&format!("{script}; COMMIT")).await.map_err(fault::statement)
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

    #[cfg(feature = "bugs")]
    #[test]
    fn every_defect_of_the_functions_can_still_be_planted() {
        crate::bugs::can_be_planted("postgres", &[("postgres", FILES.join("\n"))]);
    }

    #[test]
    fn a_name_that_would_be_cut_is_refused() {
        for bad in ["", "pg_locks", "a\0b", "a$$b", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("leasehold").is_ok());
    }
}
