//! Checks, for all waiters of a client, that the server still answers: their own requests stay silent until they end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::pool::Pool;
use crate::engine::reporter;

/// How often the client asks, while anything waits.
const EVERY: Duration = Duration::from_secs(2);

/// How long the answer may take: with the pause before, a client notices a silent server after four seconds.
const LATE: Duration = Duration::from_secs(2);

/// One pulse for all long polls of a client; it stops when there are none.
#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<Weak<watch::Sender<()>>>);

/// A long poll that listens to the pulse.
#[derive(Debug)]
pub(super) struct Listener(watch::Receiver<()>);

impl Listener {
    /// Resolves when the server no longer answers.
    pub(super) async fn stops(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

impl Pulse {
    /// Listens to the pulse; the first listener starts it.
    pub(super) fn listen(pulse: &Arc<Pulse>, pool: &Arc<Pool>) -> Listener {
        let mut beating = pulse.0.lock();
        if let Some(beat) = beating.upgrade() {
            return Listener(beat.subscribe());
        }
        let (beat, listener) = watch::channel(());
        let beat = Arc::new(beat);
        *beating = Arc::downgrade(&beat);
        pool.runtime().spawn(run(Arc::downgrade(pulse), beat, Arc::downgrade(pool)));
        Listener(listener)
    }

    /// Whether no listener is left; the next one then starts another pulse.
    fn is_over(&self, beat: &watch::Sender<()>) -> bool {
        let mut beating = self.0.lock();
        let over = beat.receiver_count() == 0;
        if over {
            *beating = Weak::new();
        }
        over
    }
}

/// Asks until no listener is left or the server does not answer. Listeners learn of it when `beat` is dropped.
async fn run(pulse: Weak<Pulse>, beat: Arc<watch::Sender<()>>, pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let (Some(pulse), Some(pool)) = (pulse.upgrade(), pool.upgrade()) else { return };
        if pulse.is_over(&beat) {
            return;
        }
        // Any answer shows that the server is there.
        if let Err(error) = pool.get_within("/healthz", LATE).await {
            reporter::log(move || {
                tracing::debug!(%error, "the server fell silent; what waits for it is sent again");
            });
            pool.forget_idle();
            // A listener that comes from now on starts another pulse.
            *pulse.0.lock() = Weak::new();
            return;
        }
    }
}
