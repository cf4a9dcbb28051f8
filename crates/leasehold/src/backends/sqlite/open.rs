//! Opens a database: what is refused, how the file is made, and what happens after a reboot.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, StatxFlags, accessat, mknodat, statfs, statx};

use super::fault::{self, Fault, Outcome};
use super::wake::WakeFile;
use super::{SqliteBuilder, sql};
use crate::backend::SPENT_FOR;
use crate::clock::Clock;
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};

/// How long to wait for a locked database: far longer than a transaction takes, shorter than a caller waits for an
/// answer.
pub(super) const BUSY_FOR: Duration = Duration::from_secs(2);

/// "leas": marks a file as ours.
const APPLICATION_ID: i64 = 0x6c65_6173;

/// The layouts, oldest first; each changes the one before it.
const MIGRATIONS: &[&str] = &[
    include_str!("schema/001.sql"),
    include_str!("schema/002.sql"),
    include_str!("schema/003.sql"),
    include_str!("schema/004.sql"),
];

/// File systems on which locks or shared memory do not reach all processes that use the file, by the number that
/// `statfs` gives (linux/magic.h and their own sources).
const NETWORK: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x786f_4256, "vboxsf"),
    (0x2003_0528, "OrangeFS"),
];

/// An open database and its parts.
pub(super) struct Opened {
    pub(super) db: Connection,
    pub(super) wake: WakeFile,
}

/// Opens the database, and makes it if it does not exist.
pub(super) fn open(options: &SqliteBuilder) -> Result<Opened> {
    refuse_other_clocks()?;
    let boot_id = match &options.boot_id {
        Some(id) => id.clone(),
        None => std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_err(|error| fault::system("cannot read the boot id of this machine", error))?
            .trim()
            .to_owned(),
    };
    let path = make_file(&options.path, options.allow_network_fs)?;
    let undone = |fault| fault::error(fault, Outcome::Undone);
    let mut db = connect(&path).map_err(undone)?;
    check_owner(probe(&db).map_err(undone)?)?;
    set_up(&db, options.max_pages).map_err(undone)?;
    migrate(&mut db)?;
    greet_boot(&mut db, &boot_id, &*options.clock).map_err(undone)?;
    let mut wake = path.into_os_string();
    wake.push("-wake");
    let wake = WakeFile::open(Path::new(&wake))
        .map_err(|error| fault::system("cannot open the wake file of the database", error))?;
    Ok(Opened { db, wake })
}

/// Refuses a shifted clock: processes agree on the expiry clock only if none of them has moved its own.
fn refuse_other_clocks() -> Result<()> {
    // Kernels without time namespaces have no such file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if has_other_clock(&offsets) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this process is in a time namespace with a boot-time clock of its own; \
             processes that share a database must share that clock",
        ));
    }
    Ok(())
}

fn has_other_clock(offsets: &str) -> bool {
    let boottime = offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        // By name, or by number on older kernels.
        matches!(words.next(), Some("boottime" | "7")).then_some(words)
    });
    boottime.is_some_and(|mut words| words.any(|number| number != "0"))
}

