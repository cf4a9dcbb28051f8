//! The telemetry layer: an event for everything, and a sink that can never delay the store.

#![allow(clippy::unwrap_used)] // also in helpers of tests

mod fake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fake::{Fake, Verb};
use leasehold::backend::{Attempt, Claim, Query, Release};
use leasehold::backends::memory::Memory;
use leasehold::blocking::Locks;
use leasehold::layers::telemetry::{Event, EventKind, Reason, Telemetry};
use leasehold::{Backend, ErrorKind, LeaseId, Mode, Name, digest_name};
use testkit::hand::Hand;
use testkit::until::{PATIENCE, in_time_blocking, until};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A client whose events arrive here.
fn watched(backend: impl Backend) -> (Locks, Telemetry, Receiver<Event>) {
    let (sender, events) = mpsc::channel();
    let telemetry = Telemetry::new(backend, move |event: &Event| {
        let _ = sender.send(event.clone());
    });
    (Locks::new(telemetry.clone()), telemetry, events)
}

/// The next event; checks its kind, its result, its name and its lease id.
#[track_caller]
fn expect(
    events: &Receiver<Event>,
    kind: EventKind,
    reason: Option<Reason>,
    name: Option<&str>,
    id: Option<LeaseId>,
) -> Event {
    let event = events.recv_timeout(PATIENCE).expect("an event");
    assert_eq!((event.kind, event.reason, event.ok), (kind, reason, reason.is_none()), "{event:?}");
    assert_eq!(event.name_hash, name.map(digest_name));
    assert_eq!(event.lease_id_hash, id.map(|id| id.hash()));
    assert_eq!(event.scheme, "memory");
    assert_eq!((&event.name, event.lease_id), (&None, None), "raw only by opt-in");
    event
}

/// Events come in order: another event would come before the one of this look.
#[track_caller]
fn nothing_more(locks: &Locks, events: &Receiver<Event>) {
    let _ = locks.is_locked("nothing more");
    let event = events.recv_timeout(PATIENCE).expect("an event");
    assert_eq!(event.name_hash, Some(digest_name("nothing more")), "{event:?}");
}

/// All events until the layer is gone.
fn until_end(events: &Receiver<Event>) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        match events.recv_timeout(PATIENCE) {
            Ok(event) => all.push(event),
            Err(RecvTimeoutError::Disconnected) => return all,
            Err(RecvTimeoutError::Timeout) => panic!("the layer is not gone"),
        }
    }
}

#[test]
fn every_successful_operation_is_an_event() {
    let (locks, _, events) = watched(Memory::new());
    let lease = locks.leasing("x").try_acquire().unwrap().unwrap();
    let id = Some(lease.id);
    expect(&events, EventKind::Acquire, None, Some("x"), id);
    locks.renew(&lease).unwrap();
    expect(&events, EventKind::Renew, None, Some("x"), id);
    assert!(locks.is_locked("x").unwrap());
    expect(&events, EventKind::Lookup, None, Some("x"), None);
    assert!(locks.lookup("x").unwrap().is_some());
    expect(&events, EventKind::Lookup, None, Some("x"), None);
    assert!(locks.owns(lease.id).unwrap());
    expect(&events, EventKind::Lookup, None, None, id);
    locks.list("", 10, None).unwrap();
    expect(&events, EventKind::Lookup, None, None, None);
    locks.release(&lease).unwrap();
    expect(&events, EventKind::Release, None, Some("x"), id);
    let _held = locks.mutex("x").lock().unwrap();
    events.recv_timeout(PATIENCE).unwrap();
    locks.revoke("x", false).unwrap();
    expect(&events, EventKind::Revoke, None, Some("x"), None);
    locks.sweep().unwrap();
    nothing_more(&locks, &events);
}

