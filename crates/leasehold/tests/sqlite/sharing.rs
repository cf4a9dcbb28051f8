//! Two stores on one file, like two processes; and many tasks on one store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::backend::{Attempt, Backend, Release, Released, Wake};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{Locks, Mode};
use testkit::until::{in_time, until_async};

use crate::support::{HOUR, LONG, TICKET, claim, gathered, granted, look, name, place};

#[tokio::test]
async fn two_stores_on_one_file_exclude_each_other_and_serve_in_order() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let first = claim("x", HOUR);
    let mut fence = granted(&a, &first).await.fence;
    assert!(matches!(b.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)));
    // They queue up on both in turns.
    let stores = [&b, &a, &b, &b, &a];
    let mut waiting = Vec::new();
    for (place, store) in stores.into_iter().enumerate() {
        let claim = claim("x", HOUR).queued(HOUR);
        match store.try_acquire(&claim).await.unwrap() {
            Attempt::Busy(busy) => assert_eq!(busy.place, Some(place as u64)),
            other => panic!("{other:?}"),
        }
        waiting.push((store, claim));
    }
    let (mut holder, mut id) = (&a, first.id);
    for (store, claim) in waiting {
        let wait = in_time("its turn", store.wait(&claim));
        let release = Release::new(name("x"), id);
        // It waits before the release is sent; otherwise it may have to ask what became of it.
        let (wake, released) = tokio::join!(wait, holder.release(&release));
        assert_eq!(released.unwrap(), Released::Done);
        let Wake::Granted(grant) = wake.unwrap() else { panic!("the attempt was not made for it") };
        assert!(grant.fence > fence);
        fence = grant.fence;
        assert_eq!(look(holder, "x").await.holders[0].id, claim.id);
        (holder, id) = (store, claim.id);
    }
    assert_eq!(look(&a, "x").await.queue_length, 0);
}

#[tokio::test]
async fn a_release_on_one_store_wakes_a_waiter_on_the_other() {
    let place = place();
    // They never look by themselves.
    let open = || Sqlite::builder(&place.path).look_every(HOUR).open();
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    let mut held = claim("x", HOUR);
    granted(&a, &held).await;
    let (mut here, mut there) = (&a, &b);
    for _ in 0..200 {
        let next = claim("x", HOUR).queued(HOUR);
        assert!(matches!(there.try_acquire(&next).await.unwrap(), Attempt::Busy(_)));
        let release = async {
            // The other side is blocked in its poll by then.
            tokio::time::sleep(Duration::from_millis(1)).await;
            here.release(&Release::new(name("x"), held.id)).await.unwrap();
        };
        let (wake, ()) = tokio::join!(in_time("a wake-up", there.wait(&next)), release);
        assert!(matches!(wake.unwrap(), Wake::Granted(_)));
        held = next;
        (here, there) = (there, here);
    }
}

#[tokio::test]
async fn a_wake_up_that_was_not_announced_is_found_by_looking() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    granted(&a, &claim("x", HOUR)).await;
    let next = claim("x", HOUR).queued(HOUR);
    assert!(matches!(b.try_acquire(&next).await.unwrap(), Attempt::Busy(_)));
    // A holder that dies between its commit and its touch leaves exactly this.
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let died = "DELETE FROM leases; UPDATE tickets SET woken = 1; UPDATE names SET changes = changes + 1";
    db.execute_batch(&format!("BEGIN; {died}; COMMIT")).unwrap();
    let wake = in_time("a look", b.wait(&next)).await.unwrap();
    assert!(matches!(wake, Wake::Granted(_)));
}

#[tokio::test]
async fn a_waiter_behind_the_front_follows_a_dead_holder_in_time() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let ttl = Duration::from_millis(300);
    let (first, second) = (claim("x", HOUR), claim("x", ttl).queued(HOUR));
    granted(&a, &first).await;
    assert!(matches!(a.try_acquire(&second).await.unwrap(), Attempt::Busy(_)));
    let third = claim("x", HOUR).queued(HOUR);
    assert!(matches!(b.try_acquire(&third).await.unwrap(), Attempt::Busy(_)));
    // The second takes the lease and then falls silent. No wake-up reaches the third.
    a.release(&Release::new(name("x"), first.id)).await.unwrap();
    let started = Instant::now();
    granted(&a, &second).await;
    let wake = in_time("a look", b.wait(&third)).await;
    assert!(matches!(wake.unwrap(), Wake::Granted(_)));
    assert!(started.elapsed() >= ttl, "{:?}", started.elapsed());
}

#[tokio::test]
async fn the_next_call_sees_what_another_store_wrote() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    for n in 0..20 {
        let (here, there) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let held = claim("x", LONG);
        let fence = granted(here, &held).await.fence;
        assert!(matches!(there.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)));
        // Through the other store, which knows it only from the file.
        let released = there.release(&Release::new(name("x"), held.id)).await.unwrap();
        assert_eq!(released, Released::Done);
        assert!(look(here, "x").await.holders.is_empty());
        assert_eq!(look(here, "x").await.last_fence, fence);
    }
}

