//! The setting of a history: what the judge must know that no record says.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// The name of its file in the directory of a run.
pub const FILE: &str = "setting.json";

/// The setting of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The seed of the plan.
    pub seed: u64,
    /// The profile of faults.
    pub profile: String,
    /// The scheme of the store.
    pub store: String,
    /// How the store was configured, for people.
    pub configuration: String,
    /// What the store promises.
    pub promises: Promises,
    /// The names of the locks; records contain their index in this list.
    pub names: Vec<Name>,
    /// The number of routes by which workers reach the store; 0: not known. A worker uses the route of its number's
    /// remainder, and a fault of a route hits the workers that use it.
    #[serde(default)]
    pub sides: u32,
    /// The time of the records at the start and the end of the work, in nanoseconds.
    pub span: (u64, u64),
}

/// One lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// As given to the API.
    pub name: String,
    /// How many permits; 0: a mutex or reader-writer lock.
    pub limit: u32,
    /// The part of the store it is in; parts fail over independently.
    #[serde(default)]
    pub part: u64,
}

/// Which answers a fail-over may lose. Any other loss is a violation.
///
/// Derived from `docs/guarantees.md` and the stores' pages; `docs/torture-checks.md` has the table for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Losses {
    /// No answer.
    #[default]
    Nothing,
    /// Answers to releases: a released lease, or a queue place that was given up, may come back until it expires. No
    /// grant or renewal is lost, and no fence falls.
    Releases,
    /// The latest answers, also to grants and renewals. Two clients may then both believe that they hold the lock.
    /// Fences still rise, except between grants of two primaries at the same time.
    Latest,
}

impl Losses {
    /// The losses of a store by its scheme, if this many replicas must confirm a grant. There is one replica for each
    /// primary.
    pub fn of(scheme: &str, wait_replicas: u32) -> Self {
        match (scheme, wait_replicas) {
            // Redis replicates after it has answered.
            ("redis-sentinel" | "redis-cluster", 0) => Losses::Latest,
            // All replicas confirm grants and renewals; none confirms a release.
            ("redis-sentinel" | "redis-cluster", _) => Losses::Releases,
            // An answer is on the standby's disk (`synchronous_standby_names`).
            _ => Losses::Nothing,
        }
    }
}

/// The store's own promises, as far as the judge needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promises {
    /// Leases end with their session, not with a ttl: deadlines are [`SESSION`](super::record::SESSION).
    pub session: bool,
    /// For a session store: how long after the store is gone a holder may still rely on its lock, in nanoseconds.
    pub notices_within: u64,
    /// Grants carry fences.
    pub fenced: bool,
    /// First come, first served.
    pub fifo: bool,
    /// Waiters are woken.
    pub push: bool,
    /// How long a dead waiter's place can delay the others, in nanoseconds.
    pub ticket: u64,
    /// Answers survive a SIGKILL of the store.
    pub durable: bool,
    /// A step of the store's wall clock moves no expiry. Where it does, leases during such a step are not judged by
    /// their deadlines.
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
    /// Those of the system; `InvalidData` for an invalid setting.
    pub fn read(directory: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(directory.join(FILE))?)?)
    }
}
