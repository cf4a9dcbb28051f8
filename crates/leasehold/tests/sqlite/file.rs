//! The file: its version, who may read it, what is refused, what stays.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, NewNote, Note, Release, Released, Renewal};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{ErrorKind, Locks};
use testkit::until::until_async;

use crate::support::{HandClock, LONG, claim, granted, last_fence, look, name, place};

#[tokio::test]
async fn all_files_are_private_to_their_owner_from_the_start() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(place.directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["locks.db", "locks.db-shm", "locks.db-wake", "locks.db-wal"]);
}

#[tokio::test]
async fn paths_that_name_no_file_are_refused_with_a_pointer() {
    for url in ["sqlite:", "sqlite::memory:", "sqlite:file:x.db", "sqlite:file::memory:"] {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
        assert!(error.message().contains("use memory:"), "{url}: {error}");
    }
    for url in ["sqlite:///", "sqlite://host/x.db", "sqlite:x.db?mode=rwc", "sqlite:x#y"] {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
    }
    let place = place();
    let missing = place.directory.path().join("no/such/directory/x.db");
    assert_eq!(Sqlite::open(missing).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let directory = Sqlite::open(place.directory.path()).await.unwrap_err();
    assert_eq!(directory.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn all_forms_of_a_url_open_the_same_file() {
    let place = place();
    let path = place.path.to_str().unwrap();
    let link = place.directory.path().join("link.db");
    let a = Locks::connect(&format!("sqlite:{path}")).await.unwrap();
    std::os::unix::fs::symlink(&place.path, &link).unwrap();
    let held = a.mutex("x").lock().await.unwrap();
    for url in [format!("sqlite://{path}"), format!("SQLite:{}", link.display())] {
        let b = Locks::connect(&url).await.unwrap();
        assert!(b.mutex("x").try_lock().await.unwrap().is_none(), "{url}");
        assert_eq!(b.info().scheme, "sqlite");
    }
    held.release().await.unwrap();
    assert!(!place.directory.path().join("link.db-wal").exists());
}

#[tokio::test]
async fn a_database_with_two_names_is_refused_under_either() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    std::fs::create_dir(place.directory.path().join("other")).unwrap();
    let second = place.directory.path().join("other/locks.db");
    std::fs::hard_link(&place.path, &second).unwrap();
    for path in [&second, &place.path] {
        let error = Sqlite::open(path).await.expect_err("its log is beside its other name");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("hard link"), "{error}");
    }
    let beside = std::fs::read_dir(second.parent().unwrap()).unwrap().count();
    assert_eq!(beside, 1, "nothing was made beside the second name");
    std::fs::remove_file(&second).unwrap();
    let again = Sqlite::open(&place.path).await.unwrap();
    assert!(matches!(again.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)));
}

#[tokio::test]
async fn a_file_that_is_something_else_is_refused_and_left_as_it_is() {
    let place = place();
    let text = b"This is not a database, and its owner needs it. ".repeat(100);
    std::fs::write(&place.path, &text).unwrap();
    let error = Sqlite::open(&place.path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("not a SQLite database"), "{error}");
    assert_eq!(std::fs::read(&place.path).unwrap(), text);

    let other = place.directory.path().join("other.db");
    let db = rusqlite::Connection::open(&other).unwrap();
    db.execute_batch("CREATE TABLE users (id INTEGER); INSERT INTO users VALUES (1)").unwrap();
    db.close().unwrap();
    let before = std::fs::read(&other).unwrap();
    let error = Sqlite::open(&other).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("another program"), "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), before);
}

#[tokio::test]
async fn a_newer_layout_is_refused_and_left_as_it_is() {
    let place = place();
    drop(Sqlite::open(&place.path).await.unwrap());
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    let error = Sqlite::open(&place.path).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("layout 99") && error.message().contains("newer"), "{error}");
    let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 99);
}

#[tokio::test]
async fn an_older_layout_is_brought_up_to_date_with_all_that_is_in_it() {
    let place = place();
    let db = rusqlite::Connection::open(&place.path).unwrap();
    db.execute_batch(include_str!("../../src/backends/sqlite/schema/001.sql")).unwrap();
    let clock = HandClock::new();
    let later = clock.micros() + 1_000_000;
    db.execute_batch(&format!(
        "PRAGMA application_id = 0x6c656173; PRAGMA user_version = 1;
         INSERT INTO host VALUES (1, 'boot', 0);
         INSERT INTO names VALUES ('/old', 900000000000, 7);
         INSERT INTO leases VALUES ('/old', 'AAAAAAAAAAAAAAAAAAAAAA', 'exclusive', NULL, 5, 5, 'holds', NULL, 9,
             {later}, 9, 9, 0, 0, 0, 0);
         INSERT INTO tickets VALUES ('/old', 'BBBBBBBBBBBBBBBBBBBBBB', 1, 'exclusive', NULL, 'waits', 9, {later}, 9, 0, 0, 0);",
    ))
    .unwrap();
    // A process of that time still has the file open.
    let older = || db.execute("UPDATE tickets SET lapses_us = lapses_us WHERE name = '/old'", []);
    assert_eq!(older(), Ok(1));
    let builder = Sqlite::builder(&place.path).clock(clock.clone()).boot_id("boot").look_every(Duration::MAX);
    let store = builder.open().await.unwrap();
    let seen = look(&store, "old").await;
    assert_eq!((seen.version, &*seen.holders[0].owner, &*seen.waiters[0].owner), (7, "holds", "waits"));
    let layout: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!((layout, seen.note), (4, None));
    // It would not know which keeper keeps which place, so its own query stops it.
    assert!(older().unwrap_err().to_string().contains("lapses_us"));
    clock.advance(Duration::from_secs(1));
    assert_eq!(look(&store, "old").await.queue_length, 0);
    assert!(granted(&store, &claim("old", LONG)).await.fence.get() > 900_000_000_000);
}

