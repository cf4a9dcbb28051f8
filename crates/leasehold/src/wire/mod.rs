//! The HTTP format between a leasehold server and its clients: bodies, codes, and how names become paths.
//!
//! Requests reject unknown fields, so that a misspelt option is an error. Answers ignore them, so that an older client
//! understands a newer server. All times are whole milliseconds.

// What belongs here: what client and server must agree on, and nothing that only one of them needs. Before changing
// anything here: `cargo test -p leasehold --all-features --test json` and `cargo test -p leasehold-server`. A change of
// what is sent also belongs in `docs/server.md`.

mod answers;
mod requests;

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::backend::{Gone, Mode, NewNote};
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;

pub use answers::{
    Acquired, Busy, Capabilities, FenceCurrent, FenceStale, Findings, Found, Holder, LeaseGone, Listed, Lock,
    Note, Problem, Released, Renewed, Revoked, Swept, Waiter,
};
pub use requests::{Acquire, CheckFence, Lookup, NoFields, Object, Release, Renew, RenewMany, Revoke};

/// The longest wait of one request, in milliseconds: below the minute after which many proxies give up on a silent
/// answer.
pub const MAX_WAIT_MS: u64 = 50_000;

/// The most leases in one batch of renewals.
pub const MAX_BATCH: usize = 512;

/// The characters that a path segment may contain unescaped. A dot is not among them, because `.` and `..` have a
/// meaning of their own.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// A name as one segment of a path.
pub fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// How a lease shares its name; `permit` goes with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ModeName {
    /// One holder alone.
    Exclusive,
    /// Together with other shared leases.
    Shared,
    /// One permit out of `limit`.
    Permit,
}

/// Splits a mode into the two fields of the wire format.
pub fn mode_fields(mode: Mode) -> (ModeName, Option<u32>) {
    match mode {
        Mode::Exclusive => (ModeName::Exclusive, None),
        Mode::Shared => (ModeName::Shared, None),
        Mode::Permit { limit } => (ModeName::Permit, Some(limit)),
    }
}

/// Joins those two fields into a mode.
///
/// # Errors
/// `InvalidArgument` for a permit without a limit, or a limit without a permit.
pub fn mode_of(mode: ModeName, limit: Option<u32>) -> Result<Mode> {
    match (mode, limit) {
        (ModeName::Exclusive, None) => Ok(Mode::Exclusive),
        (ModeName::Shared, None) => Ok(Mode::Shared),
        (ModeName::Permit, Some(limit)) if limit > 0 => Ok(Mode::Permit { limit }),
        (ModeName::Permit, _) => Err(Error::invalid("mode permit needs a limit of at least 1")),
        (_, Some(_)) => Err(Error::invalid("limit goes with mode permit only")),
    }
}

/// Joins the two fields of a note.
///
/// # Errors
/// `InvalidArgument` for a note that is too long or contains a NUL character, and for a revision without a note.
pub fn note_of(note: Option<String>, revision: Option<u64>) -> Result<Option<NewNote>> {
    match (note, revision) {
        (Some(text), revision) => NewNote::new(text, revision.unwrap_or(0)).map(Some),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::invalid("note_revision goes with note only")),
    }
}

/// The code when a revocation names one lease and that lease is gone: nothing has changed.
pub const HOLDER_CHANGED: &str = "HOLDER_CHANGED";

/// The code of the answer 409 to the check of a fence that is below the highest seen.
pub const STALE_FENCE: &str = "STALE_FENCE";

/// The code of an error in an answer.
pub fn code(kind: ErrorKind) -> &'static str {
    CODES.iter().find(|(known, _)| *known == kind).map_or("INTERNAL", |(_, code)| code)
}

/// All codes that stand for a kind of error. A server has a few more, of its own.
pub fn codes() -> impl Iterator<Item = &'static str> {
    CODES.iter().map(|(_, code)| *code)
}

/// The kind of error that a code stands for.
pub fn kind(code: &str) -> Option<ErrorKind> {
    CODES.iter().find(|(_, known)| *known == code).map(|(kind, _)| *kind)
}

