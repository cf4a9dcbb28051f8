//! The promises of the contract, shown on the SQLite store.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Info, Query};
use leasehold::backends::sqlite::Sqlite;
use leasehold::conformance::{Harness, run_all};

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_every_promise() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    // Each connection is a writer of its own, as in another process.
    let connect = || async { Ok(Arc::new(Sqlite::open(&path).await?) as Arc<dyn Backend>) };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();

    let store = Sqlite::open(&path).await.unwrap();
    store.sweep().await.unwrap();
    let all = Query::Prefix { stored: String::new(), limit: 10, cursor: None };
    assert!(store.inspect(&all).await.unwrap().items.is_empty(), "at rest nothing is left but fences");
    let db = rusqlite::Connection::open(&path).unwrap();
    let rows: u32 = db
        .query_row("SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM tickets)", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(rows, 0);
}

/// Field by field, so that an ability cannot vanish together with its checks.
#[tokio::test]
async fn sqlite_says_that_it_can_do_everything() {
    let directory = tempfile::tempdir().unwrap();
    let info = Sqlite::open(directory.path().join("locks.db")).await.unwrap().info();
    assert!(info.keeps_places);
    let mut usual = Info::new("sqlite");
    usual.keeps_places = true;
    assert_eq!(info, usual);
    assert!(info.fenced && info.fifo && info.push && info.shared && info.downgrade);
    assert!(info.find_by_id && info.revoke && info.detects_loss && info.namespaced && info.notes);
    assert_eq!((info.max_permits, info.max_ttl), (u32::MAX, Duration::from_secs(24 * 3600)));
    assert!(leasehold::stores().iter().any(|store| store.info == info));
}
