//! The exit codes, and the one table from error to exit code.
//!
//! The numbers are those of BSD's `sysexits.h` where it has one; 79 is the first it leaves free.

use std::fmt::Write;
use std::process::ExitCode;

use leasehold::ErrorKind;

/// How the program ends, unless it ran a command and passes on that command's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Success = 0,
    Risk = 1,
    Usage = 64,
    Store = 69,
    Internal = 70,
    Output = 74,
    Busy = 75,
    NotAllowed = 77,
    Lost = 79,
    Violated = 80,
    Vacuous = 81,
    Outlived = 82,
    CannotRun = 126,
    NotFound = 127,
}

impl Exit {
    const ALL: [Exit; 14] = [
        Exit::Success,
        Exit::Risk,
        Exit::Usage,
        Exit::Store,
        Exit::Internal,
        Exit::Output,
        Exit::Busy,
        Exit::NotAllowed,
        Exit::Lost,
        Exit::Violated,
        Exit::Vacuous,
        Exit::Outlived,
        Exit::CannotRun,
        Exit::NotFound,
    ];

    fn meaning(self) -> &'static str {
        match self {
            Exit::Success => "done",
            Exit::Risk => "doctor found a risk to safety",
            Exit::Usage => "wrong usage, or the store does not support this",
            Exit::Store => "the store cannot be reached or does not work",
            Exit::Internal => "a bug, or unexpected data in the store",
            Exit::Output => "the answer could not be written",
            Exit::Busy => "another client holds the lock, or the wait timed out",
            Exit::NotAllowed => "the store refused the credentials or the permission",
            Exit::Lost => "the lease was lost",
            Exit::Violated => "torture found a broken promise",
            Exit::Vacuous => "torture proved nothing, because too little happened",
            Exit::Outlived => "the lease was lost, and the command could not be killed in time",
            Exit::CannotRun => "the command to run cannot be run",
            Exit::NotFound => "the command to run was not found",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Timeout => Exit::Busy,
            ErrorKind::Lost => Exit::Lost,
            // `ErrorKind::Overloaded` means an overloaded store, not a held lock. Scripts tell 75 from 69, and must
            // not take a broken store for contention.
            ErrorKind::Unavailable
            | ErrorKind::Overloaded
            | ErrorKind::NetworkTimeout
            | ErrorKind::RateLimited => Exit::Store,
            ErrorKind::AuthFailed => Exit::NotAllowed,
            // Deadlock is here because 75 invites a retry, which would wait for itself again.
            ErrorKind::InvalidArgument
            | ErrorKind::Mismatch
            | ErrorKind::Deadlock
            | ErrorKind::Unsupported => Exit::Usage,
            // No command cancels a call and then reports it, so an `Aborted` that arrives here is a bug; so is an
            // unknown kind.
            ErrorKind::Aborted | ErrorKind::Internal | _ => Exit::Internal,
        }
    }
}

/// The codes and their meanings, for `--help`.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit status:");
    for exit in Exit::ALL {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {:<3} {}", exit as u8, exit.meaning());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_the_code_that_is_documented() {
        use ErrorKind::*;
        for (kind, code) in [
            (InvalidArgument, 64),
            (Mismatch, 64),
            (Deadlock, 64),
            (Unsupported, 64),
            (Unavailable, 69),
            (Overloaded, 69),
            (NetworkTimeout, 69),
            (RateLimited, 69),
            (Aborted, 70),
            (Internal, 70),
            (Timeout, 75),
            (AuthFailed, 77),
            (Lost, 79),
        ] {
            assert_eq!(Exit::from(kind) as u8, code, "{kind:?}");
            assert!(Exit::ALL.contains(&Exit::from(kind)), "{kind:?} has a code that --help does not list");
        }
    }
}
