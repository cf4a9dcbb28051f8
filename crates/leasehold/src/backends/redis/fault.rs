//! Turns the errors of Redis and its driver into the library's errors, in one table.

use redis::{ErrorKind as Reported, RedisError};

use crate::error::{Error, ErrorKind};

/// Error codes that servers before version 7 hide inside the text of a script error.
const CODES: &[&str] =
    &["FOREIGN", "WRONGTYPE", "OOM", "MISCONF", "READONLY", "NOREPLICAS", "NOPERM", "MASTERDOWN", "LOADING"];

/// The error for a failed call. Its text contains no names, ids, addresses or passwords.
pub(super) fn error(fault: &RedisError) -> Error {
    told(fault, judge(fault))
}

/// The error when no connection could be made: the call was certainly not sent.
pub(super) fn connecting(fault: &RedisError) -> Error {
    let verdict = match fault.kind() {
        Reported::Io | Reported::Client | Reported::Parse if fault.is_timeout() => (
            ErrorKind::Unavailable,
            "Redis did not answer a new connection; check that it is not overloaded, and that this port is Redis",
        ),
        Reported::Io | Reported::Client | Reported::Parse => {
            (ErrorKind::Unavailable, "cannot reach Redis; check the host and port, and that it is running")
        }
        _ => judge(fault),
    };
    told(fault, verdict)
}

/// Whether a server closed a new connection, or began with something that Redis never says.
pub(super) fn hung_up(fault: &RedisError) -> bool {
    let closed = fault.is_connection_dropped() && !fault.is_connection_refusal();
    closed || fault.kind() == Reported::Parse
}

/// The error for a server that hung up on a new connection with these words.
pub(super) fn refused(fault: &RedisError, words: &str) -> Error {
    let what = if words.contains("max number of clients") {
        "Redis has no connection left; raise `maxclients`, or use fewer clients"
    } else {
        "Redis closed the connection before it answered; check whether this port needs TLS, and whether `maxclients` is reached"
    };
    told(fault, (ErrorKind::Unavailable, what))
}

/// The error for a database that cannot be selected.
pub(super) fn selecting(fault: &RedisError) -> Error {
    let detail = fault.detail().unwrap_or_default();
    match code(fault).as_deref() {
        Some("ERR") if detail.contains("cluster") => one_of_a_cluster(),
        Some("ERR") => Error::invalid(
            "this Redis refuses the database number of the URL; look at `databases` in its configuration",
        ),
        _ => connecting(fault),
    }
}

/// The error for a cluster node that is addressed as a single server.
pub(super) fn one_of_a_cluster() -> Error {
    Error::invalid(
        "this Redis is a node of a cluster and serves only a part of the names; use redis-cluster:// without a \
         database number",
    )
}

/// Whether the command is not available to this user: not allowed, renamed or switched off.
pub(super) fn is_not_allowed(fault: &RedisError) -> bool {
    matches!(code(fault).as_deref(), Some("NOPERM" | "ERR"))
}

/// Whether the server says that it is a replica.
pub(super) fn is_replica(fault: &RedisError) -> bool {
    matches!(code(fault).as_deref(), Some("READONLY" | "MASTERDOWN"))
}

