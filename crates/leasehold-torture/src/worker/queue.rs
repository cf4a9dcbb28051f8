//! The queue as a holder sees it, and the labels that identify its waiters.

use std::time::Duration;

use crate::history::record::{Kind, hash};

use super::Player;
use super::pen::{now, recorded};

/// The owner label of a worker's claim.
pub(super) fn owner(worker: u32, claim: u64) -> String {
    format!("worker-{worker}-{claim}")
}

/// The worker and claim that an owner label identifies.
fn who(owner: &str) -> Option<(u32, u64)> {
    let (worker, claim) = owner.strip_prefix("worker-")?.split_once('-')?;
    Some((worker.parse().ok()?, claim.parse().ok()?))
}

impl Player {
    /// Lists the waiters for the lock that it holds, by worker and claim.
    pub(super) async fn list(&self) -> Option<Vec<(u32, u64)>> {
        let patience = Duration::from_millis(self.task.patience_ms);
        self.pen.note(Kind::ListCall, now(), 0, 0);
        let listed = tokio::time::timeout(patience, self.locks.inspect(&self.name().name)).await;
        let Ok(Ok(listed)) = listed else { return None };
        let at = now();
        let mut all = Vec::new();
        for waiter in &listed.waiters {
            // A waiter with an unknown place makes the order useless.
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
    fn an_owner_label_identifies_its_claim() {
        assert_eq!(who(&owner(7, 19)), Some((7, 19)));
        assert_eq!(who("worker-7"), None);
        assert_eq!(who("other"), None);
    }
}
