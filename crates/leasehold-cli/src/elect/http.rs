//! Says over HTTP whether this process leads.

use std::sync::Arc;

use leasehold::{AnyLost, Election, Fence, Leader, MultiGuard};
use leasehold_server::serve_probe;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::lock;
use crate::report::Failure;
use crate::run::voice::{Event, Voice};
use crate::serve::addresses::{Addresses, urls};

/// What this process knows about the election: its own term, and where to ask for that of another.
pub(crate) struct Seat {
    name: String,
    /// The number of the own term, and the signal of its loss, which knows the deadline.
    term: Mutex<Option<(Fence, AnyLost)>>,
    election: Mutex<Option<Election>>,
}

impl Seat {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        Arc::new(Seat { name: name.to_owned(), term: Mutex::new(None), election: Mutex::new(None) })
    }

    /// The store is open.
    pub(crate) fn can_ask(&self, election: Election) {
        *self.election.lock() = Some(election);
    }

    /// This process leads until the term is lost, or left.
    pub(crate) fn take(&self, term: Fence, guard: &MultiGuard) {
        *self.term.lock() = Some((term, guard.lost()));
    }

    /// The term is about to be resigned.
    pub(crate) fn leave(&self) {
        *self.term.lock() = None;
    }

    /// The number of the own term, if its deadline has not passed.
    fn term(&self) -> Option<Fence> {
        self.term.lock().as_ref().filter(|(_, lost)| lost.now().is_none()).map(|(term, _)| *term)
    }

    /// Whether this process leads, and the body that says so.
    async fn state(self: Arc<Self>) -> (bool, Value) {
        let own = |term| (true, json!({ "leading": true, "name": self.name, "term": term }));
        if let Some(term) = self.term() {
            return own(term);
        }
        let election = self.election.lock().clone();
        let leader = match election {
            Some(election) => tokio::time::timeout(lock::ANSWER, election.leader()).await.ok(),
            None => None,
        };
        // It may have won meanwhile.
        if let Some(term) = self.term() {
            return own(term);
        }
        let mut body = json!({ "leading": false, "name": self.name });
        match leader {
            Some(Ok(leader)) => body["leader"] = leader.as_ref().map_or(Value::Null, shown),
            Some(Err(error)) => body["error"] = error.to_string().into(),
            None => body["error"] = "the store does not answer".into(),
        }
        (false, body)
    }
}

fn shown(leader: &Leader) -> Value {
    let Leader { owner, term, metadata, .. } = leader;
    json!({ "owner": owner, "term": term, "metadata": metadata })
}

/// Answers on this address until dropped.
pub(crate) async fn answer(address: &str, seat: &Arc<Seat>, voice: Voice) -> Result<JoinSet<()>, Failure> {
    let listeners = Addresses::of("--http", address).await?.listen()?;
    for url in urls("http", &listeners)? {
        voice.tell(&Event::Listening { url: &url });
    }
    let seat = Arc::clone(seat);
    let mut task = JoinSet::new();
    task.spawn(serve_probe(listeners, move || Arc::clone(&seat).state()));
    Ok(task)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::Locks;

    use super::*;

    #[test]
    fn a_term_whose_deadline_has_passed_is_not_led() {
        crate::runtime().expect("a runtime").block_on(async {
            let locks = Locks::connect("memory:").await.expect("memory opens");
            let seat = Seat::new("x");
            assert_eq!(seat.term(), None);
            let brief = locks.all(["x"]).max_hold(Duration::from_millis(100));
            let guard = brief.lock().await.expect("it is free");
            seat.take(Fence::new(7), &guard);
            guard.lost().await;
            // The command may still be dying, and the term is not left yet.
            assert_eq!(seat.term(), None);
            let (leads, body) = Arc::clone(&seat).state().await;
            assert!(!leads && body["leading"] == false, "{body}");
            let guard = locks.all(["y"]).lock().await.expect("it is free");
            seat.take(Fence::new(8), &guard);
            let (leads, body) = Arc::clone(&seat).state().await;
            assert!(leads && body["term"] == 8, "{body}");
            seat.leave();
            assert_eq!(seat.term(), None);
        });
    }
}
