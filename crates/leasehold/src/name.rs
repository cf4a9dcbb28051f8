//! Names of locks, and their namespaces.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::error::{Error, Result};

/// The name of a lock: non-empty UTF-8 of at most 512 bytes after NFC normalisation, with any characters, inside a
/// namespace.
///
/// Two names are the same lock exactly when namespace and name are equal after normalisation. A name carries its
/// stored form, [`stored`](Name::stored): `namespace/name`, where `%` and `/` of the *namespace* are written `%25` and
/// `%2F`. So the first `/` always ends the namespace, and no two pairs share a stored form, whatever characters they
/// contain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    stored: Arc<str>,
    // Where the name begins in `stored`.
    start: u16,
}

impl Name {
    /// The most bytes a name may have.
    pub const MAX_BYTES: usize = 512;
    /// The most bytes a namespace may have.
    pub const MAX_NAMESPACE_BYTES: usize = 128;
    /// The most bytes a stored form may have: every byte of the namespace escaped, a slash, the name.
    pub const MAX_STORED_BYTES: usize = 3 * Name::MAX_NAMESPACE_BYTES + 1 + Name::MAX_BYTES;

    /// A name in the empty namespace.
    ///
    /// # Errors
    /// `InvalidArgument` if it is empty or longer than 512 bytes after normalisation.
    pub fn new(name: &str) -> Result<Self> {
        Name::within("", name)
    }

    /// A name in a namespace.
    ///
    /// # Errors
    /// As [`Name::new`]; also `InvalidArgument` if the namespace is longer than 128 bytes after normalisation.
    pub fn within(namespace: &str, name: &str) -> Result<Self> {
        let name = normalise(name);
        if name.is_empty() {
            return Err(Error::invalid("the name must not be empty"));
        }
        if name.len() > Name::MAX_BYTES {
            return Err(Error::invalid(format!(
                "the name has {} bytes after NFC normalisation; at most {} are allowed",
                name.len(),
                Name::MAX_BYTES
            )));
        }
        let mut stored = stored_namespace(namespace)?;
        let start = stored.len() as u16; // at most 3 * 128 + 1
        stored.push_str(&name);
        Ok(Name { stored: stored.into(), start })
    }

    /// Reads a name from the stored form that a store has kept.
    ///
    /// # Errors
    /// `Internal` if no name has this stored form: something else has written to the store.
    pub fn from_stored(stored: &str) -> Result<Self> {
        let foreign = || {
            Error::new(
                crate::error::ErrorKind::Internal,
                "the store holds a name that leasehold did not write",
            )
        };
        let (namespace, name) = stored.split_once('/').ok_or_else(foreign)?;
        let parsed = Name::within(&unescape(namespace), name).map_err(|e| foreign().with_source(e))?;
        if &*parsed.stored == stored { Ok(parsed) } else { Err(foreign()) }
    }

    /// The name, without its namespace.
    pub fn as_str(&self) -> &str {
        &self.stored[usize::from(self.start)..]
    }

    /// The namespace; empty if there is none.
    pub fn namespace(&self) -> Cow<'_, str> {
        unescape(&self.stored[..usize::from(self.start) - 1])
    }

    /// The one-to-one encoding of namespace and name that stores use as their key.
    pub fn stored(&self) -> &str {
        &self.stored
    }

    /// The stored form, shared.
    pub(crate) fn stored_arc(&self) -> &Arc<str> {
        &self.stored
    }

    /// The prefix of the stored forms of all names in a namespace that begin with `prefix`.
    ///
    /// # Errors
    /// `InvalidArgument` if the namespace is too long.
    pub fn stored_prefix(namespace: &str, prefix: &str) -> Result<String> {
        let mut stored = stored_namespace(namespace)?;
        stored.push_str(&normalise(prefix));
        Ok(stored)
    }

    /// The text that stands for the name in logs and events. See [`digest_name`].
    pub fn hash(&self) -> String {
        digest_name(self.as_str())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({:?})", self.as_str())
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.stored())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        Name::from_stored(&text).map_err(serde::de::Error::custom)
    }
}

pub(crate) fn normalise(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.nfc().collect())
    }
}

fn stored_namespace(namespace: &str) -> Result<String> {
    let namespace = normalise(namespace);
    if namespace.len() > Name::MAX_NAMESPACE_BYTES {
        return Err(Error::invalid(format!(
            "the namespace has {} bytes after NFC normalisation; at most {} are allowed",
            namespace.len(),
            Name::MAX_NAMESPACE_BYTES
        )));
    }
    let mut stored = String::with_capacity(namespace.len() + 1 + 32);
    if namespace.bytes().any(|byte| matches!(byte, b'%' | b'/')) {
        stored.push_str(&namespace.replace('%', "%25").replace('/', "%2F"));
    } else {
        stored.push_str(&namespace);
    }
    stored.push('/');
    Ok(stored)
}

