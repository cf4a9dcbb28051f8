//! Encodes text for PostgreSQL: names, owners and metadata may contain a NUL, `text` may not.
//!
//! U+0000 is written U+0001 U+0001, and U+0001 is written U+0001 U+0002. That is one-to-one, and keeps the order of
//! bytes and common prefixes.

use std::borrow::Cow;

use crate::error::{Error, ErrorKind, Result};

/// Encodes a text.
pub(super) fn write(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\u{1}']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\u{1}', "\u{1}\u{2}").replace('\0', "\u{1}\u{1}"))
}

/// Decodes a text.
pub(super) fn read(written: &str) -> Result<Cow<'_, str>> {
    if !written.contains('\u{1}') {
        return Ok(Cow::Borrowed(written));
    }
    let mut text = String::with_capacity(written.len());
    let mut chars = written.chars();
    while let Some(c) = chars.next() {
        text.push(match c {
            '\u{1}' => match chars.next() {
                Some('\u{1}') => '\0',
                Some('\u{2}') => '\u{1}',
                _ => {
                    return Err(Error::new(
                        ErrorKind::Internal,
                        "the tables hold a text that leasehold did not write",
                    ));
                }
            },
            c => c,
        });
    }
    Ok(Cow::Owned(text))
}

/// The first text after all those that begin with `prefix`; `None` if there is no such text.
pub(super) fn end_of(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match u32::from(last) + 1 {
            0xD800 => Some('\u{E000}'), // what is between is no character
            next => char::from_u32(next),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writing_is_one_to_one_and_keeps_the_order(a in "[\0\u{1}\u{2}ab\\PC]{0,8}", b in "[\0\u{1}\u{2}ab]{0,8}") {
            let (x, y) = (write(&a), write(&b));
            prop_assert!(!x.contains('\0'));
            prop_assert_eq!(read(&x).unwrap(), a.as_str());
            prop_assert_eq!(a.as_bytes().cmp(b.as_bytes()), x.as_bytes().cmp(y.as_bytes()));
            prop_assert_eq!(a.starts_with(&b), x.starts_with(&*y));
        }

        #[test]
        fn the_end_of_a_prefix_is_after_all_that_begin_with_it(prefix in "[a\u{D7FF}\u{10FFFF}]{0,3}", rest in "[\u{10FFFF}z]{0,3}") {
            let text = format!("{prefix}{rest}");
            match end_of(&prefix) {
                Some(end) => prop_assert!(text < end && !end.starts_with(&prefix)),
                None => prop_assert!(prefix.chars().all(|c| c == char::MAX)),
            }
        }
    }

    #[test]
    fn text_that_nobody_wrote_is_refused() {
        assert!(read("a\u{1}b").is_err() && read("\u{1}").is_err());
    }

    #[test]
    fn fuzz_postgres_rows() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/postgres_rows.txt"), |input| {
            let text = String::from_utf8_lossy(input);
            assert_eq!(read(&write(&text)).expect("what was written"), text);
            // A text is accepted only in the one form that `write` gives it.
            if !text.contains('\0')
                && let Ok(plain) = read(&text)
            {
                assert_eq!(write(&plain), text);
            }
        });
    }
}
