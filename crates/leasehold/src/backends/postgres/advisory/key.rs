//! Advisory keys: how PostgreSQL's advisory locks know a name, equal to the keys of .NET's DistributedLock.

use std::fmt;
use std::str::FromStr;

use sha1::{Digest as _, Sha1};

use crate::error::{Error, Result};

/// The most characters that fit into a key unchanged: nine of seven bits in 63.
const MAX_ASCII: usize = 9;

/// The key of an advisory lock, in one of two spaces that never overlap: 64-bit numbers and pairs of 32-bit numbers.
///
/// [`from_name`](AdvisoryKey::from_name) turns names into keys. A service that uses .NET's DistributedLock with the
/// same name gets the same key. A key prints as a name that stands for exactly this key.
///
/// ```
/// use leasehold::backends::postgres::AdvisoryKey;
///
/// # fn main() -> leasehold::Result<()> {
/// let key = AdvisoryKey::from_name("nightly-report", true)?;
/// // In psql: SELECT pg_advisory_lock(…);
/// assert!(matches!(key, AdvisoryKey::Bigint(_)));
/// assert_eq!(AdvisoryKey::from_name(&AdvisoryKey::Bigint(42).to_string(), false)?, AdvisoryKey::Bigint(42));
/// assert_eq!(AdvisoryKey::Pair(3, -1).to_string(), "00000003,ffffffff");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdvisoryKey {
    /// As in `pg_advisory_lock(bigint)`.
    Bigint(i64),
    /// As in `pg_advisory_lock(int, int)`.
    Pair(i32, i32),
}

impl AdvisoryKey {
    /// The key of a name:
    /// 1. up to nine ASCII characters: the characters themselves, seven bits each, as a pair;
    /// 2. sixteen hexadecimal digits: that number;
    /// 3. eight, a comma, eight: that pair;
    /// 4. anything else, if it may be hashed: the first eight bytes of its SHA-1, as a number.
    ///
    /// Names of the first kind never share a key; of the last, two out of a billion names share one with a
    /// probability of three percent. Names that share a key are one lock: that costs waiting, never safety.
    ///
    /// # Errors
    /// `InvalidArgument` if only hashing could make a key, and it is not allowed.
    pub fn from_name(name: &str, allow_hashing: bool) -> Result<Self> {
        if let Some(key) = from_ascii(name).or_else(|| from_hex(name)) {
            return Ok(key);
        }
        if !allow_hashing {
            return Err(Error::invalid(
                "the name would have to be hashed, and that is forbidden; use at most 9 ASCII characters, \
                 16 hexadecimal digits, or two times 8 with a comma between",
            ));
        }
        let hash: [u8; 20] = Sha1::digest(name.as_bytes()).into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        Ok(AdvisoryKey::Bigint(i64::from_le_bytes([a, b, c, d, e, f, g, h])))
    }

    /// The key as one number: itself, or the pair with its first half on top.
    pub(super) fn packed(self) -> i64 {
        match self {
            AdvisoryKey::Bigint(key) => key,
            AdvisoryKey::Pair(high, low) => i64::from(high) << 32 | i64::from(low as u32),
        }
    }

    /// Its space, as in `pg_locks.objsubid`.
    pub(super) fn space(self) -> i16 {
        match self {
            AdvisoryKey::Bigint(_) => 1,
            AdvisoryKey::Pair(..) => 2,
        }
    }
}

impl fmt::Display for AdvisoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdvisoryKey::Bigint(key) => write!(f, "{key:016x}"),
            AdvisoryKey::Pair(high, low) => write!(f, "{high:08x},{low:08x}"),
        }
    }
}

impl FromStr for AdvisoryKey {
    type Err = Error;

    /// As [`from_name`](AdvisoryKey::from_name), without hashing.
    fn from_str(name: &str) -> Result<Self> {
        AdvisoryKey::from_name(name, false)
    }
}

fn from_ascii(name: &str) -> Option<AdvisoryKey> {
    if name.len() > MAX_ASCII || !name.is_ascii() {
        return None;
    }
    let characters = name.bytes().fold(0, |key: u64, byte| key << 7 | u64::from(byte));
    // A free bit, then ones for the missing characters: no name is another's beginning.
    let key = (name.len()..MAX_ASCII).fold(characters << 1, |key, _| key << 7 | 0x7f);
    Some(AdvisoryKey::Pair((key >> 32) as i32, key as i32))
}

fn from_hex(name: &str) -> Option<AdvisoryKey> {
    // `from_str_radix` would also accept a sign.
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.split_once(',') {
        None if name.len() == 16 && hex(name) => {
            Some(AdvisoryKey::Bigint(u64::from_str_radix(name, 16).ok()? as i64))
        }
        Some((high, low)) if high.len() == 8 && low.len() == 8 && hex(high) && hex(low) => {
            let half = |text| u32::from_str_radix(text, 16).ok().map(|half| half as i32);
            Some(AdvisoryKey::Pair(half(high)?, half(low)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors() -> Vec<serde_json::Value> {
        let text = include_str!("../../../../../../vectors/dotnet-distributedlock.json");
        let all: serde_json::Value = serde_json::from_str(text).unwrap();
        all["postgres_advisory"].as_array().unwrap().clone()
    }

    #[test]
    fn keys_equal_those_of_dotnet_for_every_vector() {
        let cases = vectors();
        assert!(cases.len() > 20);
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let key = match case["int64"].as_i64() {
                Some(key) => AdvisoryKey::Bigint(key),
                None => {
                    let half = |index: usize| i32::try_from(case["pair"][index].as_i64().unwrap()).unwrap();
                    AdvisoryKey::Pair(half(0), half(1))
                }
            };
            assert_eq!(AdvisoryKey::from_name(name, true).unwrap(), key, "{name:?}");
            let unhashed = AdvisoryKey::from_name(name, false);
            assert_eq!(unhashed.is_err(), case["rule"] == "sha1", "{name:?}");
        }
    }

    #[test]
    fn a_key_prints_as_a_name_that_stands_for_it() {
        for key in [
            AdvisoryKey::Bigint(0),
            AdvisoryKey::Bigint(-1),
            AdvisoryKey::Bigint(i64::MIN),
            AdvisoryKey::Pair(-1, 0),
            AdvisoryKey::Pair(i32::MAX, i32::MIN),
        ] {
            assert_eq!(key.to_string().parse::<AdvisoryKey>().unwrap(), key);
        }
        assert!("+000000000000001".parse::<AdvisoryKey>().is_err());
        assert!("0000000,000000001".parse::<AdvisoryKey>().is_err());
    }
}
