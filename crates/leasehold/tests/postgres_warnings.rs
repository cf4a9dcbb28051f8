//! What is logged when PostgreSQL stores are opened and used, and that it contains no password. Alone in its binary,
//! because the log belongs to the process.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::io::Write;
use std::sync::{Arc, Mutex};

use leasehold::{ErrorKind, Locks};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};

const PASSWORD: &str = "hush-hush";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The warnings since the last call.
    fn warnings(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        assert!(!text.contains(PASSWORD), "{text}");
        text.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect()
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

/// The URL of a store behind a port, with a password.
fn url(scheme: &str, user: &str, port: u16, options: &str) -> String {
    format!("{scheme}://{user}:{PASSWORD}@127.0.0.1:{port}/postgres?{options}")
}

#[tokio::test(flavor = "multi_thread")]
async fn poolers_and_missing_rights_are_warned_of_without_passwords() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let server = Postgres::builder().access("host all app 127.0.0.1/32 scram-sha-256").start();
    server.sql(&format!(
        "SET password_encryption = 'scram-sha-256'; REVOKE CREATE ON DATABASE postgres FROM PUBLIC; \
         CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'"
    ));
    let transaction = PgBouncer::start(&server, PoolMode::Transaction, 5);
    let session = PgBouncer::start(&server, PoolMode::Session, 20);
    let used = async |url: String| {
        let locks = Locks::connect(&url).await.unwrap();
        let mutex = locks.mutex("x").allow_unfenced(true);
        let held = mutex.lock().await.unwrap();
        // A client waits for a while, and gives up.
        let limit = std::time::Duration::from_millis(200);
        assert!(tokio::time::timeout(limit, mutex.lock()).await.is_err());
        held.release().await.unwrap();
        locks.close().await;
        log.warnings()
    };
    let refused = async |url: String| {
        let Err(error) = Locks::connect(&url).await else { panic!("it was let in") };
        assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
        assert_eq!(log.warnings(), Vec::<String>::new());
        error
    };
    let (tables, advisory) = ("postgres", "postgres+advisory");

    // Nothing to report.
    for scheme in [tables, advisory] {
        for (port, options) in [(server.port(), ""), (session.port(), "pooler=session")] {
            assert_eq!(used(url(scheme, "postgres", port, options)).await, Vec::<String>::new());
        }
    }
    // It works, at a price.
    for options in ["", "pooler=transaction"] {
        let warnings = used(url(tables, "postgres", transaction.port(), options)).await;
        let [warning] = &warnings[..] else { panic!("{warnings:#?}") };
        assert!(warning.contains("pooler") && warning.contains("no wake-ups"), "{warning}");
    }
    // It does not work, and the warning says what to do.
    for options in ["", "pooler=none", "pooler=session", "pooler=transaction"] {
        let error = refused(url(advisory, "postgres", transaction.port(), options)).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        for what_to_do in ["the server's own port", "pool_mode", "postgres://"] {
            assert!(error.message().contains(what_to_do), "{options}: {error}");
        }
    }
    let error = refused(url(advisory, "app", server.port(), "").replace(PASSWORD, "hush-hush-hush")).await;
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error:?}");

    // A right that is missing: to make the tables of fences, and to use them.
    for schema in ["leasehold", "not-there"] {
        let warnings = used(url(advisory, "app", server.port(), &format!("schema={schema}"))).await;
        let [warning] = &warnings[..] else { panic!("{warnings:#?}") };
        assert!(warning.contains("no fences") && warning.contains("advisory_fences"), "{warning}");
    }
}
