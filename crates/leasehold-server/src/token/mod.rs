//! Bearer tokens and their permissions. Only hashes of tokens are stored.

// What belongs here: what a token is, may do and has used. Before changing anything here:
// `cargo test -p leasehold-server --test server`.

mod limits;
mod share;
mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::{Error, ErrorKind, Name, Result};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub(crate) use limits::Token;
pub(crate) use share::{Renewing, Share};

/// An action that a token may allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verb {
    /// Look at locks.
    Read,
    /// Acquire, renew and release, and check a fence.
    Acquire,
    /// Revoke, and sweep.
    Admin,
}

impl std::str::FromStr for Verb {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "read" => Ok(Verb::Read),
            "acquire" => Ok(Verb::Acquire),
            "admin" => Ok(Verb::Admin),
            _ => Err(Error::invalid("a token can allow read, acquire and admin")),
        }
    }
}

/// Verbs on the names that begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// The prefix of the names; empty for all names.
    pub prefix: String,
    /// The actions allowed on them.
    pub allow: Vec<Verb>,
}

/// How much of one server a token may use. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Leases at the same time, including those still waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u64>,
    /// Waiting requests at the same time, including queue places kept without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u64>,
    /// Requests a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
}

/// One line of the token file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// A label for people.
    name: String,
    /// SHA-256 of the token, in hex. A token has 256 random bits, so a plain hash cannot be guessed.
    sha256: String,
    scopes: Vec<Scope>,
    #[serde(default)]
    limits: Limits,
}

impl Entry {
    fn allows(&self, verb: Verb, name: &str) -> bool {
        self.scopes.iter().any(|scope| scope.allow.contains(&verb) && name.starts_with(&scope.prefix))
    }
}

/// A newly created token. Its secret is shown only this once.
#[derive(Debug)]
pub struct NewToken {
    /// The token itself, for the client.
    pub secret: String,
    /// Its line for the file.
    pub line: String,
}

impl NewToken {
    /// Makes a token.
    ///
    /// # Errors
    /// `Unavailable` without a source of randomness.
    pub fn create(name: &str, scopes: Vec<Scope>, limits: Limits) -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "cannot get random numbers from the system").with_source(error)
        })?;
        let secret = format!("lh_{}", hex(&bytes));
        let entry = Entry { name: name.into(), sha256: hex(&Sha256::digest(&secret)), scopes, limits };
        let line = serde_json::to_string(&entry).map_err(|error| {
            Error::new(ErrorKind::Internal, "the token cannot be written").with_source(error)
        })?;
        Ok(NewToken { secret, line })
    }
}

/// The tokens of a file: one JSON object per line; `#` begins a comment.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    list: RwLock<Arc<Vec<Arc<Token>>>>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// `InvalidArgument` if it cannot be read or a line cannot be understood.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let new = |(entry, hash)| Arc::new(Token::new(entry, hash));
        let list = RwLock::new(Arc::new(load(&path)?.into_iter().map(new).collect()));
        Ok(Tokens { path, list })
    }

    /// The number of tokens.
    pub fn count(&self) -> usize {
        self.current().len()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn reload(&self) -> Result<()> {
        let (entries, before) = (load(&self.path)?, self.current());
        let mut list: Vec<Arc<Token>> = Vec::with_capacity(entries.len());
        let mut changed = Vec::new();
        for (entry, hash) in entries {
            // A token's use stays counted, whatever else its line says now. If two lines have the same hash, the last
            // one counts.
            match before.iter().rfind(|token| token.hash == hash) {
                Some(token) => {
                    list.push(Arc::clone(token));
                    changed.push((Arc::clone(token), entry));
                }
                None => list.push(Arc::new(Token::new(entry, hash))),
            }
        }
        let list = Arc::new(list);
        *self.list.write() = Arc::clone(&list);
        // A removed token cannot be found any more; wake the requests that already use it.
        for gone in before.iter().filter(|token| !list.iter().any(|kept| Arc::ptr_eq(kept, token))) {
            gone.change(None);
        }
        changed.into_iter().for_each(|(token, entry)| token.change(Some(entry)));
        Ok(())
    }

    fn current(&self) -> Arc<Vec<Arc<Token>>> {
        Arc::clone(&self.list.read())
    }

    /// The token with this secret. Compares all hashes completely, so that the time reveals nothing.
    pub(crate) fn find(&self, secret: &str) -> Option<Arc<Token>> {
        let hash: [u8; 32] = Sha256::digest(secret).into();
        let mut found = None;
        for token in self.current().iter() {
            let difference = token.hash.iter().zip(&hash).fold(0, |sum, (a, b)| sum | (a ^ b));
            if std::hint::black_box(difference) == 0 {
                found = Some(Arc::clone(token));
            }
        }
        found
    }
}

fn load(path: &Path) -> Result<Vec<(Entry, [u8; 32])>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::invalid(format!("cannot read the token file {path:?}")).with_source(error))?;
    parse(&text, path)
}