#[test]
fn every_failed_operation_is_an_event_with_its_reason() {
    let clock = Hand::default();
    let (locks, telemetry, events) = watched(Memory::with_clock(Arc::new(clock.clone())));
    let lease = locks.leasing("x").try_acquire().unwrap().unwrap();
    events.recv_timeout(PATIENCE).unwrap();
    assert!(locks.mutex("x").try_lock().unwrap().is_none());
    let event = events.recv_timeout(PATIENCE).unwrap();
    assert_eq!((event.kind, event.reason), (EventKind::Acquire, Some(Reason::Locked)));
    assert_ne!(event.lease_id_hash, Some(lease.id.hash()), "the id of the one who tried");

    clock.advance(lease.ttl);
    locks.renew(&lease).unwrap();
    expect(&events, EventKind::Renew, Some(Reason::Expired), Some("x"), Some(lease.id));
    locks.release(&lease).unwrap();
    let event = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(event.reason, Some(Reason::Expired | Reason::NotFound)), "{event:?}");

    let never = LeaseId::random();
    let release = Release::new(locks.name("x").unwrap(), never);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(telemetry.release(&release)).unwrap();
    expect(&events, EventKind::Release, Some(Reason::NotFound), Some("x"), Some(never));

    assert!(!locks.is_locked("x").unwrap());
    expect(&events, EventKind::Lookup, Some(Reason::NotFound), Some("x"), None);
    assert!(locks.lookup_by_id(never).unwrap().is_none());
    expect(&events, EventKind::Lookup, Some(Reason::NotFound), None, Some(never));
    locks.revoke("x", true).unwrap();
    expect(&events, EventKind::Revoke, Some(Reason::NotFound), Some("x"), None);

    let lease = locks.leasing("y").try_acquire().unwrap().unwrap();
    events.recv_timeout(PATIENCE).unwrap();
    locks.revoke("y", false).unwrap();
    events.recv_timeout(PATIENCE).unwrap();
    locks.renew(&lease).unwrap();
    expect(&events, EventKind::Renew, Some(Reason::Revoked), Some("y"), Some(lease.id));
}

#[test]
fn a_spent_id_and_an_old_attempt_have_their_reasons() {
    let (locks, telemetry, events) = watched(Memory::new());
    let name = locks.name("x").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut claim = Claim::new(name.clone(), Mode::Exclusive, ms(5_000), "me");
        claim.nonce = 2;
        telemetry.try_acquire(&claim).await.unwrap();
        expect(&events, EventKind::Acquire, None, Some("x"), Some(claim.id));
        let mut old = Release::new(name.clone(), claim.id);
        old.nonce = Some(1);
        telemetry.release(&old).await.unwrap();
        expect(&events, EventKind::Release, Some(Reason::Superseded), Some("x"), Some(claim.id));
        let mut last = Release::new(name, claim.id);
        last.unanswered = Some(ms(5_000));
        telemetry.release(&last).await.unwrap();
        expect(&events, EventKind::Release, None, Some("x"), Some(claim.id));
        assert!(matches!(telemetry.try_acquire(&claim).await.unwrap(), Attempt::Gone(_)));
        let event = events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(event.reason, Some(Reason::NotFound | Reason::Superseded)), "{event:?}");
    });
}

#[test]
fn a_store_fault_is_an_event_with_its_kind() {
    use Verb::*;
    let all = &[TryAcquire, Renew, Release, Revoke, Inspect, Sweep];
    let good = Memory::new();
    let lease = Locks::new(good).leasing("x").try_acquire().unwrap().unwrap();
    let (locks, _, events) = watched(Fake::failing(all, ErrorKind::AuthFailed));
    let failed = Some(Reason::Error(ErrorKind::AuthFailed));
    assert!(locks.mutex("x").try_lock().is_err());
    let event = events.recv_timeout(PATIENCE).unwrap();
    assert_eq!((event.kind, event.reason), (EventKind::Acquire, failed));
    assert!(locks.renew(&lease).is_err());
    expect(&events, EventKind::Renew, failed, Some("x"), Some(lease.id));
    assert!(locks.release(&lease).is_err());
    expect(&events, EventKind::Release, failed, Some("x"), Some(lease.id));
    assert!(locks.revoke("x", true).is_err());
    expect(&events, EventKind::Revoke, failed, Some("x"), None);
    assert!(locks.is_locked("x").is_err());
    expect(&events, EventKind::Lookup, failed, Some("x"), None);
    assert!(locks.find(lease.id).is_err());
    expect(&events, EventKind::Lookup, failed, None, Some(lease.id));
    assert!(locks.list("", 1, None).is_err());
    expect(&events, EventKind::Lookup, failed, None, None);
    assert!(locks.sweep().is_err());
    nothing_more(&locks, &events);
}

