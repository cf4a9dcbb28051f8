//! The queue as a holder sees it, and names by which those who wait in it are known.

use std::time::Duration;

use crate::history::record::{Kind, hash};

use super::Player;
use super::pen::{now, recorded};

/// The owner that a claim of a worker shows.
pub(super) fn owner(worker: u32, claim: u64) -> String {
    format!("worker-{worker}-{claim}")
}

/// Which claim of which worker an owner tells of.
fn who(owner: &str) -> Option<(u32, u64)> {
    let (worker, claim) = owner.strip_prefix("worker-")?.split_once('-')?;
    Some((worker.parse().ok()?, claim.parse().ok()?))
}

impl Player {
    /// Lists those who wait for the lock that it holds, by worker and claim.
    pub(super) async fn list(&self) -> Option<Vec<(u32, u64)>> {
        let patience = Duration::from_millis(self.task.patience_ms);
        self.pen.note(Kind::ListCall, now(), 0, 0);
        let listed = tokio::time::timeout(patience, self.locks.inspect(&self.name().name)).await;
        let Ok(Ok(listed)) = listed else { return None };
        let at = now();
        let mut all = Vec::new();
        for waiter in &listed.waiters {
            // One whose place nobody can tell makes no order.
            let (worker, claim) = who(&waiter.owner).unwrap_or_default();
            all.push((worker, claim));
            let mut pen = self.pen.clone();
            pen.mode = recorded(waiter.mode);
            pen.fence = u64::from(worker);
            pen.lease = if self.task.shows_ids { hash(waiter.id.expose().as_bytes()) } else { 0 };
            pen.note(Kind::Waiting, at, 0, claim);
        }
        self.pen.note(Kind::Listed, at, 0, listed.waiters.len() as u64);
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_tells_whose_claim_it_is() {
        assert_eq!(who(&owner(7, 19)), Some((7, 19)));
        assert_eq!(who("worker-7"), None);
        assert_eq!(who("somebody"), None);
    }
}