#[tokio::test]
async fn a_note_is_in_the_file_and_other_stores_see_it() {
    let place = place();
    let (one, other) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let held = claim("x", LONG);
    let fence = granted(&one, &held).await.fence;
    assert_eq!(look(&other, "x").await.note, None);
    for (store, text, revision) in [(&one, "one", 1), (&other, "two", 2), (&one, "three", 3)] {
        let mut renewal = Renewal::new(name("x"), held.id, LONG);
        renewal.note = Some(NewNote::new(text, revision).unwrap());
        store.renew(&[renewal]).await.remove(0).unwrap();
        for store in [&one, &other] {
            assert_eq!(look(store, "x").await.note, Some(Note::new(text, fence, revision)));
        }
    }
    // A process that knows only the older layout writes the counters, and leaves the note.
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let older = "INSERT INTO names (name, fence, version, changes) VALUES ('/x', 7, 7, 99)
        ON CONFLICT (name) DO UPDATE SET fence = max(fence, excluded.fence), version = version + 1, changes = excluded.changes";
    db.execute(older, []).unwrap();
    assert_eq!(one.release(&Release::new(name("x"), held.id)).await.unwrap(), Released::Done);
    drop((one, other));
    let again = Sqlite::open(&place.path).await.unwrap();
    assert_eq!(look(&again, "x").await.note, Some(Note::new("three", fence, 3)));
}

#[tokio::test]
async fn a_damaged_file_is_an_internal_error_and_grants_nothing() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    for n in 0..200 {
        granted(&store, &claim(&format!("job-{n}"), LONG)).await;
    }
    close(store, &place.path).await;
    let mut bytes = std::fs::read(&place.path).unwrap();
    let third = bytes.len() / 3;
    bytes[third..].fill(0xa5);
    std::fs::write(&place.path, &bytes).unwrap();
    let mut faults = 0;
    match Sqlite::open(&place.path).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Internal, "{error}"),
        Ok(store) => {
            for n in 0..200 {
                match store.try_acquire(&claim(&format!("job-{n}"), LONG)).await {
                    Ok(attempt) => assert!(matches!(attempt, Attempt::Busy(_)), "a held name was granted"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
                        faults += 1;
                    }
                }
            }
            assert!(faults > 0, "the damage was not met");
        }
    }
}

/// Drops a store and waits until its thread has closed the file.
pub(crate) async fn close(store: Sqlite, path: &std::path::Path) {
    drop(store);
    let log = path.with_extension("db-wal");
    until_async("the writer closes the file and its log is gone", async || !log.exists()).await;
}

#[tokio::test]
async fn reopened_it_knows_all_leases_and_its_fences_go_on_above() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    let held = claim("held", LONG);
    let grant = granted(&store, &held).await;
    let over = claim("over", LONG);
    let fence = granted(&store, &over).await.fence;
    assert_eq!(store.release(&Release::new(over.name.clone(), over.id)).await.unwrap(), Released::Done);
    let before = look(&store, "held").await;
    close(store, &place.path).await;

    let store = Sqlite::open(&place.path).await.unwrap();
    let after = look(&store, "held").await;
    assert_eq!(before.version, after.version);
    assert_eq!(before.holders[0].grant.fence, after.holders[0].grant.fence);
    assert!(matches!(store.try_acquire(&claim("held", LONG)).await.unwrap(), Attempt::Busy(_)));
    let again = granted(&store, &held).await;
    assert_eq!((again.fence, again.mode), (grant.fence, grant.mode));
    assert!(again.left.unwrap() <= grant.left.unwrap(), "a repeat does not re-arm");
    assert_eq!(last_fence(&store, "over").await, fence);
    assert!(granted(&store, &claim("over", LONG)).await.fence > fence);
    assert_eq!(store.release(&Release::new(name("held"), held.id)).await.unwrap(), Released::Done);
}

#[tokio::test]
async fn what_is_stored_can_be_read_with_sql() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    let mut held = claim("nightly report", LONG);
    held.metadata = Some("what for".into());
    let grant = granted(&store, &held).await;
    assert!(matches!(
        store.try_acquire(&claim("nightly report", LONG).queued(LONG)).await.unwrap(),
        Attempt::Busy(_)
    ));
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let row: (String, String, String, String, String, i64) = db
        .query_row("SELECT name, fence, mode, owner, metadata, version FROM held", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })
        .unwrap();
    let expected = ("/nightly report", grant.fence.to_string(), "exclusive", "test", "what for", 1i64);
    assert_eq!((&*row.0, row.1, &*row.2, &*row.3, &*row.4, row.5), expected);
    let id: String = db.query_row("SELECT id FROM leases", [], |row| row.get(0)).unwrap();
    assert_eq!(id, held.id.expose());
    let tickets: i64 = db.query_row("SELECT count(*) FROM tickets", [], |row| row.get(0)).unwrap();
    assert_eq!(tickets, 1);
}
