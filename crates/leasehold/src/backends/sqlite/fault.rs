//! From what SQLite and the file system report to the library's errors: one table.

use std::io;

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind};

/// What went wrong in SQLite, on its way to becoming an [`Error`].
pub(super) type Fault = rusqlite::Error;

/// What became of the work when the fault struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was rolled back, or never begun.
    Undone,
    /// The commit itself failed: it may be found on disk after a crash, or not.
    Unknown,
}

/// The error of a fault. Neither SQL nor names nor ids are in its text.
pub(super) fn error(fault: Fault, outcome: Outcome) -> Error {
    let (kind, what) = judge(&fault);
    let after = match outcome {
        Outcome::Undone => "nothing was changed",
        Outcome::Unknown => "whether the change took effect is unknown",
    };
    // A commit that failed is worth repeating whatever the reason: the answer is then known.
    let kind = match (outcome, kind) {
        (Outcome::Unknown, ErrorKind::Internal) => ErrorKind::Unavailable,
        _ => kind,
    };
    let error = Error::new(kind, format!("{what}; {after}"));
    match fault {
        // The code in words. Other variants may quote SQL or values.
        rusqlite::Error::SqliteFailure(code, _) => error.with_source(code),
        _ => error,
    }
}

/// Whether there was no room to write, or the system did not let us.
pub(super) fn is_full(fault: &Fault) -> bool {
    use rusqlite::ffi::{SQLITE_FULL, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_WRITE};
    fault
        .sqlite_error()
        .is_some_and(|e| matches!(e.extended_code, SQLITE_FULL | SQLITE_IOERR_WRITE | SQLITE_IOERR_SHMSIZE))
}

fn judge(fault: &Fault) -> (ErrorKind, &'static str) {
    use ErrorKind::{AuthFailed, Internal, InvalidArgument, Overloaded, Unavailable};
    match fault.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => {
            (Overloaded, "another process kept the database locked for too long")
        }
        Some(ErrorCode::DiskFull) => (Unavailable, "there is no room for the database on its disk"),
        Some(ErrorCode::SystemIoFailure) => (Unavailable, "the database cannot be read or written"),
        Some(ErrorCode::ReadOnly) => (Unavailable, "the database cannot be written: it is read only"),
        Some(ErrorCode::CannotOpen) => (Unavailable, "the database cannot be opened"),
        Some(ErrorCode::OutOfMemory) => (Unavailable, "there is no memory left for the database"),
        Some(ErrorCode::PermissionDenied) => (AuthFailed, "the database may not be opened by this user"),
        Some(ErrorCode::NotADatabase) => {
            (InvalidArgument, "the file is not a SQLite database; it is left as it is")
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            (Internal, "the database is damaged; keep it for inspection and start with a new file")
        }
        _ => (Internal, "the database holds or answers something that leasehold did not write"),
    }
}

/// A stored value that leasehold cannot have written.
pub(super) fn foreign(column: usize, what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, what.into())
}

/// The error of a failed system call on the way to opening a database.
pub(super) fn system(what: &'static str, error: impl Into<io::Error>) -> Error {
    let error: io::Error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::AuthFailed,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, what).with_source(error)
}