/// Makes the file if it does not exist, readable only by its owner, and returns its real path.
fn make_file(path: &Path, allow_network_fs: bool) -> Result<PathBuf> {
    let refuse_network_fs = |path: &Path| match allow_network_fs {
        true => Ok(()),
        false => refuse_network_fs(path),
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if directory.exists() {
        refuse_network_fs(directory)?;
    }
    // Make it without opening it: closing any descriptor of a database drops all locks that other connections of this
    // process have on it.
    let made = mknodat(CWD, path, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0);
    if let Err(error) = made
        && !path.exists()
    {
        return Err(fault::system("cannot create the database; its directory must exist", error));
    }
    // Every process must use the same log and wake file beside it, whichever path it came by.
    let path = path.canonicalize().map_err(|error| fault::system("cannot find the database", error))?;
    refuse_network_fs(&path)?;
    // SQLite would only say that it cannot open it.
    may_write(&path, "the database cannot be written")?;
    let beside = path.parent().unwrap_or(Path::new("/"));
    may_write(beside, "the directory of the database cannot be written; its log has to be there")?;
    let about = path
        .metadata()
        .map_err(|error| fault::system("cannot read the attributes of the database", error))?;
    if !about.is_file() {
        return Err(Error::invalid(format!("the path of the database, {path:?}, is not a regular file")));
    }
    refuse_second_name(&path, beside, &about)?;
    if std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o077 != 0 {
        reporter::log(|| {
            // A finding too; with the findings' target, so that a program that prints those can leave this out.
            tracing::warn!(
                target: "leasehold::doctor",
                "the database can be read by others than its owner; it holds lease ids, which are secrets"
            );
        });
    }
    Ok(path)
}

/// SQLite keeps its log and its locks beside the name by which it opens a file. It would treat two names of one file
/// as two databases, each with its own lock holder, and would soon damage the file.
fn refuse_second_name(path: &Path, beside: &Path, about: &Metadata) -> Result<()> {
    if about.nlink() > 1 {
        return Err(Error::invalid(
            "the database has more than one name (hard links), and SQLite would keep a log beside each of them; \
             remove all names but one",
        ));
    }
    if mount_of(path) != mount_of(beside) {
        return Err(Error::invalid(
            "the database is mounted as a single file, and SQLite's log beside it would be another one for everybody \
             else who uses the file; mount its directory instead",
        ));
    }
    Ok(())
}

/// The mount of a path, where the kernel tells: Linux 5.8 and newer.
fn mount_of(path: &Path) -> Option<u64> {
    let about = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::MNT_ID).then_some(about.stx_mnt_id)
}

fn may_write(path: &Path, otherwise: &'static str) -> Result<()> {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).map_err(|error| fault::system(otherwise, error))
}

fn refuse_network_fs(path: &Path) -> Result<()> {
    let about = statfs(path)
        .map_err(|error| fault::system("cannot find out the file system of the database", error))?;
    match network_fs(about.f_type as u64) {
        None => Ok(()),
        Some(kind) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the database is on {kind}, where SQLite's locks and its shared memory do not reach all \
                 who use the file; put it on a local disk, or use `allow_network_fs` if you know better"
            ),
        )),
    }
}

fn network_fs(kind: u64) -> Option<&'static str> {
    // The number has 32 bits, which some architectures sign-extend.
    NETWORK.iter().find(|(known, _)| *known == kind & 0xffff_ffff).map(|(_, name)| *name)
}

fn connect(path: &Path) -> Result<Connection, Fault> {
    let mut db = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    db.set_prepared_statement_cache_capacity(64);
    let mut since = Instant::now();
    db.busy_handler(Some(move |count: i32| {
        if count == 0 {
            since = Instant::now();
        }
        // Others hold it for as long as a commit takes, so begin with a shorter pause.
        std::thread::sleep(Duration::from_micros(50 << count.min(5)));
        since.elapsed() < BUSY_FOR
    }))?;
    Ok(db)
}

/// What the file contains.
struct Found {
    application_id: i64,
    version: i64,
    tables: i64,
}

fn probe(db: &Connection) -> Result<Found, Fault> {
    db.query_row(const { sql("probe") }, [], |row| {
        Ok(Found { application_id: row.get(0)?, version: row.get(1)?, tables: row.get(2)? })
    })
}

/// Checks whose file it is: ours, new, or an error.
fn check_owner(found: Found) -> Result<usize> {
    let empty = found.application_id == 0 && found.version == 0 && found.tables == 0;
    if !empty && found.application_id != APPLICATION_ID {
        return Err(Error::invalid("the database belongs to another program; leasehold did not change it"));
    }
    match usize::try_from(found.version) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the database has layout {}, written by a newer leasehold; this one knows layouts up to {}: \
                 update it, or use another file",
                found.version,
                MIGRATIONS.len()
            ),
        )),
    }
}