fn told(fault: &RedisError, (kind, what): (ErrorKind, &'static str)) -> Error {
    let error = Error::new(kind, what);
    // The server's text may quote keys; the driver's text about a connection does not.
    match fault.kind() {
        Reported::Io => error.with_source(fault.clone()),
        _ => match code(fault) {
            Some(code) => error.with_source(format!("Redis says {code}")),
            None => error,
        },
    }
}

/// The code of the server's error.
pub(super) fn code(fault: &RedisError) -> Option<String> {
    let code = fault.code()?;
    let detail = fault.detail().unwrap_or_default();
    // `ERR Error running script (call to f_…): @user_script:1: OOM command not allowed …`
    let inner =
        CODES.iter().find(|inner| code == "ERR" && detail.split([' ', ':']).any(|word| word == **inner));
    Some(inner.map_or(code, |inner| inner).to_owned())
}

/// Whether the next call needs a new connection.
pub(super) fn breaks_connection(fault: &RedisError) -> bool {
    // A server that does not answer may be half dead; the primary of a replica may be elsewhere.
    matches!(fault.kind(), Reported::Io | Reported::Parse | Reported::AuthenticationFailed | Reported::Client)
        || is_replica(fault)
        || code(fault).as_deref() == Some("NOAUTH")
}

/// Whether another node of a cluster may have taken over.
pub(super) fn asks_for_next(fault: &RedisError) -> bool {
    breaks_connection(fault) || code(fault).as_deref() == Some("CLUSTERDOWN")
}

fn judge(fault: &RedisError) -> (ErrorKind, &'static str) {
    use ErrorKind::{
        AuthFailed, Internal, InvalidArgument, NetworkTimeout, Overloaded, Unavailable, Unsupported,
    };
    if fault.is_timeout() {
        return (NetworkTimeout, "Redis did not answer in time; whether the call took effect is unknown");
    }
    match fault.kind() {
        Reported::Io | Reported::Client => {
            (Unavailable, "the connection to Redis failed; a call under way may or may not have taken effect")
        }
        Reported::AuthenticationFailed => (AuthFailed, "Redis rejected the user name or password"),
        Reported::InvalidClientConfig => (InvalidArgument, "the address or its options are not valid"),
        Reported::MasterNameNotFoundBySentinel => (Unavailable, "no sentinel knows a primary of this name"),
        // The driver reports this when the connection ends in the middle of an answer.
        Reported::Parse => {
            (Unavailable, "the answer of Redis broke off; the call may or may not have taken effect")
        }
        Reported::UnexpectedReturnType => {
            (Internal, "Redis answered something that leasehold does not understand")
        }
        _ => match code(fault).as_deref().unwrap_or_default() {
            "FOREIGN" | "WRONGTYPE" => (
                Internal,
                "the keys of this name hold something that leasehold did not write; nothing was changed",
            ),
            "NEWER" => (
                Unsupported,
                "this name was written by a newer leasehold; update this one; nothing was changed",
            ),
            "OOM" => (Unavailable, "Redis has reached its maxmemory; nothing was changed"),
            "MISCONF" => (Unavailable, "Redis cannot save to disk and refuses writes; nothing was changed"),
            "READONLY" => (Unavailable, "this Redis is a read-only replica; nothing was changed"),
            "NOREPLICAS" => {
                (Unavailable, "Redis has too few replicas and refuses writes; nothing was changed")
            }
            "MASTERDOWN" => (Unavailable, "this replica has lost its primary"),
            "LOADING" => (Overloaded, "Redis is loading its data and answers soon"),
            "BUSY" => (Overloaded, "Redis is busy with a script of another client"),
            "TRYAGAIN" => (Overloaded, "the keys are moving to another node of the cluster; try again"),
            "CLUSTERDOWN" => (Unavailable, "the cluster is down, or no node serves this part of it"),
            "MOVED" | "ASK" => {
                (Unavailable, "this is a node of a cluster; use redis-cluster: to reach all of them")
            }
            "NOAUTH" | "WRONGPASS" => (AuthFailed, "Redis rejected the user name or password"),
            "NOPERM" => (AuthFailed, "the Redis user lacks a permission; docs/redis.md lists what is needed"),
            "ERR" if fault.detail().is_some_and(|detail| detail.contains("cluster support disabled")) => (
                InvalidArgument,
                "this Redis is not a node of a cluster; use redis:// instead of redis-cluster://",
            ),
            _ => (Internal, "Redis answered with an error that leasehold did not expect"),
        },
    }
}

/// The error for an answer that no script of ours gives.
pub(super) fn strange() -> Error {
    Error::new(ErrorKind::Internal, "Redis answered something that leasehold does not understand")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> RedisError {
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn half_an_answer_is_a_fault_of_the_connection() {
        let half = redis::parse_redis_value(b"*3\r\n:1\r\n$5\r\nab").unwrap_err();
        assert!(breaks_connection(&half));
        assert_eq!(error(&half).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn server_errors_map_to_the_right_kind_and_never_to_contention() {
        use ErrorKind::*;
        for (text, kind) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable),
            ("READONLY You can't write against a read only replica.", Unavailable),
            ("LOADING Redis is loading the dataset in memory", Overloaded),
            ("MISCONF Redis is configured to save RDB snapshots", Unavailable),
            ("NOAUTH Authentication required.", AuthFailed),
            ("WRONGPASS invalid username-password pair", AuthFailed),
            ("NOPERM this user has no permissions", AuthFailed),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Internal),
            ("CLUSTERDOWN The cluster is down", Unavailable),
            ("MOVED 3999 127.0.0.1:6381", Unavailable),
            ("ASK 3999 127.0.0.1:6381", Unavailable),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Overloaded),
            ("MASTERDOWN Link with MASTER is down", Unavailable),
            ("BUSY Redis is busy running a script.", Overloaded),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable),
            ("FOREIGN the keys of the name", Internal),
            ("NEWER the key of the name", Unsupported),
            ("ERR user_script:77: FOREIGN a lease that leasehold did not write script: f3", Internal),
            ("ERR Error running script (call to f_1): @user_script:9: OOM command not allowed", Unavailable),
            ("ERR Error running script (call to f_1): @user_script:9: READONLY You can't write", Unavailable),
            ("ERR This instance has cluster support disabled", InvalidArgument),
            ("ERR something else", Internal),
        ] {
            let error = error(&said(text));
            assert_eq!(error.kind(), kind, "{text}");
            assert!(!format!("{error:?}").contains("127.0.0.1"));
        }
    }
}
