//! Turns the errors of SQLite and the file system into the library's errors, in one table.

use std::io;

use rusqlite::ErrorCode;

use crate::error::{Error, ErrorKind};

/// An error of SQLite, before it becomes an [`Error`].
pub(super) type Fault = rusqlite::Error;

/// What became of the work when the fault happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was rolled back, or never begun.
    Undone,
    /// The commit itself failed: after a crash the work may be on disk or not.
    Unknown,
}

/// The error for a fault. Its text contains no SQL, names or ids.
pub(super) fn error(fault: Fault, outcome: Outcome) -> Error {
    let (kind, what) = judge(&fault);
    let after = match outcome {
        Outcome::Undone => "nothing was changed",
        Outcome::Unknown => "whether the change took effect is unknown",
    };
    // A failed commit is worth repeating whatever the reason: the repeat shows the outcome.
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

/// Whether there was no room to write, or the system refused to write.
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
        Some(ErrorCode::DiskFull) => (Unavailable, "the disk of the database is full"),
        Some(ErrorCode::SystemIoFailure) => (Unavailable, "cannot read or write the database"),
        Some(ErrorCode::ReadOnly) => (Unavailable, "the database cannot be written: it is read only"),
        Some(ErrorCode::CannotOpen) => (Unavailable, "cannot open the database"),
        Some(ErrorCode::OutOfMemory) => (Unavailable, "there is no memory left for the database"),
        Some(ErrorCode::PermissionDenied) => (AuthFailed, "this user has no permission to open the database"),
        Some(ErrorCode::NotADatabase) => {
            (InvalidArgument, "the file is not a SQLite database; check the path")
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            (Internal, "the database is damaged; keep it for inspection and start with a new file")
        }
        _ => (Internal, "the database holds or answers something that leasehold did not write"),
    }
}

/// The fault for a stored value that leasehold cannot have written.
pub(super) fn foreign(column: usize, what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, what.into())
}

/// The error for a failed system call while opening a database.
pub(super) fn system(what: &'static str, error: impl Into<io::Error>) -> Error {
    let error: io::Error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::AuthFailed,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, what).with_source(error)
}
