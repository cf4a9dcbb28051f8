//! Lease ids: the caller makes one before the first call, and it is the only proof of holding a lease.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::chance;
use crate::error::{Error, Result};

/// The id of one acquisition: 128 random bits as 22 base64url characters.
///
/// The caller makes a new id for every acquisition. It is a secret: any process that has it can renew and release the
/// lease. `Debug` hides it; [`expose`](LeaseId::expose) shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId([u8; LeaseId::LEN]);

impl LeaseId {
    /// Characters in an id.
    pub const LEN: usize = 22;

    /// Makes a new id from the system's random generator.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        chance::fill(&mut bytes);
        let mut text = [b'A'; LeaseId::LEN];
        let written = URL_SAFE_NO_PAD.encode_slice(bytes, &mut text);
        debug_assert!(matches!(written, Ok(LeaseId::LEN)));
        LeaseId(text)
    }

    /// Reads an id from its 22 characters.
    ///
    /// # Errors
    /// `InvalidArgument` unless the text is exactly 22 characters of `A–Z a–z 0–9 - _`.
    pub fn parse(text: &str) -> Result<Self> {
        let bytes: [u8; LeaseId::LEN] = text.as_bytes().try_into().map_err(|_| malformed())?;
        let ok = bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if ok { Ok(LeaseId(bytes)) } else { Err(malformed()) }
    }

    /// Whether the text has the form of an id.
    pub fn is_valid(text: &str) -> bool {
        LeaseId::parse(text).is_ok()
    }

    /// A stand-in for this id where the id must not be shown: its SHA-256, cut to the form of an id. Each id has its
    /// own, and the id cannot be computed back from it.
    #[must_use]
    pub fn digest(&self) -> LeaseId {
        let digest = Sha256::new_with_prefix("leasehold lease id ").chain_update(self.0).finalize();
        let mut text = [b'A'; LeaseId::LEN];
        let written = URL_SAFE_NO_PAD.encode_slice(&digest[..16], &mut text);
        debug_assert!(matches!(written, Ok(LeaseId::LEN)));
        LeaseId(text)
    }

    /// 24 hex digits that stand for this id in logs, events and lookups; the id cannot be computed back from them.
    /// They are the hash of its [`digest`](LeaseId::digest).
    #[must_use]
    pub fn hash(&self) -> String {
        crate::name::digest_name(self.digest().expose())
    }

    /// The characters of the id, for the store and for passing the lease to another process.
    pub fn expose(&self) -> &str {
        // All bytes were checked or made as ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

fn malformed() -> Error {
    Error::invalid("malformed lease id: it must be exactly 22 characters of A-Z a-z 0-9 - _")
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId(…)")
    }
}

impl FromStr for LeaseId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        LeaseId::parse(text)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for LeaseId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.expose())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for LeaseId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        LeaseId::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_validator_agrees_with_the_vectors() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../vectors/syncguard.json")).unwrap();
        for case in vectors["validateLockId"].as_array().unwrap() {
            let text = case["lockId"].as_str().unwrap();
            assert_eq!(LeaseId::is_valid(text), case["ok"].as_bool().unwrap(), "{text:?}");
        }
    }

    #[test]
    fn a_digest_is_an_id_of_its_own_and_always_the_same() {
        let id = LeaseId::random();
        assert_eq!(id.digest(), id.digest());
        assert_ne!(id.digest(), id);
        assert_ne!(id.digest(), LeaseId::random().digest());
        assert!(LeaseId::is_valid(id.digest().expose()));
    }

    #[test]
    fn random_ids_are_valid_different_and_hidden_in_debug() {
        let (a, b) = (LeaseId::random(), LeaseId::random());
        assert_ne!(a, b);
        assert_eq!(LeaseId::parse(a.expose()).unwrap(), a);
        assert!(!format!("{a:?}").contains(a.expose()));
    }
}