fn set_up(db: &Connection, max_pages: Option<u32>) -> Result<(), Fault> {
    // SQLite does not call the busy handler for this one.
    let began = Instant::now();
    let mode = loop {
        match db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0)) {
            Err(fault)
                if fault.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && began.elapsed() < BUSY_FOR =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => break other?,
        }
    };
    if mode != "wal" {
        // Treated like a file that cannot be written: without the log no promise here holds.
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY),
            None,
        ));
    }
    db.execute_batch(const { sql("setup") })?;
    if let Some(pages) = max_pages {
        db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    Ok(())
}

/// Upgrades the tables to the newest layout, in one transaction.
pub(super) fn migrate(db: &mut Connection) -> Result<()> {
    let undone = |fault| fault::error(fault, Outcome::Undone);
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(undone)?;
    // Ask again: another process may have been quicker.
    let version = check_owner(probe(&transaction).map_err(undone)?)?;
    for (done, migration) in MIGRATIONS.iter().enumerate().skip(version) {
        transaction.execute_batch(migration).map_err(undone)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(undone)?;
        transaction.pragma_update(None, "user_version", (done + 1) as i64).map_err(undone)?;
    }
    transaction.commit().map_err(undone)
}

/// Moves the times of a file that was last used under another boot to this boot's clock.
fn greet_boot(db: &mut Connection, boot_id: &str, clock: &dyn Clock) -> Result<(), Fault> {
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let known: Option<String> =
        rusqlite::OptionalExtension::optional(
            transaction.query_row(const { sql("host") }, [], |row| row.get(0)),
        )?;
    if known.as_deref() == Some(boot_id) {
        return Ok(());
    }
    // Read after the lock was taken, as in every transaction.
    let now = clock.now().as_micros() as i64;
    let wall_ms = (clock.wall_micros() / 1000) as i64;
    let spent_until = now.saturating_add(super::INFO.max_ttl.max(SPENT_FOR).as_micros() as i64);
    transaction.execute(const { sql("boot_leases") }, [now, wall_ms])?;
    transaction.execute(const { sql("boot_spent") }, [spent_until])?;
    transaction.execute(const { sql("boot_tickets_spent") }, [spent_until])?;
    transaction.execute(const { sql("boot_tickets") }, [])?;
    transaction.execute(const { sql("boot_keepers") }, [])?;
    transaction.execute(const { sql("boot_names") }, [])?;
    transaction.execute(const { sql("put_host") }, (boot_id, wall_ms))?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_boot_time_clock_is_noticed_a_monotonic_one_is_not() {
        assert!(!has_other_clock("monotonic           0         0\nboottime            0         0\n"));
        assert!(!has_other_clock("monotonic          10         0\nboottime            0         0\n"));
        assert!(has_other_clock("monotonic           0         0\nboottime       -86400         0\n"));
        assert!(has_other_clock("monotonic           0         0\nboottime            0         1\n"));
        assert!(!has_other_clock(""));
    }

    /// No test can pull the plug; this one makes sure that syncing stays on.
    #[test]
    fn every_commit_is_synced() {
        let directory = tempfile::tempdir().unwrap();
        let opened = open(&crate::backends::sqlite::Sqlite::builder(directory.path().join("x.db"))).unwrap();
        let pragma = |name: &str| -> String {
            let value = opened.db.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
            match value.unwrap() {
                rusqlite::types::Value::Integer(number) => number.to_string(),
                rusqlite::types::Value::Text(text) => text,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((pragma("journal_mode"), pragma("synchronous")), ("wal".into(), "2".into()));
    }

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        assert_eq!(network_fs(0x6969), Some("NFS"));
        assert_eq!(network_fs(0xff53_4d42), Some("CIFS"));
        assert_eq!(network_fs(0xffff_ffff_ff53_4d42), Some("CIFS"));
        assert_eq!(network_fs(0xef53), None, "ext4");
        assert_eq!(network_fs(0x0102_1994), None, "tmpfs");
    }
}
