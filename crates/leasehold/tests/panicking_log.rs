//! A log that panics at every line and every span. Alone in its binary, because the log belongs to the process.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::{GuardState, Locks};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static PANICS: AtomicU64 = AtomicU64::new(0);

struct Panics;

impl Panics {
    fn panic() -> ! {
        PANICS.fetch_add(1, Ordering::SeqCst);
        // Without a message for each.
        std::panic::resume_unwind(Box::new("the log is broken"))
    }
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Panics::panic()
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        Panics::panic()
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_log_that_panics_keeps_nobody_from_locking() {
    tracing::subscriber::set_global_default(Panics).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    // A file that others can read is warned of when it is opened.
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let locks = Locks::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let guard = locks.mutex("x").lock().await.unwrap();
    assert!(locks.mutex("x").try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
    assert!(PANICS.load(Ordering::SeqCst) >= 4, "spans and lines were written");
    locks.close().await;
}
