//! Counts that can be taken from outside: of a process, of a port, of a store.

use std::path::Path;

/// All rows of leasehold's tables.
pub(crate) const POSTGRES_ROWS: &str = "SELECT coalesce(sum((xpath('/row/n/text()', \
     query_to_xml(format('SELECT count(*) AS n FROM %I.%I', schemaname, tablename), false, true, '')))[1]::text::bigint), 0) \
     FROM pg_tables WHERE schemaname = 'leasehold'";

/// The anonymous memory of a process, in bytes: what it has allocated and touched.
pub(super) fn memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// How many descriptors a process has.
pub(super) fn descriptors(pid: u32) -> Option<u64> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64)
}

/// How many connections there are to a port of this machine.
pub(super) fn connections(port: u16) -> Option<u64> {
    let wanted = format!(":{port:04X}");
    let mut count = 0;
    for (table, needed) in [("/proc/net/tcp", true), ("/proc/net/tcp6", false)] {
        let text = match std::fs::read_to_string(table) {
            Ok(text) => text,
            Err(_) if !needed => continue,
            Err(_) => return None,
        };
        // `number: local remote state …`; 01 is established.
        let established = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().take(4).collect();
            matches!(fields[..], [_, local, _, "01"] if local.ends_with(&wanted))
        };
        count += text.lines().filter(established).count() as u64;
    }
    Some(count)
}

/// How many rows all tables of a SQLite file have.
pub(crate) fn sqlite_rows(file: &Path) -> Option<u64> {
    use rusqlite::{Connection, OpenFlags};
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    connection.busy_timeout(std::time::Duration::from_secs(1)).ok()?;
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
    let mut query = connection.prepare(tables).ok()?;
    let names: Vec<String> = query.query_map([], |row| row.get(0)).ok()?.collect::<Result<_, _>>().ok()?;
    let rows = |name: &String| -> Option<i64> {
        connection.query_row(&format!("SELECT count(*) FROM \"{name}\""), [], |row| row.get(0)).ok()
    };
    names.iter().map(rows).try_fold(0, |sum, rows| Some(sum + u64::try_from(rows?).ok()?))
}

/// How many files there are in a directory and below it.
pub(crate) fn files(directory: &Path) -> Option<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        count += if entry.file_type().ok()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Some(count)
}

/// How much of a Redis server's memory is data.
pub(crate) fn redis_data(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_a_process_has() {
        let own = std::process::id();
        let before = (memory(own).expect("memory"), descriptors(own).expect("descriptors"));
        let kept = vec![7_u8; 64 << 20];
        let files: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").expect("a file")).collect();
        assert!(memory(own).expect("memory") >= before.0 + (48 << 20), "{} bytes more", kept.len());
        assert!(descriptors(own).expect("descriptors") >= before.1 + 25, "{} more", files.len());
        assert_eq!(memory(u32::MAX), None);
    }

    #[test]
    fn counts_connections_of_a_port_and_not_the_listener() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        assert_eq!(connections(address.port()), Some(0));
        let client = std::net::TcpStream::connect(address).expect("a connection");
        assert_eq!(connections(address.port()), Some(1), "{client:?}");
    }

    #[test]
    fn counts_rows_of_all_tables() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("store.db");
        let connection = rusqlite::Connection::open(&file).expect("a file");
        let sql = "CREATE TABLE one (a); CREATE TABLE two (b); INSERT INTO one VALUES (1), (2); INSERT INTO two VALUES (3)";
        connection.execute_batch(sql).expect("tables");
        assert_eq!(sqlite_rows(&file), Some(3));
        assert_eq!(sqlite_rows(&directory.path().join("none")), None);
        assert_eq!(files(directory.path()), Some(1));
    }
}
