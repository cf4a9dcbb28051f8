//! A log that blocks the caller at the moment of a grant. Alone in its binary, because the log belongs to the process.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::backends::memory::Memory;
use leasehold::layers::telemetry::{EventKind, Telemetry};
use leasehold::{GuardState, Locks};
use tracing_subscriber::layer::{Context, SubscriberExt as _};

/// Only a failure takes this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// Accepts the log line of a grant only after a renewal was answered.
struct Stubborn(Arc<AtomicBool>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Stubborn {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Granted(bool);
        impl tracing::field::Visit for Granted {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 |= format!("{value:?}") == "lease granted";
            }
        }
        let mut granted = Granted(false);
        event.record(&mut granted);
        let began = Instant::now();
        while granted.0 && !self.0.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[tokio::test]
async fn a_lease_is_renewed_while_a_log_blocks_its_grant() {
    let renewed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&renewed);
    let store = Telemetry::new(Memory::new(), move |event| {
        if event.kind == EventKind::Renew && event.ok {
            seen.store(true, Ordering::SeqCst);
        }
    });
    let subscriber = tracing_subscriber::registry().with(Stubborn(Arc::clone(&renewed)));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let locks = Locks::builder(Arc::new(store)).renew_every(Duration::from_millis(50)).build();
    let guard = locks.mutex("x").lock().await.unwrap();
    assert!(renewed.load(Ordering::SeqCst), "nobody renewed the lease while the log blocked");
    assert_eq!(guard.state(), GuardState::Held);
}
