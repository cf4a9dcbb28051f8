//! Requests with one lease id follow each other: what one left in the store that nobody was told of is the next one's.
//!
//! The store knows of attempts only who came last. If the first request gave back while the second takes over, neither
//! would know of the other: the first sees that its lease is another's by now, the second found one that it did not
//! make, and if both clients have gone, nobody gives it back. So a request waits until the one before it has come to
//! an end or to a point where it can hand over, and goes on with its number. At one server: two that stand before
//! one store do not know of each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::backend::Claim;
use leasehold::{Cancel, LeaseId, Name};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::app::App;

type Key = (Name, LeaseId);

/// The requests that are under way, by what they ask for: the latest of each.
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

/// What a request leaves to the next: with this number it can see whether anything is in the store, and whether anybody
/// but them has touched that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) nonce: u64,
    /// The next call takes over what there is.
    pub(crate) first: bool,
    /// A call got no answer.
    pub(crate) unanswered: bool,
    /// Whatever has that number was put there by them, and nobody was told of it.
    pub(crate) ours: bool,
}

/// One request's turn. Dropped, the next one begins on its own.
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
    /// Stands behind whoever is under way with this claim's id, and tells it so.
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

    /// Waits for the one before, no longer than its one call to the store takes; what it leaves, if anything.
    pub(crate) async fn comes(&mut self) -> Option<Left> {
        self.before.take()?.await.ok()
    }

    /// Resolves when a newer request stands behind this one.
    pub(crate) async fn is_wanted(&self) {
        self.newer.cancelled().await;
    }

    /// Leaves this to the next, if there is one; otherwise the turn goes on.
    pub(crate) fn hand_over(mut self, left: Left) -> Option<Self> {
        let is_latest =
            self.app.turns.latest.lock().get(&self.key).is_some_and(|latest| latest.number == self.number);
        if is_latest {
            return Some(self);
        }
        // Nobody listens only where a runtime ends.
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
        // The same id on another name is something else.
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
