//! Turns the errors of PostgreSQL, the driver and the network into the library's errors, in one table.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use tokio_postgres::error::DbError;

use crate::error::{Error, ErrorKind};

/// An error of the driver, before it becomes an [`Error`].
pub(crate) type Fault = tokio_postgres::Error;

/// What the server said: its code and its message. Details, hints and queries may quote values, so they are left out.
#[derive(Debug)]
struct Said {
    code: String,
    message: String,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)
    }
}

impl StdError for Said {}

/// The code of the server's error answer behind this error.
pub(crate) fn code(error: &Error) -> Option<&str> {
    error.source()?.downcast_ref::<Said>().map(|said| said.code.as_str())
}

const UNREACHABLE: &str =
    "cannot reach the PostgreSQL server; check the host and port, and that it is running";

/// The error for a statement that failed, or got no answer.
pub(crate) fn statement(fault: Fault) -> Error {
    match fault.as_db_error() {
        Some(said) => told(said),
        // Nobody knows whether it was sent or done.
        None => without_words(fault),
    }
}

/// The error for a connection that could not be made. Its call was not sent, so this is never
/// [`ErrorKind::NetworkTimeout`].
pub(crate) fn connecting(fault: Fault) -> Error {
    if let Some(said) = fault.as_db_error() {
        return told(said);
    }
    // The driver has only this text for these.
    match fault.to_string().as_str() {
        "authentication error" | "invalid configuration" => Error::new(
            ErrorKind::AuthFailed,
            "the PostgreSQL server asks for credentials that the URL does not have; check that it has a password",
        )
        .with_source(fault),
        "error performing TLS handshake" => Error::new(
            ErrorKind::Unavailable,
            "cannot set up TLS with the PostgreSQL server; check `sslmode` and `sslrootcert`, and that the certificate is for this host",
        )
        .with_source(fault),
        _ => Error::new(ErrorKind::Unavailable, UNREACHABLE).with_source(fault),
    }
}

/// The error for a server that could not be reached at all.
pub(crate) fn unreachable(error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, UNREACHABLE).with_source(error)
}

/// The error for a URL that the driver does not understand. It repeats only text that cannot be part of the URL.
pub(crate) fn url(fault: &Fault) -> Error {
    let why = fault.source().map(ToString::to_string).unwrap_or_default();
    match why.strip_prefix("invalid value for option ") {
        Some(option) => Error::invalid(format!("invalid value for URL option {option}")),
        None => Error::invalid(
            "cannot parse the PostgreSQL URL; its form is postgres://user:password@host:port/database?option=value",
        ),
    }
}

/// The error for an error answer of the server.
fn told(said: &DbError) -> Error {
    let (kind, what) = judge(said.code().code());
    Error::new(kind, what)
        .with_source(Said { code: said.code().code().to_owned(), message: said.message().to_owned() })
}

/// The error for a statement without an answer.
fn without_words(fault: Fault) -> Error {
    let mut source = fault.source();
    let mut kind = ErrorKind::Unavailable;
    while let Some(error) = source {
        if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::TimedOut) {
            kind = ErrorKind::NetworkTimeout;
        }
        source = error.source();
    }
    let what = "the connection to the PostgreSQL server broke; whether the call took effect is unknown";
    Error::new(kind, what).with_source(fault)
}

/// What a code of the server means for the caller.
fn judge(code: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{
        AuthFailed, Internal, InvalidArgument, NetworkTimeout, Overloaded, Unavailable, Unsupported,
    };
    match code {
        "28P01" => (AuthFailed, "the PostgreSQL server rejected the user or password"),
        "42501" => (
            AuthFailed,
            "the PostgreSQL user lacks a privilege that is needed here; docs/postgres-advisory.md and docs/postgres.md list them",
        ),
        // A statement that was prepared in another session, or by another client in this one.
        "26000" | "42P05" => (
            Unsupported,
            "a pooler stands before the PostgreSQL server and mixes up sessions; set its pool_mode to session, connect \
             to the server's own port, or use the store postgres:// with pooler=transaction",
        ),
        "3D000" => (InvalidArgument, "the PostgreSQL server has no such database; check the path of the URL"),
        "53300" => (
            Unavailable,
            "the PostgreSQL server has no connection left; raise max_connections or use fewer clients",
        ),
        "53100" => (Unavailable, "the PostgreSQL server has no room left on its disk"),
        "53200" => (
            Unavailable,
            "the PostgreSQL server has no memory left, for locks perhaps; raise max_locks_per_transaction",
        ),
        "55P03" => (Overloaded, "PostgreSQL did not get a lock in time (lock_timeout)"),
        "40001" | "40P01" => (
            Overloaded,
            "PostgreSQL rolled the call back because of a conflict with other sessions; try again",
        ),
        "57014" => {
            (NetworkTimeout, "PostgreSQL cancelled the call (statement_timeout, or a request to cancel it)")
        }
        "57P01" | "57P02" => {
            (Unavailable, "the PostgreSQL session was ended, or the server is shutting down")
        }
        "57P03" => (Unavailable, "the PostgreSQL server is starting, recovering or shutting down"),
        "57P05" => (Unavailable, "PostgreSQL ended the session because it was idle (idle_session_timeout)"),
        "25006" => {
            (Unavailable, "the PostgreSQL server is read only, a standby perhaps; connect to the primary")
        }
        "25P03" => (Unavailable, "PostgreSQL ended the session (idle_in_transaction_session_timeout)"),
        "3F000" | "42P01" | "42883" | "42703" => {
            (Internal, "leasehold's tables or functions are missing or changed; run the setup again")
        }
        _ => match code.get(..2) {
            Some("28") => (AuthFailed, "the PostgreSQL server refused the login; check pg_hba.conf"),
            Some("08") => {
                (Unavailable, "the connection to the PostgreSQL server broke, or was refused by a pooler")
            }
            Some("53") => (Unavailable, "the PostgreSQL server is out of a resource; see its log"),
            Some("57") => (Unavailable, "an operator stopped the call on the PostgreSQL server"),
            Some("58") => (Unavailable, "the PostgreSQL server has trouble with its disk or system"),
            Some("40") => (Overloaded, "PostgreSQL rolled the call back; try again"),
            _ => (Internal, "PostgreSQL answered with an error that leasehold did not expect"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_kinds_that_callers_act_on() {
        use ErrorKind::*;
        for (code, kind) in [
            ("28000", AuthFailed),
            ("28P01", AuthFailed),
            ("42501", AuthFailed),
            ("3D000", InvalidArgument),
            ("53300", Unavailable),
            ("53100", Unavailable),
            ("57P01", Unavailable),
            ("57P02", Unavailable),
            ("57P03", Unavailable),
            ("08006", Unavailable),
            ("58030", Unavailable),
            ("25006", Unavailable),
            ("55P03", Overloaded),
            ("40001", Overloaded),
            ("40P01", Overloaded),
            ("57014", NetworkTimeout),
            ("26000", Unsupported),
            ("42P01", Internal),
            ("22012", Internal),
            ("XX000", Internal),
            ("", Internal),
        ] {
            assert_eq!(judge(code).0, kind, "{code}");
        }
    }
}
