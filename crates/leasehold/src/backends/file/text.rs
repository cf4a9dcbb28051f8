//! The text inside the files, for people and for `inspect`: one line per fact, fields separated by tabs.

use std::sync::Arc;

use crate::backend::{Grant, HolderInfo, Mode};
use crate::fence::Fence;
use crate::lease_id::LeaseId;

/// The layout of the files that this build reads and writes.
pub(crate) const KNOWN_LAYOUT: u64 = 2;

const FIRST_LINE: &str = "leasehold 2";

/// Escapes text for one field: control characters and `%` become `%XX`.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '%' | '\0'..='\x1f' | '\x7f' => out.push_str(&format!("%{:02X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let code = u8::from_str_radix(part.get(..2)?, 16).ok()?;
        out.push(char::from(code));
        out.push_str(&part[2..]);
    }
    Some(out)
}

/// Whether a name is a lock, or a semaphore with this limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Permits(u32),
}

impl Kind {
    pub(crate) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Permit { limit } => Kind::Permits(limit),
            Mode::Exclusive | Mode::Shared => Kind::Lock,
        }
    }

    /// A mode of this kind.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Kind::Lock => Mode::Exclusive,
            Kind::Permits(limit) => Mode::Permit { limit },
        }
    }
}

/// The content of a meta file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    /// The kind of its last use.
    pub(crate) kind: Kind,
    /// The last fence. It need not be on disk when the grant is answered: after a power failure it may be an old one.
    pub(crate) fence: Fence,
    /// The counter when this was written: fences up to it need not be written to disk.
    pub(crate) reserved: Fence,
    /// Counts grants, releases and raised fences.
    pub(crate) version: u64,
    /// The boot during which it was written; empty if not known.
    pub(crate) boot: Arc<str>,
    /// `Name::stored`.
    pub(crate) name: Arc<str>,
}

impl Content {
    pub(crate) fn write(&self) -> String {
        let kind = match self.kind {
            Kind::Lock => "lock".to_owned(),
            Kind::Permits(limit) => format!("permits {limit}"),
        };
        let Content { fence, reserved, version, .. } = self;
        let (boot, name) = (escape(&self.boot), escape(&self.name));
        format!("{FIRST_LINE}\n{kind}\n{fence}\n{reserved}\n{version}\n{boot}\n{name}\n")
    }

    /// Whether a newer leasehold has written this, in a newer layout.
    pub(crate) fn is_newer(text: &str) -> bool {
        let layout = text.lines().next().and_then(|line| line.strip_prefix("leasehold "));
        layout.and_then(|layout| layout.parse::<u64>().ok()).is_some_and(|layout| layout > KNOWN_LAYOUT)
    }

    /// `None` for anything that [`write`](Content::write) did not write in full.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let kind = match lines.next()? {
            "lock" => Kind::Lock,
            other => Kind::Permits(other.strip_prefix("permits ")?.parse().ok()?),
        };
        let fence = read_fence(lines.next()?)?;
        let reserved = read_fence(lines.next()?)?;
        let version = lines.next()?.parse().ok()?;
        let boot = unescape(lines.next()?)?.into();
        let name = unescape(lines.next()?)?.into();
        let content = Content { kind, fence, reserved, version, boot, name };
        // A number with a sign, or an invalid escape, is not ours.
        (lines.next().is_none() && content.write() == text).then_some(content)
    }
}

/// Reads a fence of exactly fifteen digits, so that a torn one is never taken for a lower one.
pub(crate) fn read_fence(text: &str) -> Option<Fence> {
    let whole = text.len() == 15 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| whole).map(Fence::new)
}

/// One holder, as written into the file that it has locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) shared: bool,
    pub(crate) fence: Fence,
    pub(crate) since_ms: u64,
    pub(crate) pid: i32,
    pub(crate) id: LeaseId,
    pub(crate) owner: Arc<str>,
    pub(crate) metadata: Option<Arc<str>>,
}