#[test]
fn a_call_dropped_before_its_answer_is_an_event_too() {
    use Verb::*;
    let (locks, _, events) = watched(Fake::hanging(&[TryAcquire, Renew]));
    let aborted = Some(Reason::Error(ErrorKind::Aborted));
    let lease = Locks::new(Memory::new()).leasing("x").try_acquire().unwrap().unwrap();
    let locks = locks.with_options(|options| options.request_timeout = ms(20));
    assert_eq!(locks.renew(&lease).unwrap_err().kind(), ErrorKind::NetworkTimeout);
    expect(&events, EventKind::Renew, aborted, Some("x"), Some(lease.id));
    assert_eq!(locks.mutex("y").try_lock().unwrap_err().kind(), ErrorKind::NetworkTimeout);
    let event = events.recv_timeout(PATIENCE).unwrap();
    assert_eq!((event.kind, event.reason), (EventKind::Acquire, aborted));
    assert!(event.latency >= ms(20));
    // The unanswered attempt is taken back in the background.
    let event = events.recv_timeout(PATIENCE).unwrap();
    assert_eq!(event.kind, EventKind::Release);
}

#[test]
fn what_guards_do_in_the_background_is_seen() {
    let (locks, _, events) = watched(Memory::new());
    let [guard, other] = ["x", "other"].map(|name| locks.mutex(name).renew_every(ms(30)).lock().unwrap());
    let [ours, theirs] = [&guard, &other].map(|guard| Some(guard.lease_id().hash()));
    let next = |kind: EventKind, id: &Option<String>| {
        until("an event of that kind and lease", || {
            let event = events.recv_timeout(PATIENCE).unwrap();
            assert!(event.ok, "{event:?}");
            event.kind == kind && event.lease_id_hash == *id
        });
    };
    next(EventKind::Acquire, &ours);
    next(EventKind::Renew, &ours);
    drop(guard);
    next(EventKind::Release, &ours);
    // By the time the other is renewed for the third time, this one would have been renewed, too.
    let mut renewals = 0;
    until("the other is renewed", || {
        let event = events.recv_timeout(PATIENCE).unwrap();
        assert_eq!(event.lease_id_hash, theirs, "{event:?}");
        renewals += u32::from(event.kind == EventKind::Renew);
        renewals == 3
    });
}

#[test]
fn a_grant_after_a_wait_is_an_acquire_with_the_time_waited() {
    let waits = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&waits);
    let (locks, _, events) = watched(Fake::new(move |verb| {
        flag.fetch_or(verb == Verb::Wait, Ordering::SeqCst);
        std::future::ready(Ok(()))
    }));
    let held = locks.mutex("x").lock().unwrap();
    let mutex = locks.mutex("x");
    let waiting = thread::spawn(move || mutex.lock().unwrap());
    until("it waits", || waits.load(Ordering::SeqCst));
    thread::sleep(ms(50));
    held.release().unwrap();
    let next = waiting.join().unwrap();
    let id = next.lease_id().hash();
    drop(locks);
    next.release().unwrap();
    let mut theirs = until_end(&events);
    theirs.retain(|event| event.lease_id_hash.as_deref() == Some(&id));
    let told: Vec<_> = theirs.iter().map(|event| (event.kind, event.reason)).collect();
    let expected =
        [(EventKind::Acquire, Some(Reason::Locked)), (EventKind::Acquire, None), (EventKind::Release, None)];
    assert_eq!(told, expected);
    assert!(theirs[1].latency >= ms(50), "{:?}", theirs[1].latency);
}