#[tokio::test]
async fn a_name_untouched_by_others_is_not_read_again() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    granted(&a, &claim("mine", LONG)).await;
    let db = rusqlite::Connection::open(&place.path).unwrap();
    // A forbidden change shows whether the row is read: the owner is changed without counting it.
    db.execute_batch("UPDATE leases SET owner = 'another client'").unwrap();
    granted(&b, &claim("other", LONG)).await;
    assert_eq!(&*look(&a, "mine").await.holders[0].owner, "test");
    // A ticket is a change too.
    let waits = claim("mine", LONG).queued(TICKET);
    assert!(matches!(b.try_acquire(&waits).await.unwrap(), Attempt::Busy(_)));
    let seen = look(&a, "mine").await;
    assert_eq!((&*seen.holders[0].owner, seen.queue_length), ("another client", 1));
}

#[tokio::test]
async fn adjacent_readers_enter_together_also_on_two_stores() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let writer = claim("x", LONG);
    granted(&a, &writer).await;
    let mut readers = Vec::new();
    for store in [&a, &b, &a, &b] {
        let mut reader = claim("x", LONG).queued(TICKET);
        reader.mode = Mode::Shared;
        assert!(matches!(store.try_acquire(&reader).await.unwrap(), Attempt::Busy(_)));
        readers.push((store, reader));
    }
    a.release(&Release::new(name("x"), writer.id)).await.unwrap();
    for (store, reader) in &readers {
        in_time("a wake-up", store.wait(reader)).await.unwrap();
        granted(store, reader).await;
    }
    assert_eq!(look(&b, "x").await.holders.len(), 4);
}

#[tokio::test]
async fn calls_that_wait_together_share_a_commit() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    let before = store.commits();
    let claims: Vec<_> = (0..64).map(|n| claim(&format!("job-{n}"), LONG)).collect();
    gathered(&place.path, join_all(claims.iter().map(|claim| granted(&store, claim)))).await;
    let releases: Vec<_> = claims.iter().map(|claim| Release::new(claim.name.clone(), claim.id)).collect();
    for answer in gathered(&place.path, join_all(releases.iter().map(|release| store.release(release)))).await
    {
        assert_eq!(answer.unwrap(), Released::Done);
    }
    // Of each 64 some may be under way when the others come.
    assert!(store.commits() - before <= 4, "{} commits for 128 calls", store.commits() - before);
}

#[tokio::test]
async fn calls_that_change_nothing_are_not_committed() {
    let place = place();
    let store = Sqlite::open(&place.path).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    let before = store.commits();
    granted(&store, &held).await; // a repeat that does not say so
    assert!(matches!(store.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)));
    store.release(&Release::new(name("nobody"), held.id)).await.unwrap();
    look(&store, "x").await;
    store.sweep().await.unwrap();
    assert_eq!(store.commits(), before);
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let names: i64 = db.query_row("SELECT count(*) FROM names", [], |row| row.get(0)).unwrap();
    assert_eq!(names, 1, "a stray release leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_on_two_clients_never_hold_together() {
    let place = place();
    let url = format!("sqlite:{}", place.path.display());
    let clients = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let last = Arc::new(std::sync::Mutex::new(leasehold::Fence::UNFENCED));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (mutex, inside, last) = (clients[n % 2].mutex("x"), inside.clone(), last.clone());
            tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = mutex.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    {
                        let mut last = last.lock().unwrap();
                        assert!(guard.fence() > *last);
                        *last = guard.fence();
                    }
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        in_time("everybody has been inside", task).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_always_busy_does_not_keep_another_out() {
    let place = place();
    let (a, b) = (Sqlite::open(&place.path).await.unwrap(), Sqlite::open(&place.path).await.unwrap());
    let hogs: Vec<_> = (0..64)
        .map(|n| {
            let store = a.clone();
            tokio::spawn(async move {
                loop {
                    let claim = claim(&format!("hog-{n}"), LONG);
                    granted(&store, &claim).await;
                    store.release(&Release::new(claim.name.clone(), claim.id)).await.unwrap();
                }
            })
        })
        .collect();
    until_async("the other is busy", async || a.commits() > 10).await;
    // Time is measured by what the other store got done meanwhile.
    let mut worst = 0;
    for _ in 0..300 {
        let (claim, before) = (claim("x", LONG), a.commits());
        granted(&b, &claim).await;
        worst = worst.max(a.commits() - before);
        b.release(&Release::new(claim.name.clone(), claim.id)).await.unwrap();
    }
    hogs.iter().for_each(|hog| hog.abort());
    println!("beside a busy store: at worst after {worst} of its commits");
    assert!(worst < 500, "{worst} commits came before one grant");
}
