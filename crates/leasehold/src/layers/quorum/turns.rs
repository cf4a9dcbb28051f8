//! Lets one task at a time work on a lease id.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::lease_id::LeaseId;

/// The turns in use, by lease id.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<LeaseId, Arc<tokio::sync::Mutex<()>>>>);

/// A turn, which ends when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    id: LeaseId,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for a turn.
    pub(super) async fn take(&self, id: LeaseId) -> Turn<'_> {
        let line = Arc::clone(self.0.lock().entry(id).or_default());
        // Made before waiting, so that a task that gives up waiting leaves nothing behind.
        let mut turn = Turn { turns: self, id, held: None };
        turn.held = Some(line.lock_owned().await);
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.turns.0.lock();
        self.held = None;
        // Every waiter has a clone, made under this lock.
        if lines.get(&self.id).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.id);
        }
    }
}
