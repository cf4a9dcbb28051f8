//! What the locks protect: a separate process with two tables. The fenced table rejects stale writes; the unfenced one
//! shows what would have been corrupted.
//!
//! It uses a Unix socket: a request is 40 bytes, its answer 1. Only exclusively held names are written to, because
//! fences do not order holders that share a lock.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use leasehold::clock::{Clock as _, SystemClock};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::history::record::{Fault, Kind, Log, Record};

/// The name of its history in the directory of a run.
pub const HISTORY: &str = "resource";

const REQUEST: usize = 40;

/// What a holder does to the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Verb {
    /// Writes to the fenced table.
    Write,
    /// Begins work in the unfenced table that only one may do at a time.
    Enter,
    /// Ends it.
    Leave,
}

/// The holder that acts, with its fence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) name: u16,
    pub(crate) task: u16,
    pub(crate) worker: u32,
    pub(crate) claim: u64,
    pub(crate) lease: u64,
    pub(crate) fence: u64,
}

/// A worker's connection to the resource.
#[derive(Debug)]
pub(crate) struct Client(tokio::net::UnixStream);

impl Client {
    pub(crate) async fn connect(socket: &Path) -> io::Result<Self> {
        tokio::net::UnixStream::connect(socket).await.map(Client)
    }

    /// Writes to the fenced table; returns whether the write was accepted.
    pub(crate) async fn write(&mut self, holder: Holder) -> io::Result<bool> {
        self.ask(Verb::Write, holder).await
    }

    /// Begins work that only one may do at a time, without any check.
    pub(crate) async fn enter(&mut self, holder: Holder) -> io::Result<()> {
        self.ask(Verb::Enter, holder).await.map(drop)
    }

    /// Ends it.
    pub(crate) async fn leave(&mut self, holder: Holder) -> io::Result<()> {
        self.ask(Verb::Leave, holder).await.map(drop)
    }

    async fn ask(&mut self, verb: Verb, holder: Holder) -> io::Result<bool> {
        self.0.write_all(&encode(verb, holder)).await?;
        let mut answer = [0; 1];
        self.0.read_exact(&mut answer).await?;
        Ok(answer == [1])
    }
}

fn encode(verb: Verb, holder: Holder) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[0] = verb as u8;
    bytes[2..4].copy_from_slice(&holder.name.to_le_bytes());
    bytes[4..6].copy_from_slice(&holder.task.to_le_bytes());
    bytes[8..12].copy_from_slice(&holder.worker.to_le_bytes());
    bytes[16..24].copy_from_slice(&holder.claim.to_le_bytes());
    bytes[24..32].copy_from_slice(&holder.lease.to_le_bytes());
    bytes[32..40].copy_from_slice(&holder.fence.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; REQUEST]) -> Option<(Verb, Holder)> {
    let verb = [Verb::Write, Verb::Enter, Verb::Leave].into_iter().find(|verb| *verb as u8 == bytes[0])?;
    let short = |place: usize| u16::from_le_bytes([bytes[place], bytes[place + 1]]);
    let word = |place: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[place..place + 8]);
        u64::from_le_bytes(word)
    };
    let holder = Holder {
        name: short(2),
        task: short(4),
        worker: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
        claim: word(16),
        lease: word(24),
        fence: word(32),
    };
    Some((verb, holder))
}

/// Whether stale writes are accepted: a planted defect.
fn takes_stale() -> bool {
    #[cfg(feature = "__bugs")]
    return leasehold::bugs::on(leasehold::bugs::Bug::ResourceTakesStale);
    #[cfg(not(feature = "__bugs"))]
    false
}

/// Both tables; the order of their changes is that of the history.
struct Tables {
    highest: HashMap<u16, u64>,
    log: Log,
}

impl Tables {
    fn apply(&mut self, verb: Verb, holder: Holder) -> io::Result<bool> {
        let Holder { name, task, worker, claim, lease, fence } = holder;
        let kind = if verb == Verb::Write { Kind::FencedWrite } else { Kind::UnfencedWrite };
        let mut record = Record {
            name,
            task,
            claim,
            lease,
            fence,
            ..Record::new(kind, worker, SystemClock.now().as_nanos())
        };
        let mut taken = true;
        match verb {
            Verb::Write => {
                let highest = self.highest.entry(name).or_default();
                record.value = *highest;
                taken = fence >= *highest || takes_stale();
                if taken {
                    *highest = fence;
                    record.fault = Fault::Kill; // 1: taken
                }
            }
            Verb::Enter => record.value = 1,
            Verb::Leave => {}
        }
        self.log.write(record)?;
        Ok(taken)
    }
}

/// Serves until its input ends, together with its parent.
pub(crate) fn serve(socket: &Path, history: &Path) -> io::Result<()> {
    let log = Log::append(history)?;
    let listener = UnixListener::bind(socket)?;
    let tables = Arc::new(Mutex::new(Tables { highest: HashMap::new(), log }));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let tables = Arc::clone(&tables);
            std::thread::spawn(move || converse(client, &tables));
        }
    });
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn converse(mut client: UnixStream, tables: &Mutex<Tables>) {
    // Work it has begun and not ended: if its process dies, that work has ended too.
    let mut inside: Vec<Holder> = Vec::new();
    let mut bytes = [0; REQUEST];
    while client.read_exact(&mut bytes).is_ok() {
        let Some((verb, holder)) = decode(&bytes) else { break };
        match verb {
            Verb::Enter => inside.push(holder),
            Verb::Leave => inside.retain(|one| one.claim != holder.claim),
            Verb::Write => {}
        }
        let done = tables.lock().apply(verb, holder);
        let Ok(taken) = done else { std::process::exit(1) };
        if client.write_all(&[u8::from(taken)]).is_err() {
            break;
        }
    }
    for holder in inside {
        let done = tables.lock().apply(Verb::Leave, holder);
        if done.is_err() {
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::read;

    #[test]
    fn a_stale_write_is_rejected_and_both_are_written_down() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let mut tables = Tables { highest: HashMap::new(), log: Log::append(&path).expect("a log") };
        let holder = |fence| Holder { name: 1, task: 2, worker: 3, claim: 4, lease: 5, fence };
        let (verb, same) = decode(&encode(Verb::Write, holder(6))).expect("it is a request");
        assert!(tables.apply(verb, same).expect("it is written"));
        assert!(tables.apply(verb, same).expect("it is written"));
        assert!(!tables.apply(verb, holder(5)).expect("it is written"));
        assert!(tables.apply(Verb::Enter, holder(5)).expect("it is written"));
        let records = read(&path).expect("it is read");
        let seen: Vec<_> =
            records.iter().map(|r| (r.kind, r.worker, r.claim, r.fence, r.value, r.fault as u8)).collect();
        assert_eq!(
            seen,
            [
                (Kind::FencedWrite, 3, 4, 6, 0, 1),
                (Kind::FencedWrite, 3, 4, 6, 6, 1),
                (Kind::FencedWrite, 3, 4, 5, 6, 0),
                (Kind::UnfencedWrite, 3, 4, 5, 1, 0),
            ]
        );
    }
}
