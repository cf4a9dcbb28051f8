//! How the file of a SQLite store is set up.

use std::io::Read as _;
use std::path::Path;

use super::super::place::{on_file_system, permissions};
use super::Sqlite;
use crate::finding::Finding;

/// Older ones can damage their log in rare cases.
const OLDEST: i32 = 3_051_003;

/// Looks at the file; that it is ours, and on a local file system, was seen when it was opened.
pub(crate) fn findings(path: &Path) -> Vec<Finding> {
    let version = Sqlite::sqlite_version();
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
        Finding::note("locks hold between the processes of this machine, and no further"),
    ]
}

/// Bytes 18 and 19 of the header say how the file is to be written and read: 2 is by a log (WAL).
fn journal(path: &Path) -> Finding {
    let mut header = [0; 20];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match (read, &header[18..]) {
        (Ok(()), [2, 2]) => Finding::ok("answers are on disk before they are given (WAL, synchronous=FULL)"),
        (Ok(()), _) => Finding::risk(
            "the database is not in WAL mode",
            "another program has changed it; processes block each other, and may be refused",
            "PRAGMA journal_mode=WAL, while nobody uses it",
        ),
        (Err(error), _) => Finding::note(format!("the header of the database cannot be read: {error}")),
    }
}