#[test]
fn a_batch_of_renewals_is_an_event_for_each_lease() {
    let (locks, telemetry, events) = watched(Memory::new());
    let held = locks.leasing("held").try_acquire().unwrap().unwrap();
    events.recv_timeout(PATIENCE).unwrap();
    let name = |text: &str| locks.name(text).unwrap();
    let missing = LeaseId::random();
    let batch = [
        leasehold::backend::Renewal::new(name("held"), held.id, ms(500)),
        leasehold::backend::Renewal::new(name("missing"), missing, ms(500)),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(telemetry.renew(&batch)).len(), 2);
    expect(&events, EventKind::Renew, None, Some("held"), Some(held.id));
    expect(&events, EventKind::Renew, Some(Reason::NotFound), Some("missing"), Some(missing));
}

#[test]
fn raw_names_and_ids_come_only_where_they_were_asked_for() {
    fn told(set: impl FnOnce(Telemetry) -> Telemetry) -> Vec<(bool, bool)> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let telemetry =
            set(Telemetry::new(Memory::new(), move |event: &Event| sink.lock().unwrap().push(event.clone())));
        let locks = Locks::new(telemetry);
        for name in ["public-1", "secret-1"] {
            let lease = locks.leasing(name).try_acquire().unwrap().unwrap();
            assert!(locks.owns(lease.id).unwrap());
        }
        until("all events have come", || seen.lock().unwrap().len() >= 4);
        let seen = seen.lock().unwrap();
        for event in &*seen {
            assert!(event.name_hash.is_some() || event.lease_id_hash.is_some(), "hashes are always there");
            if let (Some(name), Some(hash)) = (&event.name, &event.name_hash) {
                assert_eq!(&digest_name(name.as_str()), hash);
            }
        }
        seen.iter().map(|event| (event.name.is_some(), event.lease_id.is_some())).collect()
    }
    let (none, both, id) = ((false, false), (true, true), (false, true));
    assert_eq!(told(|telemetry| telemetry), [none; 4]);
    assert_eq!(told(|telemetry| telemetry.include_raw(false)), [none; 4]);
    assert_eq!(told(|telemetry| telemetry.include_raw(true)), [both, id, both, id]);
    let public = |name: &Name| name.as_str().starts_with("public");
    assert_eq!(told(|telemetry| telemetry.include_raw_if(public)), [both, none, none, none]);
    let debug = format!("{:?}", Telemetry::new(Memory::new(), |_| ()).include_raw(true));
    assert!(debug.starts_with("Telemetry"), "{debug}");
}

