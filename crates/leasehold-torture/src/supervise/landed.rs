//! Which faults happened, and which of them hit a worker: only those count.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::history::record::Fault;

/// The results of the faults of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Landed {
    /// How many were planned until the end.
    pub planned: u64,
    /// How many hit: the target was there, and felt it.
    pub landed: u64,
    /// How many of these hit a holder of a lock.
    pub holders: u64,
    /// How many of these lasted for longer than the ttl.
    pub past_ttl: u64,
}

/// Results by the name of the fault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Faults(pub BTreeMap<String, Landed>);

impl Faults {
    pub(super) fn of(&mut self, fault: Fault) -> &mut Landed {
        self.0.entry(format!("{fault:?}")).or_default()
    }

    /// Those of one kind.
    pub fn get(&self, fault: Fault) -> Landed {
        self.0.get(&format!("{fault:?}")).copied().unwrap_or_default()
    }

    /// How many fail-overs landed.
    pub(super) fn failovers(&self) -> u64 {
        let all = [Fault::CrashPrimary, Fault::FreezePrimary, Fault::SwitchPrimary];
        all.into_iter().map(|fault| self.get(fault).landed).sum()
    }

    /// How many landed, of all kinds.
    pub fn landed(&self) -> u64 {
        self.0.values().map(|faults| faults.landed).sum()
    }
}
