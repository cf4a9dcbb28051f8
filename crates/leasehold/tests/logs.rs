//! What is logged when a lease changes its state. Alone in its binary: tracing decides once for all threads whether an
//! event is of interest, so tests that do not listen would silence it.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{ErrorKind, Gone, GuardState};
use testkit::faulty::{Act, Verb};
use testkit::paused::{Paused, settle};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Lines = Arc<Mutex<Vec<String>>>;

/// Writes down every event of this thread, with all its fields.
struct Listener(Lines);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Listener {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        // What a program shows by default; the rest has its own tests.
        if *event.metadata().level() > tracing::Level::INFO {
            return;
        }
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                use std::fmt::Write as _;
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

#[tokio::test(start_paused = true)]
async fn state_changes_are_logged_once_and_without_names_or_ids() {
    use tracing_subscriber::layer::SubscriberExt as _;
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(Listener(Arc::clone(&lines)));
    let _listening = tracing::subscriber::set_default(subscriber);
    let logged = |expected: &[&str], hash: &str| {
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "{line:?} should say {expected:?}");
            assert!(line.contains(hash), "{line:?}");
        }
        lines.concat()
    };

    let world = Paused::with(|_| {}, |builder| builder.release_timeout(ms(100)));
    let secret = "merger-with-acme";
    let guard = world.locks.mutex(secret).lock().await.unwrap();
    let (id, hash) = (guard.lease_id(), guard.name().hash());
    world.until(9000).await;
    let mut all = logged(&[], &hash);

    let faults = [Act::Fail(ErrorKind::Unavailable), Act::Fail(ErrorKind::Overloaded), Act::Never, Act::Pass];
    world.store.plan(Verb::Renew, faults);
    world.until(60_000).await;
    assert_eq!(guard.state(), GuardState::Held);
    all += &logged(&["WARN message=lease at risk", "INFO message=lease held again"], &hash);

    world.store.always(Verb::Renew, Act::Fail(ErrorKind::NetworkTimeout));
    guard.lost().await;
    assert_eq!((guard.state(), guard.check().is_err()), (GuardState::Lost, true));
    all += &logged(&["WARN message=lease at risk", "WARN message=lease lost"], &hash);

    world.store.always(Verb::Release, Act::Fail(ErrorKind::Unavailable));
    drop(guard);
    tokio::time::sleep(ms(1000)).await;
    all += &logged(&["WARN message=a release failed"], &hash);
    world.store.always(Verb::Release, Act::Pass);
    tokio::time::sleep(ms(30_000)).await;

    world.store.always(Verb::Renew, Act::Gone(Gone::Revoked));
    let guard = world.locks.mutex(secret).lock().await.unwrap();
    guard.lost().await;
    all += &logged(&["WARN message=lease lost"], &hash);
    assert!(all.contains("it was revoked"), "{all}");
    drop(guard);
    settle().await;
    assert_eq!(logged(&[], &hash), "");
    assert!(!all.contains(secret) && !all.contains(id.expose()), "{all}");
}