impl Record {
    pub(crate) fn write(&self) -> String {
        let Record { shared, fence, since_ms, pid, id, owner, metadata } = self;
        let (how, id, owner) = (if *shared { "shared" } else { "alone" }, id.expose(), escape(owner));
        let metadata = metadata.as_ref().map(|text| format!("\t{}", escape(text))).unwrap_or_default();
        format!("{how}\t{fence}\t{since_ms}\t{pid}\t{id}\t{owner}{metadata}\n")
    }

    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let shared = match fields.next()? {
            "shared" => true,
            "alone" => false,
            _ => return None,
        };
        Some(Record {
            shared,
            fence: read_fence(fields.next()?)?,
            since_ms: fields.next()?.parse().ok()?,
            pid: fields.next()?.parse().ok()?,
            id: LeaseId::parse(fields.next()?).ok()?,
            owner: unescape(fields.next()?)?.into(),
            metadata: match fields.next() {
                Some(text) => Some(unescape(text)?.into()),
                None => None,
            },
        })
    }

    /// Reads all records that can be read, and skips the others.
    pub(crate) fn read_all(text: &str) -> Vec<Self> {
        text.lines().filter_map(Record::read).collect()
    }

    pub(crate) fn info(&self, kind: Kind) -> HolderInfo {
        let mode = if self.shared { Mode::Shared } else { kind.mode() };
        HolderInfo {
            id: self.id,
            owner: Arc::clone(&self.owner),
            metadata: self.metadata.clone(),
            grant: Grant { acquired_at_ms: self.since_ms, ..Grant::new(self.fence, mode, None) },
            revoked: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(owner: &str, metadata: Option<&str>) -> Record {
        Record {
            shared: false,
            fence: Fence::new(459_000_000_000_001),
            since_ms: 1_793_000_000_000,
            pid: 42,
            id: LeaseId::random(),
            owner: owner.into(),
            metadata: metadata.map(Into::into),
        }
    }

    fn content(name: &str) -> Content {
        Content {
            kind: Kind::Lock,
            fence: Fence::new(459_000_000_000_001),
            reserved: Fence::new(459_000_000_000_777),
            version: 12,
            boot: "a-b-c".into(),
            name: name.into(),
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(name in "[a\\n\\t\\x00%\\r2é🦉]{1,20}", owner in "[a\\n\\t%é ]{0,9}") {
            let content = Content { kind: Kind::Permits(7), boot: owner.as_str().into(), ..content(&name) };
            prop_assert_eq!(Content::read(&content.write()), Some(content));
            let both = [record(&owner, Some(&name)), record(&name, None)];
            prop_assert_eq!(Record::read_all(&(both[0].write() + &both[1].write())), both.to_vec());
        }
    }

    #[test]
    fn what_is_torn_is_not_read() {
        let text = content("/x").write();
        for end in 0..text.len() {
            assert_eq!(Content::read(&text[..end]), None, "{end}");
        }
        let text = record("me", None).write();
        for end in 0..text.find("me").unwrap() - 1 {
            assert_eq!(Record::read_all(&text[..end]), [], "{end}");
        }
        for torn in ["", "45900000000001", "4590000000000010", "+59000000000001", "45900000000000x"] {
            assert_eq!(read_fence(torn), None, "{torn}");
        }
    }

    #[test]
    fn fuzz_file_rows() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/file_rows.txt"), |input| {
            let text = String::from_utf8_lossy(input);
            if let Some(content) = Content::read(&text) {
                assert_eq!(content.write(), text, "only what was written so is read");
                assert_eq!(Content::read(&content.write()), Some(content));
            }
            for record in Record::read_all(&text) {
                assert_eq!(Record::read_all(&record.write()), [record]);
            }
            assert_eq!(unescape(&escape(&text)).as_deref(), Some(&*text));
            if let Some(plain) = unescape(&text) {
                assert_eq!(unescape(&escape(&plain)), Some(plain));
            }
        });
    }
}
