//! What the library writes to `tracing`: one span and one event for each acquire, an event for each
//! release, and never a name or a lease id.

#![allow(clippy::unwrap_used)] // also in helpers of tests

mod fake;

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fake::{Fake, Verb};
use leasehold::blocking::Locks;
use leasehold::layers::telemetry::{Event, Telemetry};
use leasehold::{Cancel, Error, ErrorKind, GuardState, digest_name};
use testkit::until::until;
use tracing_subscriber::fmt::format::FmtSpan;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Everything that was logged, on whichever thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }

    /// The lines since then; checks that `count` of them contain this text.
    #[track_caller]
    fn expect(&self, seen: &mut usize, text: &str, count: usize) {
        let lines = self.lines();
        let new = &lines[*seen..];
        assert_eq!(new.iter().filter(|line| line.contains(text)).count(), count, "{text}: {new:#?}");
        *seen = lines.len();
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// One test: the log is the process's.
#[test]
fn traces_of_acquires_and_releases_hold_no_name_or_lease_id() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_span_events(FmtSpan::NEW | FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .init();
    const NAME: &str = "very-secret-name";
    let hash = digest_name(NAME);

    let broken = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&broken);
    let store = Fake::new(move |verb| {
        let fail = switch.load(Ordering::SeqCst) && verb != Verb::Inspect;
        async move { if fail { Err(Error::new(ErrorKind::Unavailable, "the test wants it so")) } else { Ok(()) } }
    });
    // Every id, including those that were never granted.
    let ids = Arc::new(Mutex::new(BTreeSet::new()));
    let sink = Arc::clone(&ids);
    let watched = Telemetry::new(store, move |event: &Event| {
        assert!(event.name.as_ref().is_none_or(|name| name.as_str().starts_with(NAME)));
        sink.lock().unwrap().extend(event.lease_id.map(|id| id.expose().to_owned()));
    });
    let locks = Locks::new(watched.include_raw(true))
        .with_options(|options| options.metadata = Some("very-secret-metadata".into()));
    let mutex = locks.mutex(NAME).release_timeout(ms(50));
    let mut seen = 0;

    // Granted, in a span with the details.
    let guard = mutex.lock().unwrap();
    let lines = log.lines().join("\n");
    let span = format!("leasehold.acquire{{scheme=\"memory\" name_hash=\"{hash}\" mode=exclusive}}");
    assert!(lines.contains("DEBUG") && lines.contains(&span), "{lines}");
    let granted = lines.lines().find(|line| line.contains("lease granted")).unwrap();
    assert!(granted.contains(&span) && granted.contains(&format!("fence={}", guard.fence())), "{granted}");
    log.expect(&mut seen, "lease granted", 1);

    assert!(mutex.try_lock().unwrap().is_none());
    log.expect(&mut seen, "lease not granted: another client holds it", 1);
    let cancel = Cancel::new();
    let waiting = {
        let mutex = mutex.clone().cancel_on(&cancel);
        thread::spawn(move || mutex.lock().unwrap_err())
    };
    until("it waits", || locks.inspect(NAME).unwrap().queue_length == 1);
    cancel.cancel();
    waiting.join().unwrap();
    log.expect(&mut seen, "acquire aborted", 1);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let again = locks.as_async().mutex(NAME);
        assert!(tokio::time::timeout(ms(10), again.lock()).await.is_err());
    });
    log.expect(&mut seen, "acquire aborted", 1);
    until("nobody waits", || locks.inspect(NAME).unwrap().queue_length == 0);

    assert_eq!(guard.release().unwrap(), GuardState::Released);
    log.expect(&mut seen, "release ended", 1);
    drop(mutex.lock().unwrap());
    locks.rwlock(NAME).with_read(|_| Ok::<_, Error>(())).unwrap();
    log.expect(&mut seen, "lease granted", 2);
    let lease = locks.leasing(NAME).max_wait(Duration::from_secs(5)).acquire().unwrap();
    locks.renew(&lease).unwrap();
    locks.release(&lease).unwrap();
    seen = log.lines().len();

    // Faults, a risk, a loss, and releases that fail.
    let guard = mutex.lock().unwrap();
    broken.store(true, Ordering::SeqCst);
    assert!(guard.renew_for(Duration::from_secs(60)).is_err());
    log.expect(&mut seen, "lease at risk", 1);
    broken.store(false, Ordering::SeqCst);
    guard.renew_for(Duration::from_secs(60)).unwrap();
    log.expect(&mut seen, "lease held again", 1);
    broken.store(true, Ordering::SeqCst);
    assert!(mutex.try_lock().is_err());
    log.expect(&mut seen, "acquire failed", 1);
    broken.store(false, Ordering::SeqCst);
    locks.revoke(NAME, true).unwrap();
    assert!(guard.renew_for(Duration::from_secs(60)).is_err());
    log.expect(&mut seen, "lease lost", 1);
    assert_eq!(guard.release().unwrap(), GuardState::Lost);
    let guard = locks.mutex(format!("{NAME}-2")).release_timeout(ms(50)).lock().unwrap();
    broken.store(true, Ordering::SeqCst);
    seen = log.lines().len();
    drop(guard);
    locks.close();
    log.expect(&mut seen, "source=\"drop\"", 1);
    assert!(locks.mutex(NAME).lock().is_err());

    // With the last client the sink ends, and it has told everything by then.
    drop((locks, mutex));
    until("the sink ends", || Arc::strong_count(&ids) == 1);
    let lines = log.lines();
    let ids = ids.lock().unwrap();
    assert!(ids.len() >= 8, "{}", ids.len());
    for line in &lines {
        assert!(!line.contains("very-secret"), "{line}");
        assert!(!ids.iter().any(|id| line.contains(id)), "{line}");
    }
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    // Each span has one end event, in which it closes.
    let ends = ["lease granted", "lease not granted", "acquire aborted", "acquire failed"];
    let spans =
        lines.iter().filter(|line| line.contains("leasehold.acquire{") && line.ends_with("new")).count();
    assert_eq!(spans, ends.iter().map(|end| count(end)).sum::<usize>());
    assert_eq!(spans, lines.iter().filter(|line| line.contains(": close")).count());
}
