//! The keys of a name: one-to-one, and in one hash slot, whatever characters the name contains.

use crate::lease_id::LeaseId;
use crate::name::Name;

/// How all keys begin.
const PREFIX: &str = "leasehold:{";

/// The prefix of the keys that lead from a lease id to its name.
const FINDER: &str = "leasehold-id:";

/// The key that names the layout of the whole store, if it is not the first one. The key of a name has a `{` there.
pub(super) const LAYOUT: &str = "leasehold:layout";

/// How the wake-up channels begin.
pub(super) const CHANNEL: &str = "leasehold-wake:";

/// The head key of a name. Only what is between the first `{` and the next `}` decides the slot, so `}` is written
/// `%7D` and, to stay one-to-one, `%` is written `%25`. A stored name is never empty.
pub(super) fn of(name: &Name) -> String {
    let mut key = String::with_capacity(PREFIX.len() + name.stored().len() + 1);
    key.push_str(PREFIX);
    escape(name.stored(), &mut key);
    key.push('}');
    key
}

fn escape(stored: &str, key: &mut String) {
    for c in stored.chars() {
        match c {
            '%' => key.push_str("%25"),
            '}' => key.push_str("%7D"),
            c => key.push(c),
        }
    }
}

/// The stored form of the name that has this key; `None` if no name has it.
pub(super) fn stored(key: &str) -> Option<String> {
    let escaped = key.strip_prefix(PREFIX)?.strip_suffix('}')?;
    // Keep this order: an escaped `%` must not be read as the start of another escape.
    let stored = escaped.replace("%7D", "}").replace("%25", "%");
    let mut again = String::with_capacity(escaped.len());
    escape(&stored, &mut again);
    (again == escaped).then_some(stored)
}

/// The key of a resource's mark. It does not end with `}`, so it is not taken for the head key of a name.
pub(super) fn mark(resource: &Name) -> String {
    of(resource) + ":fence"
}

/// The suffixes of a name's keys, in the order that the scripts expect.
pub(super) const SUFFIXES: [&str; 7] = ["", ":rows", ":leases", ":queue", ":places", ":spent", ":grants"];

/// The key that leads from an id to its name.
pub(super) fn finder(id: &LeaseId) -> String {
    [FINDER, id.expose()].concat()
}

/// The length of that key.
pub(super) const fn finder_len() -> usize {
    FINDER.len() + LeaseId::LEN
}

/// A SCAN pattern for the heads of all names whose stored form begins with this.
pub(super) fn pattern(stored: &str) -> String {
    let mut escaped = String::new();
    escape(stored, &mut escaped);
    let mut pattern = String::from("leasehold:{");
    for c in escaped.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push_str("*}");
    pattern
}

/// The hash slot of a name's keys in a cluster: CRC16 (XMODEM) of the text between the braces.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.strip_prefix(PREFIX).and_then(|rest| rest.split_once('}')).map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16384
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_slot_is_that_of_the_published_example() {
        assert_eq!(slot("123456789"), 0x31C3);
    }

    proptest! {
        #[test]
        fn key_and_name_are_one_to_one(namespace in "[a%/7D{}:]{0,6}", name in "[a%/7D{}:*é]{1,8}") {
            let name = Name::within(&namespace, &name).unwrap();
            let key = of(&name);
            let read = stored(&key);
            prop_assert_eq!(read.as_deref(), Some(name.stored()));
            // One `{…}`, at the same place in all keys.
            let all = SUFFIXES.map(|suffix| slot(&format!("{key}{suffix}")));
            prop_assert!(all.iter().all(|one| *one == slot(&key)));
            prop_assert_eq!(key.find('}'), Some(key.len() - 1));
        }
    }
}
