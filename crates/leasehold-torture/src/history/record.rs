//! The records that a process writes: all of one size, each by one plain write, so that they survive a SIGKILL.
//!
//! The record of a call is written before the call is made, that of an answer after it came. So whatever happened,
//! happened between the two. A call without an answer is *unknown*: its process was killed, or its future dropped,
//! before it knew.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;

/// Bytes of one record.
pub const SIZE: usize = 96;

/// The deadline of a lease that lasts as long as its session.
pub const SESSION: u64 = u64::MAX;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All of them, each in the place of its number.
            pub const ALL: &[$name] = &[$($name::$variant),+];
        }
    };
}

numbered! {
    /// What happened. Each kind says what the fields of a [`Record`] mean for it; fields not mentioned are 0.
    Kind {
        /// An acquire is about to be called. `value`: how long it may wait in nanoseconds, 0 for a try, `u64::MAX`
        /// without a limit. `lease`: the id, if the caller chose it (a plain lease), also for a repeat. `deadline`:
        /// the requested ttl in nanoseconds; 0 in a store without ttls, or if unknown: then less can be judged.
        /// `fence`: a [`Face`].
        AcquireCall,
        /// It returned a lease: `lease`, `fence`, `deadline`. `value`: 1 if it was a repeat of an acquire.
        Granted,
        /// It returned because another client holds the lock, or its time to wait was over.
        Busy,
        /// It returned an error. It may have been granted all the same; whatever it got is given back. `value`: 1 if
        /// it was a repeat, which gives nothing back: the holder of that lease releases it.
        AcquireFailed,
        /// Its future was dropped before it returned; whatever it got is given back.
        AcquireDropped,
        /// The holder looked and may rely on its lease, at the moment `at` and until `deadline` if nothing happens.
        Held,
        /// The holder looked and found the lost signal set: by `at`, which here is read after looking. `value`: a
        /// [`Loss`].
        Lost,
        /// A renewal is about to be called. `value`: the ttl in nanoseconds.
        RenewCall,
        /// It was renewed until `deadline`.
        Renewed,
        /// The store said that there is no such lease.
        RenewRefused,
        /// The renewal failed: it may have taken effect or not.
        RenewFailed,
        /// A release is about to be called, or the guard to be dropped. `value`: 1 if it is dropped, and nobody awaits
        /// the answer.
        ReleaseCall,
        /// The store said that the release ended the lease.
        Released,
        /// The store said that there was nothing to release.
        ReleasedNothing,
        /// The release failed: it may have taken effect or not.
        ReleaseFailed,
        /// The future of the release was dropped before it returned.
        ReleaseDropped,
        /// A revoke of the name is about to be called. `value`: 1 if it is immediate (frees the lock at once).
        /// `fence`: the only lease it is meant for, or 0 for all.
        RevokeCall,
        /// It returned. `value`: 1 if it failed. `deadline`: one more than the number of leases it found, or 0 if
        /// unknown.
        Revoked,
        /// The holder is about to write to the protected resource, with `fence`. `value`: the number of the write.
        WriteCall,
        /// The fenced table accepted the write (`value`).
        WriteTaken,
        /// The fenced table rejected the write (`value`) as stale.
        WriteRejected,
        /// By the resource: a write came to the fenced table with `fence`. `value`: the highest fence before it.
        /// `fault` is 1 if it was accepted.
        FencedWrite,
        /// By the resource: a holder entered the unfenced table (`value`: 1) or left it (`value`: 0).
        UnfencedWrite,
        /// By the supervisor: a fault begins. `fault`: which. `value`: its target, a worker's number for faults of
        /// workers. `claim`: the only worker that it can hit, or 0. `fence`: one more than the number of the only
        /// route to the store that it can hit, or 0.
        FaultBegin,
        /// By the supervisor: that fault is over. `deadline`: 1 if it hit a holder of a lock.
        FaultEnd,
        /// By the supervisor: the machine stalled from `value` until `at`.
        Stall,
        /// By a worker: the history of a process begins. `value`: its process id.
        Begin,
        /// By a worker: it ends normally, everything it held is released.
        End,
        /// By the supervisor, at rest: something is left in the store for the name. `value`: a [`Leftover`].
        Left,
        /// A downgrade is about to be called: from here on the lease is only shared, and `mode` says so.
        DowngradeCall,
        /// The store has downgraded it: readers may enter.
        Downgraded,
        /// The downgrade failed: it may have taken effect or not.
        DowngradeFailed,
        /// A shortening is about to be called: the holder relies on the lease for no longer than the ttl `value` from now,
        /// in nanoseconds, unless it is renewed.
        ShortenCall,
        /// It returned, and the lease ends at `deadline` unless it is renewed.
        Shortened,
        /// The shortening failed: it may have taken effect or not.
        ShortenFailed,
        /// The guard has become plain data, which nothing renews. `deadline`: as last seen.
        GivenAway,
        /// A lease is about to be adopted, perhaps by another process, which repeats its `lease`, `fence` and `mode`. `value`:
        /// the ttl in nanoseconds.
        AdoptCall,
        /// It is a guard again, until `deadline`.
        Adopted,
        /// The store said that there is no such lease any more.
        AdoptRefused,
        /// The adoption failed: the lease may have been renewed or not.
        AdoptFailed,
        /// Work is about to run for as long as the lease is held.
        RunCall,
        /// It has ended (`value`: 0), or was dropped because the lease was lost (`value`: 1).
        RunEnded,
        /// A holder is about to list the waiters for its lock.
        ListCall,
        /// One of the listed waiters, in the order of the queue: `value` is its claim, `fence` its worker, `lease` its
        /// id if the store shows ids.
        Waiting,
        /// The list is complete. `value`: the number of waiters.
        Listed,
        /// The client of this claim was closed: its give-backs have been sent.
        Closed,
        /// An acquire of several names returned because one of them was missing. It may have been granted this one;
        /// whatever it got is given back.
        Missing,
    }
}