/// How long this many pairs of acquire and release take.
fn pairs(locks: &Locks, count: u32) -> Duration {
    let mutex = locks.mutex("x");
    let started = Instant::now();
    for _ in 0..count {
        mutex.lock().unwrap().release().unwrap();
    }
    started.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_slow_sink_delays_no_lock() {
    // The sink never returns from its first event.
    let (go, gate) = mpsc::channel::<()>();
    let telemetry = Telemetry::new(Memory::new(), move |_: &Event| {
        let _ = gate.recv();
    });
    let (plain, watched) = (Locks::new(Memory::new()), Locks::new(telemetry.clone()));
    let [without, with] = in_time_blocking("the locks are not held up", move || {
        pairs(&watched, 2100);
        // Now no event finds room. By turns, so that a busy machine slows both alike.
        let both: Vec<_> = (0..1000).map(|_| [&plain, &watched].map(|locks| pairs(locks, 1))).collect();
        [0, 1].map(|which| median(both.iter().map(|pair| pair[which]).collect()))
    });
    assert!(telemetry.dropped() >= 2000);
    assert!(with < 5 * without + Duration::from_micros(200), "{with:?}, and without a sink {without:?}");
    drop(go);
}

#[test]
fn a_sink_that_panics_still_gets_the_next_event() {
    let (sender, events) = mpsc::channel();
    let telemetry = Telemetry::new(Memory::new(), move |event: &Event| {
        sender.send(event.kind).unwrap();
        std::panic::resume_unwind(Box::new("the sink is broken"));
    });
    pairs(&Locks::new(telemetry.clone()), 10);
    for kind in [EventKind::Acquire, EventKind::Release].repeat(10) {
        assert_eq!(events.recv_timeout(PATIENCE).unwrap(), kind);
    }
    until("every panic is counted", || telemetry.panicked() == 20);

    // A predicate that panics is no different, and costs only its event.
    let (sender, events) = mpsc::channel();
    let telemetry = Telemetry::new(Memory::new(), move |event: &Event| sender.send(event.kind).unwrap())
        .include_raw_if(|name| {
            if name.as_str() == "x" {
                std::panic::resume_unwind(Box::new("the predicate is broken"));
            }
            true
        });
    let locks = Locks::new(telemetry.clone());
    pairs(&locks, 1);
    assert!(!locks.is_locked("y").unwrap());
    assert_eq!(events.recv_timeout(PATIENCE).unwrap(), EventKind::Lookup);
    assert_eq!(telemetry.panicked(), 2);
}

#[test]
fn events_beyond_what_can_wait_are_dropped_and_counted() {
    let (go, gate) = mpsc::channel::<()>();
    let (sender, events) = mpsc::channel();
    let telemetry = Telemetry::new(Memory::new(), move |event: &Event| {
        let _ = gate.recv();
        sender.send(event.clone()).unwrap();
    });
    let locks = Locks::new(telemetry.clone());
    in_time_blocking("a sink that is stuck holds up nobody", move || pairs(&locks, 5_000));
    let dropped = telemetry.dropped();
    // 4096 wait, and the sink has at most one.
    assert!((10_000 - 4_097..=10_000 - 4_096).contains(&dropped), "{dropped}");
    drop(go);
    drop(telemetry);
    assert_eq!(
        until_end(&events).len() as u64,
        10_000 - dropped,
        "the others are delivered, also at the end"
    );
}

#[test]
fn the_thread_ends_with_the_layer() {
    let (locks, telemetry, events) = watched(Memory::new());
    drop(locks.mutex("x").lock().unwrap());
    drop(telemetry);
    locks.close();
    assert!(!locks.is_locked("x").unwrap());
    for kind in [EventKind::Acquire, EventKind::Release, EventKind::Lookup] {
        let event = events.recv_timeout(PATIENCE).expect("the client still needs it");
        assert_eq!(event.kind, kind);
    }
    drop(locks);
    assert_eq!(until_end(&events), [], "the sink is dropped");
}

#[test]
fn the_layer_mirrors_its_store_and_can_wrap_one_from_a_url() {
    let telemetry = Telemetry::new(Memory::new(), |_: &Event| ());
    assert_eq!(telemetry.info(), Memory::new().info());

    let (sender, events) = mpsc::channel();
    let builder = Locks::connect_builder("memory:").unwrap().layer(|store| {
        Arc::new(Telemetry::wrap(store, move |event: &Event| sender.send(event.kind).unwrap()))
    });
    let locks = Locks::from(builder.build());
    assert_eq!(locks.info().scheme, "memory");
    pairs(&locks, 1);
    assert_eq!(events.recv_timeout(PATIENCE).unwrap(), EventKind::Acquire);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let query = Query::Name(locks.name("x").unwrap());
    assert_eq!(runtime.block_on(locks.backend().inspect(&query)).unwrap().items.len(), 1);
}