const CODES: &[(ErrorKind, &str)] = &[
    (ErrorKind::InvalidArgument, "INVALID_ARGUMENT"),
    (ErrorKind::Unavailable, "UNAVAILABLE"),
    (ErrorKind::Overloaded, "BUSY_RETRY"),
    (ErrorKind::NetworkTimeout, "NETWORK_TIMEOUT"),
    (ErrorKind::AuthFailed, "AUTH_FAILED"),
    (ErrorKind::RateLimited, "RATE_LIMITED"),
    (ErrorKind::Timeout, "TIMEOUT"),
    (ErrorKind::Aborted, "ABORTED"),
    (ErrorKind::Lost, "LOST"),
    (ErrorKind::Mismatch, "MISMATCH"),
    (ErrorKind::Deadlock, "DEADLOCK"),
    (ErrorKind::Unsupported, "UNSUPPORTED"),
    (ErrorKind::Internal, "INTERNAL"),
];

/// Why a lease is gone, from the word that [`Gone::as_str`] prints.
pub fn gone(text: &str) -> Option<Gone> {
    [Gone::Expired, Gone::NotFound, Gone::Superseded, Gone::Revoked]
        .into_iter()
        .find(|gone| gone.as_str() == text)
}

/// Whole milliseconds, rounded down: for the time that a holder may rely on.
pub fn floor_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up: for the time that a caller asks for.
pub fn ceil_ms(time: Duration) -> u64 {
    floor_ms(time).saturating_add(u64::from(!time.subsec_nanos().is_multiple_of(1_000_000)))
}

/// Reads a lease id from a body.
///
/// # Errors
/// `InvalidArgument` if it is missing or malformed.
pub fn lease_id(text: &str) -> Result<LeaseId> {
    if text.is_empty() {
        return Err(Error::invalid("lease_id required"));
    }
    LeaseId::parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_holds_no_slash_and_no_dot() {
        assert_eq!(segment("a/../b c"), "a%2F%2E%2E%2Fb%20c");
        assert_eq!(segment("é%"), "%C3%A9%25");
    }

    #[test]
    fn names_and_fences_match_the_sdk_vectors() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../../sdk/vectors.json")).unwrap();
        let pure = &vectors["pure"];
        for case in pure["segments"].as_array().unwrap() {
            let name = crate::name::Name::new(case["name"].as_str().unwrap()).unwrap();
            assert_eq!(segment(name.as_str()), case["segment"].as_str().unwrap());
        }
        for name in pure["names_refused"].as_array().unwrap() {
            assert!(crate::name::Name::new(name.as_str().unwrap()).is_err(), "{name}");
        }
        for case in pure["fences"].as_array().unwrap() {
            let fence = crate::fence::Fence::new(case["number"].as_u64().unwrap());
            assert_eq!(fence.to_string(), case["text"].as_str().unwrap());
        }
    }

    #[test]
    fn times_for_holders_are_rounded_down_and_what_is_asked_for_up() {
        let time = Duration::from_micros(1_500);
        assert_eq!((floor_ms(time), ceil_ms(time)), (1, 2));
        assert_eq!(ceil_ms(Duration::from_millis(7)), 7);
    }

    #[test]
    fn every_kind_has_a_code_of_its_own() {
        for (expected, text) in CODES {
            assert_eq!(kind(text), Some(*expected));
            assert_eq!(code(*expected), *text);
        }
    }

    /// Checks that what is read, written and read again stays the same.
    fn same<T: serde::Serialize + serde::de::DeserializeOwned>(input: &[u8]) {
        let Ok(one) = serde_json::from_slice::<T>(input) else { return };
        let text = serde_json::to_string(&one).expect("it is written");
        let two: T = serde_json::from_str(&text).expect("what was written is read");
        assert_eq!(serde_json::to_string(&two).expect("it is written"), text);
    }

    #[test]
    fn fuzz_wire_requests() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/wire_requests.txt"), |input| {
            same::<Acquire>(input);
            same::<Renew>(input);
            same::<RenewMany>(input);
            same::<Release>(input);
            same::<Revoke>(input);
            same::<Lookup>(input);
            same::<CheckFence>(input);
        });
    }

    #[test]
    fn fuzz_wire_answers() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/wire_answers.txt"), |input| {
            same::<Acquired>(input);
            same::<Busy>(input);
            same::<Renewed>(input);
            same::<LeaseGone>(input);
            same::<Released>(input);
            same::<Listed>(input);
            same::<Found>(input);
            same::<Capabilities>(input);
            same::<Findings>(input);
            same::<FenceCurrent>(input);
            same::<FenceStale>(input);
        });
    }
}
