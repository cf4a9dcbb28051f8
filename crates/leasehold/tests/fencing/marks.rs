//! Every store that keeps marks: they rise, are never lowered, belong to one resource each, and are durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::backends::memory::Memory;
use leasehold::{Checked, ErrorKind, Fence, Locks};
use testkit::until::in_time;

use crate::fence;

async fn check(locks: &Locks, resource: &str, number: u64) -> Option<u64> {
    match locks.check_fence(resource, fence(number)).await.unwrap() {
        Checked::Stale(stale) => {
            assert_eq!(stale.fence, Fence::new(number));
            Some(stale.highest.get())
        }
        _ => None,
    }
}

/// The checks for any store. `b` is another client of the store of `a`.
async fn keeps_marks(a: &Locks, b: &Locks) {
    // Equal passes, lower does not, and a refusal changes nothing.
    for (number, highest) in [(5, None), (5, None), (4, Some(5)), (7, None), (6, Some(7)), (7, None)] {
        assert_eq!(check(a, "report", number).await, highest, "fence {number}");
        assert_eq!(check(b, "report", 1).await, Some(highest.unwrap_or(number)), "after fence {number}");
    }
    // Each resource, and each namespace, has a mark of its own.
    let odd =
        ["report ", "REPORT", "report/1", "{report}", "r%7D", "r}", "nul\0", "\u{1}", "caf\u{e9}", "'\"`"];
    for (number, resource) in (100..).zip(odd) {
        assert_eq!(check(a, resource, number).await, None, "{resource:?}");
    }
    for (number, resource) in (100..).zip(odd) {
        assert_eq!(check(b, resource, 99).await, Some(number), "{resource:?}");
    }
    // Names are compared as locks are: here in another spelling of the same letter.
    assert_eq!(check(a, "cafe\u{301}", 1).await, Some(108));
    if a.info().namespaced {
        assert_eq!(check(&a.with_namespace("other"), "report", 1).await, None);
    }
    // The highest fence there is, exactly.
    let most = Fence::MAX.get();
    assert_eq!(check(a, "most", most).await, None);
    assert_eq!(check(b, "most", most - 1).await, Some(most));
    // A resource is no lock: it is not listed, and its mark does not meet the lock of that name.
    assert_eq!(a.list("", 10, None).await.unwrap().items.len(), 0);
    let guard = a.mutex("report").lock().await.unwrap();
    assert_eq!(check(a, "report", guard.fence().get()).await, None);
    guard.release().await.unwrap();
    at_once(a, b).await;
}

/// Two clients check many fences of one resource at once. After one was answered as current, no lower one is.
async fn at_once(a: &Locks, b: &Locks) {
    let answered = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let locks = if task % 2 == 0 { a.clone() } else { b.clone() };
            let answered = Arc::clone(&answered);
            tokio::spawn(async move {
                for step in 0..40 {
                    // Each number once, in an order of its own for each task.
                    let number = 1 + task + 8 * (step * 7 % 40);
                    let before = answered.load(Ordering::SeqCst);
                    match check(&locks, "busy", number).await {
                        None => {
                            assert!(number >= before, "{number} passed after {before}");
                            answered.fetch_max(number, Ordering::SeqCst);
                        }
                        Some(highest) => assert!(highest > number, "{number} was refused for {highest}"),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        in_time("all are checked", task).await.unwrap();
    }
    assert_eq!(answered.load(Ordering::SeqCst), 320);
    assert_eq!(check(a, "busy", 319).await, Some(320));
}

#[tokio::test]
async fn memory_keeps_marks() {
    let locks = Locks::connect("memory:").await.unwrap();
    keeps_marks(&locks, &locks.clone()).await;
}

#[tokio::test]
async fn sqlite_keeps_marks_also_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("x.db").display());
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    keeps_marks(&a, &b).await;
    drop((a, b));
    let again = Locks::connect(&url).await.unwrap();
    assert_eq!(check(&again, "most", 1).await, Some(Fence::MAX.get()));
}

#[tokio::test]
async fn redis_keeps_marks_also_after_a_restart() {
    let mut server = testkit::redis::Server::durable();
    let url = server.url();
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    keeps_marks(&a, &b).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(check(&a, "most", 1).await, Some(Fence::MAX.get()));
    server.restart();
    let again = Locks::connect(&url).await.unwrap();
    assert_eq!(check(&again, "most", 1).await, Some(Fence::MAX.get()));
    assert_eq!(server.cli(&["TTL", "leasehold:{leasehold/most}:fence"]).trim(), "-1", "it never expires");
    server.cli(&["SET", "leasehold:{leasehold/most}:fence", "not a fence"]);
    let error = again.check_fence("most", fence(7)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
}

#[tokio::test]
async fn redis_cluster_keeps_marks_in_the_slot_of_the_name() {
    let cluster = testkit::redis::Cluster::start();
    let (a, b) =
        (Locks::connect(&cluster.url()).await.unwrap(), Locks::connect(&cluster.url()).await.unwrap());
    keeps_marks(&a, &b).await;
}

#[tokio::test]
async fn postgres_keeps_marks_also_after_a_restart() {
    let mut server = testkit::postgres::Postgres::start();
    let url = server.url();
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    // Both find that the table is missing, at the same time.
    let (one, two) = tokio::join!(check(&a, "first", 7), check(&b, "first", 7));
    assert_eq!((one, two), (None, None));
    keeps_marks(&a, &b).await;
    server.stop(testkit::postgres::Stop::Kill);
    server.start_again();
    let again = Locks::connect(&server.url()).await.unwrap();
    assert_eq!(check(&again, "most", 1).await, Some(Fence::MAX.get()));
}

#[tokio::test]
async fn postgres_user_without_the_right_to_make_the_table() {
    let server = testkit::postgres::Postgres::start();
    drop(Locks::connect(&server.url()).await.unwrap());
    server.sql(
        "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA leasehold TO app; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO app",
    );
    let locks = Locks::connect(&server.url_of("app", "postgres")).await.unwrap();
    let error = locks.check_fence("report", fence(7)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(error.message().contains("`fences`"), "{error}");
    // What docs/postgres.md says.
    server.sql(
        "CREATE TABLE leasehold.fences (resource text COLLATE \"C\" PRIMARY KEY, fence bigint NOT NULL); \
         GRANT SELECT, INSERT, UPDATE ON leasehold.fences TO app",
    );
    assert_eq!(check(&locks, "report", 7).await, None);
    assert_eq!(check(&locks, "report", 6).await, Some(7));
}

#[tokio::test]
async fn store_without_marks_is_unsupported_and_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let file = Locks::connect(&format!("file:{}", directory.path().join("l").display())).await.unwrap();
    for locks in [file, Locks::new(Memory::new())] {
        let error = locks.check_fence("report", fence(7)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("sqlite:"), "{error}");
    }
    let memory = Arc::new(Memory::new());
    let locks = Locks::builder(memory.clone()).marks(memory).build();
    assert_eq!(check(&locks, "report", 7).await, None);
    assert_eq!(check(&locks, "report", 6).await, Some(7));
}
