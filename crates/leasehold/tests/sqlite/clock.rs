//! Which clock decides: boots, wall clocks, expiry.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Release, Renewal, Renewed};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{Fence, Gone};

use crate::file::close;
use crate::support::{HandClock, LONG, TICKET, claim, granted, last_fence, look, name, place};

const HOUR: i64 = 3_600_000_000;

#[tokio::test]
async fn wall_clock_jumps_end_no_lease_early_or_late() {
    for jump in [HOUR, -HOUR] {
        let (place, clock) = (place(), HandClock::new());
        let store = Sqlite::builder(&place.path).clock(clock.clone()).open().await.unwrap();
        let held = claim("x", LONG);
        let fence = granted(&store, &held).await.fence;
        clock.jump_wall(jump);
        clock.advance(LONG - Duration::from_micros(1));
        assert!(matches!(store.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)), "{jump}");
        // Also for a process that reads everything from the file.
        let other = Sqlite::builder(&place.path).clock(clock.clone()).open().await.unwrap();
        assert!(matches!(other.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)), "{jump}");
        clock.advance(Duration::from_micros(1));
        assert!(granted(&other, &claim("x", LONG)).await.fence > fence, "{jump}");
        let gone = store.renew(&[Renewal::new(name("x"), held.id, LONG)]).await.remove(0).unwrap();
        assert!(matches!(gone, Renewed::Gone(Gone::NotFound | Gone::Expired)), "{gone:?}");
    }
}

#[tokio::test]
async fn a_reboot_gives_leases_their_full_ttl_and_empties_queues() {
    let (place, clock) = (place(), HandClock::new());
    let open = |boot: &'static str| Sqlite::builder(&place.path).clock(clock.clone()).boot_id(boot).open();
    let store = open("first").await.unwrap();
    let held = claim("x", LONG);
    let fence = granted(&store, &held).await.fence;
    let mut repeated = claim("x", LONG).queued(TICKET);
    repeated.repeat = true;
    assert!(matches!(store.try_acquire(&repeated).await.unwrap(), Attempt::Busy(_)));
    assert!(matches!(store.try_acquire(&claim("x", LONG).queued(TICKET)).await.unwrap(), Attempt::Busy(_)));
    clock.advance(Duration::from_secs(29));
    close(store, &place.path).await;

    // The same boot changes nothing.
    let store = open("first").await.unwrap();
    let left = look(&store, "x").await.holders[0].grant.left.unwrap();
    assert_eq!(left, Duration::from_secs(1));
    close(store, &place.path).await;

    clock.restart();
    let store = open("second").await.unwrap();
    let db = rusqlite::Connection::open(&place.path).unwrap();
    let keepers: u32 = db.query_row("SELECT count(*) FROM keepers", [], |row| row.get(0)).unwrap();
    assert_eq!(keepers, 0, "their time is another boot's");
    let info = look(&store, "x").await;
    assert_eq!(info.holders[0].grant.left.unwrap(), LONG);
    assert_eq!((info.queue_length, info.last_fence), (0, fence));
    assert!(matches!(store.try_acquire(&repeated).await.unwrap(), Attempt::Gone(Gone::Superseded)));
    let renewed = store.renew(&[Renewal::new(name("x"), held.id, LONG)]).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Held(_)));
    clock.advance(LONG);
    assert!(granted(&store, &claim("x", LONG)).await.fence > fence);
}

#[tokio::test]
async fn a_sweep_drops_ended_leases_and_counters_past_the_retention() {
    let (place, clock) = (place(), HandClock::new());
    // What has ended is left to the sweep.
    let builder = Sqlite::builder(&place.path).clock(clock.clone()).look_every(Duration::MAX);
    let store = builder.open().await.unwrap();
    let second = Duration::from_secs(1);
    for n in 0..50 {
        granted(&store, &claim(&format!("short-{n}"), second)).await;
    }
    let kept = claim("kept", Duration::from_secs(24 * 3600));
    granted(&store, &kept).await;
    let queued = claim("kept", LONG).queued(TICKET);
    assert!(matches!(store.try_acquire(&queued).await.unwrap(), Attempt::Busy(_)));
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.expired, swept.tickets, swept.counters, swept.held, swept.waiting), (0, 0, 0, 51, 1));
    clock.advance(TICKET);
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.expired, swept.tickets, swept.counters, swept.held, swept.waiting), (50, 1, 0, 1, 0));
    assert_eq!(look(&store, "short-7").await.version, 2);
    store.release(&Release::new(name("kept"), kept.id)).await.unwrap();
    clock.advance(Fence::RETENTION - TICKET);
    assert_eq!(store.sweep().await.unwrap().counters, 0);
    clock.advance(TICKET + second);
    assert_eq!(store.sweep().await.unwrap().counters, 51);
    assert_eq!(last_fence(&store, "kept").await, Fence::UNFENCED);
    assert_eq!(store.sweep().await.unwrap().counters, 0);
}

#[tokio::test]
async fn a_file_that_was_not_used_for_long_is_swept_when_it_is_opened() {
    let (place, clock) = (place(), HandClock::new());
    let open = || Sqlite::builder(&place.path).clock(clock.clone()).open();
    let rows = |table: &str| -> u32 {
        let db = rusqlite::Connection::open(&place.path).unwrap();
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    let store = open().await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    clock.advance(LONG * 2);
    drop((store, open().await.unwrap()));
    assert_eq!((rows("leases"), rows("names")), (1, 1), "not yet");
    clock.advance(Duration::from_secs(3600));
    drop(open().await.unwrap());
    assert_eq!((rows("leases"), rows("names")), (0, 1), "the fence is still needed");
    clock.advance(Fence::RETENTION);
    drop(open().await.unwrap());
    assert_eq!((rows("leases"), rows("names")), (0, 0));
}
