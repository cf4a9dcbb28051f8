//! Findings about the file of a SQLite store.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::super::place::{on_file_system, permissions};
use super::open::BUSY_FOR;
use crate::doctor::{Finding, ONLY_HERE};

/// 3.51.3 as SQLite writes it. Older versions can damage their log in rare cases.
const OLDEST: i32 = 3_051_003;

/// Examines the file. Opening it has already checked that it is ours and on a local file system.
pub(crate) fn findings(path: &Path) -> Vec<Finding> {
    let version = rusqlite::version_number();
    let shown = format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000);
    vec![
        if version >= OLDEST {
            Finding::ok(format!("SQLite {shown} is built in"))
        } else {
            Finding::risk(
                format!("SQLite {shown} is built in"),
                "versions before 3.51.3 can damage their log when several processes write, in rare cases",
                "build leasehold with a newer one",
            )
        },
        journal(path),
        on_file_system(
            path,
            "leases and fence counters are gone after a reboot; fences then rest on the wall clock",
        ),
        permissions(path, "the database", "who can read it has the lease ids, and can release every lock"),
        Finding::note(ONLY_HERE),
    ]
}

/// Asks SQLite instead of reading the file's header: closing any descriptor of a database drops all locks that this
/// process has on it.
fn journal(path: &Path) -> Finding {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mode = Connection::open_with_flags(path, flags).and_then(|db| {
        db.busy_timeout(BUSY_FOR)?;
        db.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0))
    });
    match mode.as_deref() {
        Ok("wal") => Finding::ok("answers are on disk before they are given (WAL, synchronous=FULL)"),
        Ok(_) => Finding::risk(
            "the database is not in WAL mode",
            "another program has changed it; processes block each other, and may be refused",
            "PRAGMA journal_mode=WAL, while nobody uses it",
        ),
        Err(error) => Finding::note(format!("how the database is written cannot be found out: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::OLDEST;

    #[test]
    fn built_in_sqlite_has_no_known_way_to_damage_its_log() {
        assert!(rusqlite::version_number() >= OLDEST, "{}", rusqlite::version());
    }
}