fn unescape(namespace: &str) -> Cow<'_, str> {
    if namespace.contains('%') {
        // Keep this order: an escaped `%` must not be read as the start of another escape.
        Cow::Owned(namespace.replace("%2F", "/").replace("%25", "%"))
    } else {
        Cow::Borrowed(namespace)
    }
}

/// Returns the text that stands for a name or an owner in logs and events: the first 24 hex digits of its SHA-256,
/// after NFC normalisation. `printf %s NAME | sha256sum` begins with it.
///
/// A reader cannot compute the name back, but can check a guess.
pub fn digest_name(text: &str) -> String {
    let digest = Sha256::digest(normalise(text).as_bytes());
    hex(digest.iter().take(12).flat_map(|byte| [u32::from(byte >> 4), u32::from(byte & 15)]))
}

/// Formats hex digits by hand: a log line has several, and the standard formatting took longer than all the rest.
pub(crate) fn hex(nibbles: impl Iterator<Item = u32>) -> String {
    nibbles.map(|nibble| char::from(b"0123456789abcdef"[nibble as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::interop::tests::vectors;
    use proptest::prelude::*;

    /// Compared with the output of common tools: for "x", and for "é" in both of its spellings.
    #[test]
    fn digest_name_is_the_beginning_of_sha256() {
        assert_eq!(digest_name("x"), "2d711642b726b04401627ca9");
        assert_eq!(digest_name("e\u{301}"), digest_name("\u{e9}"));
        assert_eq!(digest_name("\u{e9}"), "4a99557e4033c3539de2eb65");
    }

    #[test]
    fn names_are_valid_exactly_where_the_vectors_say() {
        for case in vectors("normalizeAndValidateKey") {
            match (Name::new(case["key"].as_str().unwrap()), case["ok"].as_bool().unwrap()) {
                (Ok(name), true) => assert_eq!(name.as_str().len() as u64, case["bytes"].as_u64().unwrap()),
                (Err(error), false) => assert_eq!(error.kind(), ErrorKind::InvalidArgument),
                (name, _) => panic!("{case}: {name:?}"),
            }
        }
    }

    #[test]
    fn normal_forms_are_one_name_and_nul_is_allowed() {
        assert_eq!(Name::new("cafe\u{301}").unwrap(), Name::new("café").unwrap());
        assert_eq!(Name::new("a\0b").unwrap().as_str(), "a\0b");
    }

    #[test]
    fn namespace_and_name_never_meet() {
        let pairs = [
            ("a/b", "c"),
            ("a", "b/c"),
            ("a%2Fb", "c"),
            ("", "a/b/c"),
            ("a:b", "c"),
            ("a", "b:c"),
            ("a%", "2Fb/c"),
        ];
        let stored: std::collections::HashSet<_> =
            pairs.iter().map(|(ns, n)| Name::within(ns, n).unwrap().stored().to_owned()).collect();
        assert_eq!(stored.len(), pairs.len());
    }

    proptest! {
        #[test]
        fn stored_form_and_name_are_one_to_one(ns in "[a%/2F5é:\\PC]{0,12}", name in "[a%/2F5é:\\PC]{1,12}") {
            let made = Name::within(&ns, &name).unwrap();
            let read = Name::from_stored(made.stored()).unwrap();
            prop_assert_eq!(&read, &made);
            prop_assert_eq!(read.namespace(), normalise(&ns));
            prop_assert_eq!(read.as_str(), normalise(&name));
            prop_assert!(made.stored().len() <= Name::MAX_STORED_BYTES);
        }

        #[test]
        fn any_stored_text_is_read_back_exactly_or_refused(text in "[a%/2F5é]{0,10}") {
            if let Ok(name) = Name::from_stored(&text) {
                prop_assert_eq!(name.stored(), text);
            }
        }
    }

    #[test]
    fn fuzz_names() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/names.txt"), |input| {
            let text = String::from_utf8_lossy(input);
            let (namespace, name) = text.split_once('|').unwrap_or(("", &text));
            let Ok(one) = Name::within(namespace, name) else { return };
            assert!(!one.as_str().is_empty() && one.as_str().len() <= Name::MAX_BYTES);
            assert!(one.stored().len() <= Name::MAX_STORED_BYTES);
            let again = Name::within(&one.namespace(), one.as_str()).expect("what was normalised is a name");
            assert_eq!(again, one, "normalising is done once");
            assert_eq!(Name::from_stored(one.stored()).expect("a stored form"), one);
            let prefix = Name::stored_prefix(namespace, "").expect("it was short enough");
            assert!(one.stored().starts_with(&prefix) && one.hash() == again.hash());
            // A stored form is accepted only if leasehold could have written it.
            if let Ok(stored) = Name::from_stored(&text) {
                assert_eq!(stored.stored(), text);
            }
        });
    }
}
