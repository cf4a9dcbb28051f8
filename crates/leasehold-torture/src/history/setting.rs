//! In what setting a history was made: what a judge must know that no record says.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// The name of its file in the directory of a run.
pub const FILE: &str = "setting.json";

/// One run: what was asked of which store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The plan follows from this.
    pub seed: u64,
    /// The profile of faults.
    pub profile: String,
    /// The scheme of the store.
    pub store: String,
    /// How the store was configured, for people.
    pub configuration: String,
    /// What the store promises.
    pub promises: Promises,
    /// The names of the locks; records give their place in this list.
    pub names: Vec<Name>,
    /// By how many ways workers reach the store; 0: not known. A worker goes by the way of its number's remainder, and a
    /// fault of one way is felt by those who go by it.
    #[serde(default)]
    pub sides: u32,
    /// The time of the records at the start and the end of the work, in nanoseconds.
    pub span: (u64, u64),
}

/// One lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// As the API was given it.
    pub name: String,
    /// How many permits; 0: a mutex or reader-writer lock.
    pub limit: u32,
    /// Which part of the store it is in: those that fail over by themselves.
    #[serde(default)]
    pub part: u64,
}

/// What a fail-over may lose of what was answered. All else that is lost is a violation.
///
/// Derived from `docs/guarantees.md` and the stores' pages; `docs/torture-checks.md` has the table for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Losses {
    /// Nothing.
    #[default]
    Nothing,
    /// That a lease was released, or a place in the queue given up: it is back until its time is over. Never a grant or a
    /// renewal, and no fence falls.
    Releases,
    /// Whatever was answered last: grants, renewals and releases. Two may then believe. What two primaries give at the same
    /// time has no order; otherwise no fence falls.
    Latest,
}

impl Losses {
    /// Of a store by its scheme, in which so many replicas have to confirm a grant. There is one replica for each primary.
    pub fn of(scheme: &str, wait_replicas: u32) -> Self {
        match (scheme, wait_replicas) {
            // Redis replicates after it has answered.
            ("redis-sentinel" | "redis-cluster", 0) => Losses::Latest,
            // All replicas confirm grants and renewals; nobody confirms a release.
            ("redis-sentinel" | "redis-cluster", _) => Losses::Releases,
            // The standby has on disk what is answered (`synchronous_standby_names`).
            _ => Losses::Nothing,
        }
    }
}

/// What the store says of itself, as far as a judge needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promises {
    /// Leases end with their session, not with a ttl: deadlines are [`SESSION`](super::record::SESSION).
    pub session: bool,
    /// For a session store: how long after the store is gone a holder may still believe, in nanoseconds.
    pub notices_within: u64,
    /// Grants carry fences.
    pub fenced: bool,
    /// First come, first served.
    pub fifo: bool,
    /// Waiters are woken.
    pub push: bool,
    /// How long a dead waiter's place can hold up the others, in nanoseconds.
    pub ticket: u64,
    /// What was answered survives a SIGKILL of the store.
    pub durable: bool,
    /// A step of the store's wall clock moves no expiry. Where it does, leases that meet such a step are not judged
    /// by their deadlines.
    #[serde(default)]
    pub steady: bool,
    /// No fault of the run keeps a client from renewing: no guard may be lost.
    #[serde(default)]
    pub keeps: bool,
    /// What a fail-over may lose.
    #[serde(default)]
    pub losses: Losses,
}

impl Setting {
    /// Writes it into the directory of a run.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(directory.join(FILE), text + "\n")
    }

    /// Reads it from the directory of a run.
    ///
    /// # Errors
    /// Those of the system; `InvalidData` for what is no setting.
    pub fn read(directory: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(directory.join(FILE))?)?)
    }
}
