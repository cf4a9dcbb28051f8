//! What a process of a trial writes down: records of one size, each by one write, there after a kill.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

/// Bytes of one record.
pub const SIZE: usize = 64;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An acquire is about to be called.
    AcquireCall = 1,
    /// It returned a lease.
    Granted,
    /// It returned, and somebody else holds the lock.
    Busy,
    /// It failed.
    Failed,
    /// The holder looked, and may rely on its lease: at the moment `at`, and until `deadline` if nothing happens.
    Held,
    /// The holder looked, and its lease is lost because its deadline passed.
    LostByDeadline,
    /// The holder looked, and its lease is lost because the store refused it.
    LostByRefusal,
    /// A release is about to be called, or the guard dropped.
    ReleaseCall,
    /// The store said that the release ended the lease.
    Released,
    /// The store said that there was nothing to release.
    ReleasedNothing,
    /// The release failed.
    ReleaseFailed,
}

const KINDS: [Kind; 11] = [
    Kind::AcquireCall,
    Kind::Granted,
    Kind::Busy,
    Kind::Failed,
    Kind::Held,
    Kind::LostByDeadline,
    Kind::LostByRefusal,
    Kind::ReleaseCall,
    Kind::Released,
    Kind::ReleasedNothing,
    Kind::ReleaseFailed,
];

/// One thing that happened in a process. Times are nanoseconds of the system's boot-time clock, which all
/// processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What.
    pub kind: Kind,
    /// Whether the lock is shared.
    pub shared: bool,
    /// Which process.
    pub worker: u32,
    /// Which acquire of that process, from 0.
    pub claim: u64,
    /// When: for calls before they are made, for answers after they came, for looks before looking.
    pub at: u64,
    /// A hash of the lease id, once there is one.
    pub lease: u64,
    /// Its fence.
    pub fence: u64,
    /// Until when the lease may be relied on at least; 0 where that is not known, [`SESSION`] for a session lock.
    pub deadline: u64,
}

/// The deadline of a lock that its holder keeps until it lets go or is killed.
pub const SESSION: u64 = u64::MAX;

impl Record {
    /// As it is written.
    pub fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.shared);
        bytes[4..8].copy_from_slice(&self.worker.to_le_bytes());
        let words = [self.claim, self.at, self.lease, self.fence, self.deadline];
        for (place, word) in words.into_iter().enumerate() {
            bytes[8 + 8 * place..16 + 8 * place].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes[SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// From what was written; `None` if nobody can have written that.
    pub fn from_bytes(bytes: &[u8; SIZE]) -> Option<Self> {
        let word = |place: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[place..place + 8]);
            u64::from_le_bytes(word)
        };
        if word(SIZE - 8) != checksum(bytes) {
            return None;
        }
        Some(Record {
            kind: *KINDS.get(usize::from(bytes[0]).checked_sub(1)?)?,
            shared: bytes[1] == 1,
            worker: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            claim: word(8),
            at: word(16),
            lease: word(24),
            fence: word(32),
            deadline: word(40),
        })
    }
}

/// Over all but itself.
fn checksum(bytes: &[u8; SIZE]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    bytes[..SIZE - 8].iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A file of records.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens it to append.
    ///
    /// # Errors
    /// Those of the system.
    pub fn append(path: &Path) -> io::Result<Self> {
        File::options().append(true).create(true).open(path).map(Log)
    }

    /// Writes one record. When this returns it survives the end of the process.
    ///
    /// # Panics
    /// If it cannot be written: a history with holes shows nothing.
    pub fn write(&self, record: Record) {
        let written = (&self.0).write(&record.to_bytes()).expect("the history can be written");
        assert_eq!(written, SIZE, "the history is written in one piece");
    }
}

/// All whole records of a file; none if there is no file yet.
///
/// # Errors
/// Those of the system; `InvalidData` for what nobody can have written.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    read_last(path, u64::MAX)
}

/// The last whole records of a file, at most so many.
///
/// # Errors
/// As [`read`].
pub fn read_last(path: &Path, most: u64) -> io::Result<Vec<Record>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let records = file.metadata()?.len() / SIZE as u64;
    file.seek(io::SeekFrom::Start(records.saturating_sub(most) * SIZE as u64))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let (whole, _) = bytes.as_chunks::<SIZE>();
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "a record of the history is broken");
    whole.iter().map(|bytes| Record::from_bytes(bytes).ok_or_else(bad)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_as_bytes_and_a_broken_one_is_noticed() {
        for kind in KINDS {
            let record = Record {
                kind,
                shared: kind == Kind::Held,
                worker: 7,
                claim: u64::MAX,
                at: 1,
                lease: 2,
                fence: 3,
                deadline: 4,
            };
            let bytes = record.to_bytes();
            assert_eq!(Record::from_bytes(&bytes), Some(record));
            for place in 0..SIZE {
                let mut bytes = bytes;
                bytes[place] ^= 0x10;
                assert_eq!(Record::from_bytes(&bytes), None, "byte {place}");
            }
        }
    }
}