impl Kind {
    /// Whether it shows that the store has answered its caller.
    pub const fn is_answer(self) -> bool {
        matches!(self, Kind::Granted | Kind::Busy | Kind::Renewed | Kind::RenewRefused | Kind::Released)
    }
}

numbered! {
    /// How a lock is claimed.
    Mode {
        /// By one client alone.
        Exclusive,
        /// By all readers.
        Shared,
        /// One of the name's permits.
        Permit,
    }
}

numbered! {
    /// The part of the API that makes an acquire.
    Face {
        /// A lock type of the shared client, or the store itself.
        Usual,
        /// `with_lock` and similar.
        With,
        /// A blocking one.
        Blocking,
        /// A separate client, which is closed in the middle.
        Closing,
        /// A reader's check whether a downgrade lets it in.
        Probe,
        /// The same claim again, after a failure.
        Again,
        /// A bare HTTP client, which vanishes.
        Raw,
        /// One of several names that one call takes. Their calls have the same worker, task and moment, and each name
        /// has its own claim.
        Multi,
    }
}

numbered! {
    /// Why a lease was lost, according to the guard.
    Loss {
        /// Its deadline passed.
        Deadline,
        /// The store refused it.
        Refused,
        /// Any other reason.
        Other,
    }
}

numbered! {
    /// What can be left in a store when nobody uses it.
    Leftover {
        /// A holder of the lock.
        Holder,
        /// A waiter for the lock.
        Waiter,
        /// Anything else that should be gone.
        Other,
    }
}

numbered! {
    /// A fault.
    Fault {
        /// None: records of workers.
        None,
        /// SIGKILL of a worker.
        Kill,
        /// SIGSTOP of a worker.
        Pause,
        /// Packets are late.
        Delay,
        /// Connections are reset.
        Reset,
        /// Connections stay open and nothing gets through.
        Blackhole,
        /// A connection breaks after this many bytes.
        Cut,
        /// One answer is lost.
        Swallow,
        /// One request arrives late.
        Hold,
        /// SIGKILL of the store, which is started again.
        RestartStore,
        /// SIGSTOP of the store.
        PauseStore,
        /// The wall clock of workers steps.
        ClockWorker,
        /// The wall clock of the store steps.
        ClockStore,
        /// The disk is full.
        DiskFull,
        /// No more file descriptors.
        Descriptors,
        /// The store's memory is full.
        Memory,
        /// SIGKILL of a primary; its replica takes its place, and it returns as a replica. `value` of its records, and
        /// of the four kinds that follow: which part of the store.
        CrashPrimary,
        /// SIGSTOP of a primary; its replica takes its place, and it returns as a replica.
        FreezePrimary,
        /// A primary is asked to let its replica take its place.
        SwitchPrimary,
        /// During one of these: the primary answers before its replica has the data, and that replica is about to take
        /// its place. From the moment at which nothing more may reach the replica until the primary stops answering.
        LosesLatest,
        /// During one of these: the old primary serves beside the new one.
        TwoPrimaries,
    }
}

impl Fault {
    /// Whether another server takes the place of a primary.
    pub const fn is_failover(self) -> bool {
        matches!(self, Fault::CrashPrimary | Fault::FreezePrimary | Fault::SwitchPrimary)
    }
}

/// One thing that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What happened.
    pub kind: Kind,
    /// How the lock is claimed.
    pub mode: Mode,
    /// Which fault, in records of the supervisor; otherwise [`Fault::None`], unless a kind says differently.
    pub fault: Fault,
    /// Which lock: its index in the names of the [setting](super::setting::Setting).
    pub name: u16,
    /// Which task of the process. When a task makes another acquire, it no longer keeps its earlier leases alive.
    pub task: u16,
    /// Which process; every process has its own number, also one that replaces another.
    pub worker: u32,
    /// Which acquire of that process: everything that follows from it has the same number.
    pub claim: u64,
    /// When, in nanoseconds of the system's boot-time clock, which all processes share: for calls before they are
    /// made, for answers after they came, for looks before looking.
    pub at: u64,
    /// A hash of the lease id, which is a secret; 0 while unknown.
    pub lease: u64,
    /// Its fence; 0 while unknown.
    pub fence: u64,
    /// Until when the lease may be relied on if nothing happens, or [`SESSION`]; 0 if unknown. If it is not after
    /// `at`, it only says that the deadline had passed by then.
    pub deadline: u64,
    /// See the kind.
    pub value: u64,
}

