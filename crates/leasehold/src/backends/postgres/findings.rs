//! Findings about how a PostgreSQL server is set up, for both of its stores.

use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Client, Row};

use super::fault;
use crate::doctor::{Finding, in_the_clear};
use crate::error::Result;

/// One row of the server's settings.
pub(super) struct Settings(Row);

impl Settings {
    /// Asks the server.
    pub(super) async fn ask(client: &Client, schema: &str) -> std::result::Result<Self, fault::Fault> {
        client.query_typed_one(include_str!("findings.sql"), &[(&schema, Type::TEXT)]).await.map(Settings)
    }

    fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T> {
        self.0.try_get(column).map_err(fault::statement)
    }

    fn is_off(&self, column: usize) -> Result<bool> {
        Ok(self.get::<&str>(column)? == "off")
    }

    /// Findings that apply to leases in tables and to the fences of session locks. `forgets`: what is lost if the
    /// server forgets its latest commits.
    pub(super) fn findings(&self, forgets: &str) -> Result<Vec<Finding>> {
        let mut found = vec![Finding::ok(format!("this is PostgreSQL {}", self.get::<&str>(0)?))];
        let before = found.len();
        if self.is_off(1)? {
            found.push(Finding::risk(
                "the server does not wait for the disk (fsync off)",
                format!("a crash of the machine can damage the database, and {forgets}"),
                "set fsync on",
            ));
        }
        if self.is_off(2)? {
            found.push(Finding::risk(
                "the server does not protect pages that are half written (full_page_writes off)",
                "a crash of the machine can damage the database",
                "set full_page_writes on",
            ));
        }
        if self.is_off(3)? {
            found.push(Finding::risk(
                "the server answers before a grant is on disk (synchronous_commit off)",
                format!("after a crash {forgets}"),
                "ALTER ROLE … SET synchronous_commit = on for the user of leasehold",
            ));
        }
        if found.len() == before {
            found
                .push(Finding::ok("grants are on disk before they are answered (fsync, synchronous_commit)"));
        }
        let (waits, standbys): (bool, i64) = (self.get(4)?, self.get(5)?);
        if waits {
            found.push(Finding::ok(
                "standbys confirm grants before they are answered (synchronous_standby_names)",
            ));
        } else if standbys > 0 {
            found.push(
                Finding::note(format!("{standbys} standbys learn of grants later than the client")).because(
                    format!("if one is promoted, {forgets}"),
                    "set synchronous_standby_names, or do not promote one within the longest ttl",
                ),
            );
        }
        if self.get(6)? {
            found.push(Finding::risk(
                "this server is a standby",
                "the primary does not know of its locks",
                "connect to the primary (target_session_attrs=read-write)",
            ));
        }
        let isolation: &str = self.get(7)?;
        if isolation != "read committed" {
            found.push(
                Finding::note(format!("sessions begin with the isolation level {isolation}")).because(
                    "none on connections of leasehold's own, which set it; behind a pooler it is refused",
                    "ALTER ROLE … SET default_transaction_isolation = 'read committed'",
                ),
            );
        }
        if !self.get::<bool>(8)? && !self.get::<bool>(9)? {
            found.push(in_the_clear("say sslmode=verify-full in the URL"));
        }
        if self.get(10)? {
            found.push(Finding::note("leasehold connects as a superuser").because(
                "who has its password has the server",
                "use a user of its own with the rights that docs/postgres.md lists",
            ));
        }
        if self.get::<bool>(11)? || self.get::<bool>(12)? {
            found.push(Finding::risk(
                "every user of the database may change what is in leasehold's schema",
                "anybody can release or take every lock",
                "REVOKE ALL ON ALL TABLES IN SCHEMA … FROM PUBLIC, and CREATE ON SCHEMA … likewise",
            ));
        }
        Ok(found)
    }

    /// For how many seconds the server keeps the session of a client whose machine has vanished; `None` if the client
    /// is on the server's own machine and cannot vanish alone.
    pub(super) fn notices_silence(&self) -> Result<Option<i32>> {
        let (idle, probes): (i32, i32) = (self.get(13)?, self.get(14)?);
        Ok((idle > 0).then_some(idle + probes))
    }

    /// Whether the server notices that a client has gone while the client waits for a lock.
    pub(super) fn notices_dead_waiters(&self) -> Result<bool> {
        self.get(15)
    }
}