/// Parses the text of a token file.
fn parse(text: &str, path: &Path) -> Result<Vec<(Entry, [u8; 32])>> {
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let bad =
            |why: &str| Error::invalid(format!("line {} of the token file {path:?}: {why}", number + 1));
        let mut entry: Entry = serde_json::from_str(line).map_err(|error| bad(&error.to_string()))?;
        for scope in &mut entry.scopes {
            // Normalise the prefix as names are, because a name can be written in several ways.
            scope.prefix =
                Name::stored_prefix("", &scope.prefix)?.split_off(Name::stored_prefix("", "")?.len());
        }
        let hash = unhex(&entry.sha256).ok_or_else(|| bad("sha256 must have 64 hex digits"))?;
        list.push((entry, hash));
    }
    Ok(list)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    // The number parser would also accept a sign.
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(prefix: &str, allow: &[Verb]) -> Scope {
        Scope { prefix: prefix.into(), allow: allow.into() }
    }

    #[test]
    fn a_token_is_found_by_its_secret_and_stored_only_as_a_hash() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let scopes = vec![scope("ci/", &[Verb::Acquire]), scope("", &[Verb::Read])];
        let made = NewToken::create("ci", scopes, Limits::default()).unwrap();
        std::fs::write(file.path(), format!("# tokens\n\n{}\n", made.line)).unwrap();
        let tokens = Tokens::read(file.path()).unwrap();
        let token = tokens.find(&made.secret).unwrap();
        assert!(!made.line.contains(&made.secret[3..]));
        assert!(token.may(Verb::Acquire, "ci/build").is_ok() && token.may(Verb::Acquire, "other").is_err());
        assert!(token.may(Verb::Read, "other").is_ok() && token.may(Verb::Admin, "ci/build").is_err());
        assert!(tokens.find("lh_00").is_none());
        std::fs::write(file.path(), "").unwrap();
        tokens.reload().unwrap();
        assert!(tokens.find(&made.secret).is_none());
        assert!(token.may(Verb::Acquire, "ci/build").is_err(), "who has found it before may do nothing now");
        std::fs::write(file.path(), "{").unwrap();
        assert!(tokens.reload().is_err());
    }

    /// A hash that differs in any one bit belongs to another token.
    #[test]
    fn every_bit_of_a_secret_counts() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let made = NewToken::create("t", vec![scope("", &[Verb::Read])], Limits::default()).unwrap();
        let hash: [u8; 32] = Sha256::digest(&made.secret).into();
        for bit in 0..256 {
            let mut almost = hash;
            almost[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(file.path(), made.line.replace(&hex(&hash), &hex(&almost))).unwrap();
            let tokens = Tokens::read(file.path()).unwrap();
            assert_eq!(tokens.count(), 1);
            assert!(tokens.find(&made.secret).is_none(), "bit {bit} is not looked at");
        }
        // The right token is found among many, wherever it stands.
        for place in [0, 1, 2] {
            let other =
                || NewToken::create("o", vec![scope("", &[Verb::Read])], Limits::default()).unwrap().line;
            let mut lines = vec![other(), other()];
            lines.insert(place, made.line.clone());
            std::fs::write(file.path(), lines.join("\n")).unwrap();
            let found = Tokens::read(file.path()).unwrap().find(&made.secret);
            assert_eq!(found.map(|token| token.hash), Some(hash));
        }
        std::fs::write(file.path(), &made.line).unwrap();
        let tokens = Tokens::read(file.path()).unwrap();
        let secret = &made.secret;
        for wrong in [&secret[..66], &secret[3..], "", &format!("{secret}0"), &secret.to_uppercase()] {
            assert!(tokens.find(wrong).is_none(), "{wrong:?} is not {secret:?}");
        }
    }

    #[test]
    fn a_prefix_is_compared_as_names_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // The same letter as one character, as in normalised names, and as two.
        let (one, two) = ("caf\u{e9}/", "cafe\u{301}/");
        let made = NewToken::create("t", vec![scope(two, &[Verb::Read])], Limits::default()).unwrap();
        std::fs::write(file.path(), &made.line).unwrap();
        let token = Tokens::read(file.path()).unwrap().find(&made.secret).unwrap();
        let name = Name::within("n", &format!("{two}x")).unwrap();
        assert!(name.as_str().starts_with(one) && token.may(Verb::Read, name.as_str()).is_ok());
        assert!(token.may(Verb::Read, "cafe/x").is_err());
    }

    #[test]
    fn a_list_is_narrowed_to_what_may_be_read() {
        let made = |scopes| {
            let line = NewToken::create("t", scopes, Limits::default()).unwrap().line;
            Token::new(serde_json::from_str(&line).unwrap(), [0; 32])
        };
        let one = made(vec![scope("ci/", &[Verb::Read])]);
        assert_eq!(one.readable("".into()).as_deref(), Some("ci/"));
        assert_eq!(one.readable("ci/x".into()).as_deref(), Some("ci/x"));
        assert_eq!(one.readable("d".into()), None);
        let two = made(vec![scope("ci/", &[Verb::Read]), scope("cd/", &[Verb::Read])]);
        assert_eq!(two.readable("c".into()), None);
    }

    #[test]
    fn fuzz_token_file() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/token_file.txt"), |input| {
            let text = String::from_utf8_lossy(input);
            let Ok(list) = parse(&text, Path::new("tokens")) else { return };
            let mut written = String::new();
            for (entry, hash) in &list {
                assert_eq!(hex(hash), entry.sha256.to_lowercase(), "the hash is that of the file");
                written += &(serde_json::to_string(entry).expect("it is written") + "\n");
            }
            let again = parse(&written, Path::new("tokens")).expect("what was written is read");
            assert_eq!(again.len(), list.len());
            for ((one, hash), (two, same)) in list.iter().zip(&again) {
                assert_eq!((&one.name, &one.scopes, one.limits), (&two.name, &two.scopes, two.limits));
                assert_eq!(hash, same);
            }
        });
    }
}
