//! Turns a name into file names: one-to-one, safe, and short enough for every file system.

use sha2::{Digest as _, Sha256, Sha512};

use crate::error::{Error, Result};
use crate::name::Name;

/// How names become file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FileNames {
    /// A readable beginning of at most 100 letters, digits, `-` and `_`, all lower case, and the SHA-256 of namespace
    /// and name in hex. So a file system that ignores case or normalises never merges two names.
    #[default]
    Hashed,
    /// The file name that .NET DistributedLock's `FileDistributedLock` uses for the same name in the same directory.
    /// There is no namespace. Exclusive locks and that library then lock the same file. That library does not know the
    /// meta file, so between the two only its own promises hold.
    Dotnet,
}

/// The most bytes of the readable part.
const READABLE: usize = 100;

/// The most characters of a whole .NET file name.
const DOTNET_LEN: usize = 64;
/// Characters of its hash: 160 bits in base32.
const DOTNET_HASH: usize = 32;

impl FileNames {
    /// How the file names of a name begin; a dot and the purpose of the file follow.
    pub(crate) fn base(self, name: &Name) -> Result<String> {
        match self {
            FileNames::Hashed => Ok(hashed(name)),
            FileNames::Dotnet if name.namespace().is_empty() => Ok(dotnet(name.as_str())),
            FileNames::Dotnet => {
                Err(Error::invalid(".NET file names cannot hold a namespace; set the namespace to \"\""))
            }
        }
    }
}

fn hashed(name: &Name) -> String {
    let mut base: String = name
        .as_str()
        .chars()
        .take(READABLE)
        .map(|c| match c {
            '-' => '-',
            c if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
            _ => '_',
        })
        .collect();
    base.push('-');
    for byte in Sha256::digest(name.stored()) {
        base.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        base.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    base
}

/// The letters, digits and `_` of the name, every other UTF-16 unit as `_`, cut to leave room; then 160 bits of the
/// SHA-512 of its UTF-8 in base32, lowest bits first.
fn dotnet(name: &str) -> String {
    let mut base = String::new();
    let room = DOTNET_LEN - DOTNET_HASH - ".lock".len();
    let units = name.chars().flat_map(|c| {
        let kept = if is_dotnet_letter_or_digit(c) { c } else { '_' };
        std::iter::repeat_n(kept, c.len_utf16())
    });
    base.extend(units.take(room));
    let (mut bits, mut have) = (0u32, 0);
    let mut bytes = Sha512::digest(name).into_iter();
    for _ in 0..DOTNET_HASH {
        if have < 5 {
            bits |= u32::from(bytes.next().unwrap_or_default()) << have;
            have += 8;
        }
        base.push(char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[(bits & 31) as usize]));
        bits >>= 5;
        have -= 5;
    }
    base
}

/// `char.IsLetterOrDigit` of .NET: the categories L and Nd, of single UTF-16 units only.
fn is_dotnet_letter_or_digit(c: char) -> bool {
    /// Where each range of ten decimal digits outside ASCII begins.
    const DIGITS: [u32; 36] = [
        0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66,
        0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90,
        0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
    ];
    let code = u32::from(c);
    if c.is_ascii() {
        return c.is_ascii_alphanumeric();
    }
    // Alphabetic in Unicode's wider sense, but not letters to .NET: numerals and circled letters.
    let wider = matches!(code, 0x16EE..=0x16F0 | 0x2160..=0x2182 | 0x2185..=0x2188 | 0x24B6..=0x24E9
        | 0x3007 | 0x3021..=0x3029 | 0x3038..=0x303A | 0xA6E6..=0xA6EF);
    let letter =
        c.is_alphabetic() && !wider && !unicode_normalization::char::is_combining_mark(c) && code <= 0xFFFF;
    letter || DIGITS.iter().any(|first| (*first..first + 10).contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dotnet_file_names_equal_every_vector() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../../../vectors/dotnet-distributedlock.json")).unwrap();
        let cases = vectors["file"].as_array().unwrap();
        assert!(cases.len() >= 7);
        for case in cases {
            let made = dotnet(case["name"].as_str().unwrap()) + ".lock";
            assert_eq!(made, case["file"].as_str().unwrap());
        }
    }

    #[test]
    fn dotnet_names_keep_only_letters_and_digits_of_any_script() {
        for (name, readable) in [
            ("größe", "größe"),
            ("٣a", "٣a"),
            ("a²Ⅷ", "a__"),
            ("Ⓐ-x", "__x"),
            ("क\u{93f}", "क_"),
            ("𝒜1", "__1"),
        ] {
            let base = dotnet(name);
            assert_eq!(&base[..base.len() - DOTNET_HASH], readable);
        }
    }

    #[test]
    fn a_dotnet_name_has_no_namespace() {
        assert!(FileNames::Dotnet.base(&Name::new("x").unwrap()).is_ok());
        assert!(FileNames::Dotnet.base(&Name::within("ns", "x").unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn any_name_stays_inside_the_directory(text in "\\PC{1,200}|[./\\\\\0]{1,20}") {
            let Ok(name) = Name::new(&text) else { return Ok(()) };
            for names in [FileNames::Hashed, FileNames::Dotnet] {
                let base = names.base(&name).unwrap();
                prop_assert!(base.len() <= 200 && !base.starts_with('.'), "{base}");
                prop_assert!(!base.contains(['/', '\\', '\0', '.']), "{base}");
            }
            let hashed = hashed(&name);
            prop_assert!(hashed.is_ascii());
            prop_assert_eq!(hashed.to_ascii_lowercase(), hashed);
        }
    }
}
