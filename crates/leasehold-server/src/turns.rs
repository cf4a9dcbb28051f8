//! Requests with the same lease id run one after the other. Each takes over what the previous one left in the store
//! without telling its client.
//!
//! The store knows only the latest attempt. Suppose the first request gave its lease back while the second took it
//! over: the first would see that the lease is another's by now, the second would find a lease that it did not make,
//! and if both clients had disconnected, nobody would give it back. So a request waits until the previous one has
//! ended or can hand over, and continues with its attempt number. This works within one server: two servers in front
//! of one store do not know of each other's requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::backend::Claim;
use leasehold::{Cancel, LeaseId, Name};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::app::App;

type Key = (Name, LeaseId);

/// The latest running request of each name and id.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    latest: Mutex<HashMap<Key, Latest>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Latest {
    number: u64,
    newer: Cancel,
    left: oneshot::Receiver<Left>,
}

/// What a request leaves to the next. With this attempt number the next request can see whether the store holds
/// anything, and whether anybody else has touched it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) nonce: u64,
    /// The next call takes over what the store holds.
    pub(crate) first: bool,
    /// A call went unanswered.
    pub(crate) unanswered: bool,
    /// These requests put whatever has that number into the store, and no client knows of it yet.
    pub(crate) ours: bool,
}

/// One request's turn. If it is dropped, the next request starts afresh.
#[derive(Debug)]
pub(crate) struct Turn {
    app: Arc<App>,
    key: Key,
    number: u64,
    before: Option<oneshot::Receiver<Left>>,
    newer: Cancel,
    tell: Option<oneshot::Sender<Left>>,
}

impl Turn {
    /// Queues behind the running request with this claim's id, and notifies it.
    pub(crate) fn of(app: Arc<App>, claim: &Claim) -> Self {
        let key = (claim.name.clone(), claim.id);
        let number = app.turns.next.fetch_add(1, Ordering::Relaxed);
        let (tell, left) = oneshot::channel();
        let newer = Cancel::new();
        let latest = Latest { number, newer: newer.clone(), left };
        let before = app.turns.latest.lock().insert(key.clone(), latest);
        let before = before.map(|before| {
            before.newer.cancel();
            before.left
        });
        Turn { app, key, number, before, newer, tell: Some(tell) }
    }

    /// Waits for the previous request, at most for its one call to the store. Returns what that request leaves, if
    /// anything.
    pub(crate) async fn comes(&mut self) -> Option<Left> {
        self.before.take()?.await.ok()
    }

    /// Resolves when a newer request queues behind this one.
    pub(crate) async fn is_wanted(&self) {
        self.newer.cancelled().await;
    }

    /// Hands over to the next request, if there is one; otherwise returns the turn.
    pub(crate) fn hand_over(mut self, left: Left) -> Option<Self> {
        let is_latest =
            self.app.turns.latest.lock().get(&self.key).is_some_and(|latest| latest.number == self.number);
        if is_latest {
            return Some(self);
        }
        // The receiver is gone only when its runtime ends.
        self.tell.take().and_then(|tell| tell.send(left).err()).map(|_| self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut latest = self.app.turns.latest.lock();
        if latest.get(&self.key).is_some_and(|latest| latest.number == self.number) {
            latest.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::backend::Mode;
    use std::time::Duration;

    #[tokio::test]
    async fn turns_follow_each_other_and_leave_nothing_behind() {
        let locks = leasehold::Locks::connect("memory:").await.unwrap();
        let app = App::new(locks, crate::Settings::default()).unwrap();
        let claim = |name| Claim::new(app.name(name).unwrap(), Mode::Exclusive, Duration::from_secs(1), "me");
        let (mut one, other) = (claim("a"), claim("b"));
        one.id = other.id;
        let left = Left { nonce: 7, first: false, unanswered: false, ours: true };
        let mut first = Turn::of(Arc::clone(&app), &one);
        assert!(first.comes().await.is_none());
        // The same id on another name is independent.
        let elsewhere = Turn::of(Arc::clone(&app), &other);
        let first = first.hand_over(left).expect("nobody is behind it");
        let mut second = Turn::of(Arc::clone(&app), &one);
        first.is_wanted().await;
        assert!(first.hand_over(left).is_none());
        assert_eq!(second.comes().await.map(|left| left.nonce), Some(7));
        let mut third = Turn::of(Arc::clone(&app), &one);
        drop(second);
        assert!(third.comes().await.is_none(), "who was told leaves nothing");
        drop((third, elsewhere));
        assert!(app.turns.latest.lock().is_empty());
    }
}
