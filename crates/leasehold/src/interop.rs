//! The encodings of SyncGuard, for programs that share locks and events with it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::name::{hex, normalise};

/// Hashes any string to 24 hex digits, to share events with SyncGuard. Short strings can be recovered from the hash.
/// leasehold itself logs [`digest_name`](crate::digest_name).
///
/// It combines three 32-bit rolling hashes over the UTF-16 units after NFC normalisation, equal to SyncGuard's
/// `hashKey`.
pub fn hash_name(text: &str) -> String {
    let (mut a, mut b, mut c) = (0u32, 0u32, 0u32);
    for unit in normalise(text).encode_utf16() {
        let unit = u32::from(unit);
        a = a.wrapping_mul(31).wrapping_add(unit);
        b = b.wrapping_mul(127).wrapping_add(unit.wrapping_mul(3));
        c = c.wrapping_mul(2047).wrapping_add(unit.wrapping_mul(7));
    }
    hex([a, b, c].into_iter().flat_map(|part| (0..8).rev().map(move |at| part >> (4 * at) & 15)))
}

/// SyncGuard's `makeStorageKey`: the key under which that library stores a name, to share locks with it. leasehold's
/// own layouts use [`Name::stored`](crate::Name::stored) instead, which never hashes.
///
/// The key is `prefix:name`. If that, plus `reserve` bytes for suffixes, is longer than the store's `limit`, it is
/// `prefix:` and the first 128 bits of the SHA-256 of `prefix:name`, in base64url.
///
/// # Errors
/// `InvalidArgument` if the name is empty, or if even the hashed form is too long.
pub fn storage_key(prefix: &str, name: &str, limit: usize, reserve: usize) -> Result<String> {
    const HASH_LEN: usize = 22;
    let name = normalise(name);
    if name.is_empty() {
        return Err(Error::invalid("the name must not be empty"));
    }
    let prefix = prefix.trim_end_matches(':');
    let lead = if prefix.is_empty() { String::new() } else { format!("{prefix}:") };
    let room = limit.saturating_sub(reserve);
    if lead.len() + name.len() <= room {
        return Ok(format!("{lead}{name}"));
    }
    if lead.len() + HASH_LEN > room {
        return Err(Error::invalid(format!(
            "the prefix has {} bytes, which leaves no room for a name in a key of {limit} bytes",
            prefix.len()
        )));
    }
    let digest = Sha256::digest(format!("{lead}{name}"));
    Ok(lead + &URL_SAFE_NO_PAD.encode(&digest[..16]))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// The cases of one list of SyncGuard's own test vectors.
    pub(crate) fn vectors(list: &str) -> Vec<serde_json::Value> {
        let all: serde_json::Value =
            serde_json::from_str(include_str!("../../../vectors/syncguard.json")).unwrap();
        let list = all[list].as_array().unwrap().clone();
        assert!(!list.is_empty());
        list
    }

    #[test]
    fn hash_name_equals_every_vector() {
        for case in vectors("hashKey") {
            assert_eq!(hash_name(case["input"].as_str().unwrap()), case["hash"].as_str().unwrap(), "{case}");
        }
    }

    fn check_storage_key(prefix: &str, name: &str, case: &serde_json::Value, field: &str) {
        let (limit, reserve) = (case["limit"].as_u64().unwrap(), case["reserve"].as_u64().unwrap());
        let key = storage_key(prefix, name, limit as usize, reserve as usize);
        match case[field].as_str() {
            Some(out) => assert_eq!(key.unwrap(), out, "{case}"),
            None => assert_eq!(key.unwrap_err().kind(), ErrorKind::InvalidArgument, "{case}"),
        }
    }

    #[test]
    fn storage_key_equals_every_vector() {
        for case in vectors("makeStorageKey") {
            check_storage_key(case["prefix"].as_str().unwrap(), case["key"].as_str().unwrap(), &case, "out");
        }
        for case in vectors("twoStepFence") {
            let prefix = case["prefix"].as_str().unwrap();
            check_storage_key(prefix, case["key"].as_str().unwrap(), &case, "base");
            let second = format!("fence:{}", case["base"].as_str().unwrap());
            check_storage_key(prefix, &second, &case, "fence");
        }
    }
}
