//! Whether the server still answers, asked for all who wait: their own requests say nothing until they are answered.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::pool::Pool;
use crate::engine::reporter;

/// How often it is asked, while anybody waits.
const EVERY: Duration = Duration::from_secs(2);

/// How long it may take: with the pause before, a server that fell silent is noticed after four seconds.
const LATE: Duration = Duration::from_secs(2);

/// One pulse for all long polls of a client; none while there are none.
#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<Weak<watch::Sender<()>>>);

/// One who wants to know.
#[derive(Debug)]
pub(super) struct Listener(watch::Receiver<()>);

impl Listener {
    /// Resolves when the server does not answer any more.
    pub(super) async fn stops(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

impl Pulse {
    /// Listens; the first who does starts it.
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

    /// Whether nobody listens any more; then the next who does starts another.
    fn is_over(&self, beat: &watch::Sender<()>) -> bool {
        let mut beating = self.0.lock();
        let over = beat.receiver_count() == 0;
        if over {
            *beating = Weak::new();
        }
        over
    }
}

/// Asks until nobody listens or the server does not answer. Those who listen learn it when `beat` is dropped.
async fn run(pulse: Weak<Pulse>, beat: Arc<watch::Sender<()>>, pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let (Some(pulse), Some(pool)) = (pulse.upgrade(), pool.upgrade()) else { return };
        if pulse.is_over(&beat) {
            return;
        }
        // Whatever it says, it is there.
        if let Err(error) = pool.get_within("/healthz", LATE).await {
            reporter::log(move || {
                tracing::debug!(%error, "the server fell silent; what waits for it is sent again");
            });
            pool.forget_idle();
            // Who listens from now on starts another.
            *pulse.0.lock() = Weak::new();
            return;
        }
    }
}