impl Record {
    /// A record with everything else 0.
    pub const fn new(kind: Kind, worker: u32, at: u64) -> Self {
        Record {
            kind,
            mode: Mode::Exclusive,
            fault: Fault::None,
            name: 0,
            task: 0,
            worker,
            claim: 0,
            at,
            lease: 0,
            fence: 0,
            deadline: 0,
            value: 0,
        }
    }

    /// The bytes that are written.
    pub fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..3].copy_from_slice(&[self.kind as u8, self.mode as u8, self.fault as u8]);
        bytes[4..6].copy_from_slice(&self.name.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.task.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.worker.to_le_bytes());
        let words = [self.claim, self.at, self.lease, self.fence, self.deadline, self.value];
        for (place, word) in words.into_iter().enumerate() {
            bytes[16 + 8 * place..24 + 8 * place].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes[SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses what was written; `None` if it is not a valid record.
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
            kind: *Kind::ALL.get(usize::from(bytes[0]))?,
            mode: *Mode::ALL.get(usize::from(bytes[1]))?,
            fault: *Fault::ALL.get(usize::from(bytes[2]))?,
            name: u16::from_le_bytes([bytes[4], bytes[5]]),
            task: u16::from_le_bytes([bytes[6], bytes[7]]),
            worker: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            claim: word(16),
            at: word(24),
            lease: word(32),
            fence: word(40),
            deadline: word(48),
            value: word(56),
        })
    }
}

/// Over all bytes but itself.
fn checksum(bytes: &[u8; SIZE]) -> u64 {
    hash(&bytes[..SIZE - 8])
}

/// A hash of bytes (FNV-1a), for checksums, and for lease ids, which are secrets.
pub fn hash(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    bytes.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
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

    /// Writes one record. Once this returns, the record survives the end of the process.
    ///
    /// # Errors
    /// Those of the system. A history with holes proves nothing, so the process must then end.
    pub fn write(&self, record: Record) -> io::Result<()> {
        let written = (&self.0).write(&record.to_bytes())?;
        if written == SIZE { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// All whole records of a file; none if there is no file yet.
///
/// # Errors
/// Those of the system; `InvalidData` for invalid records.
pub fn read(path: &Path) -> io::Result<Vec<Record>> {
    read_last(path, u64::MAX)
}

/// The last whole records of a file, at most this many.
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
        for kind in Kind::ALL {
            let record = Record {
                mode: Mode::Permit,
                fault: Fault::Memory,
                name: 7,
                task: u16::MAX,
                claim: u64::MAX,
                lease: 2,
                fence: 3,
                deadline: SESSION,
                value: 5,
                ..Record::new(*kind, 8, 1)
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

    #[test]
    fn records_and_hashes_match_the_sdk_vectors() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../../sdk/vectors.json")).expect("it is JSON");
        for case in vectors["pure"]["records"].as_array().expect("there are records") {
            let big = |field: &str| -> u64 { case[field].as_str().expect("text").parse().expect("a number") };
            let small = |field: &str| case[field].as_u64().expect("a number");
            let kind = Kind::ALL.iter().find(|kind| case["kind"] == format!("{kind:?}"));
            let mode = Mode::ALL.iter().find(|mode| case["mode"] == format!("{mode:?}").to_lowercase());
            let record = Record {
                mode: *mode.expect("a mode"),
                name: small("place") as u16,
                task: small("task") as u16,
                claim: big("claim"),
                lease: big("lease"),
                fence: big("fence"),
                deadline: big("deadline"),
                value: big("value"),
                ..Record::new(*kind.expect("a kind"), small("worker") as u32, big("at"))
            };
            let hex: String = record.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(case["hex"], hex);
        }
        for case in vectors["pure"]["hashes"].as_array().expect("there are hashes") {
            let id = case["lease_id"].as_str().expect("text");
            assert_eq!(case["fnv1a"], hash(id.as_bytes()).to_string());
        }
    }

    #[test]
    fn the_last_records_are_read_and_half_a_record_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        assert_eq!(read(&path).expect("no file is no records"), []);
        let log = Log::append(&path).expect("a log");
        let records: Vec<_> = (0..5).map(|at| Record::new(Kind::Held, 1, at)).collect();
        for record in &records {
            log.write(*record).expect("it is written");
        }
        (&log.0).write_all(&[0; SIZE / 2]).expect("half of one");
        assert_eq!(read(&path).expect("it is read"), records);
        assert_eq!(read_last(&path, 2).expect("it is read"), records[3..]);
    }
}
