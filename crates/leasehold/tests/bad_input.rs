//! Bad input gets a clear error that names the offending part, before anything is touched.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::backend::{Attempt, Wake};
use leasehold::backend::{
    Backend, Claim, Info, Page, Query, Release, Released, Renewal, Renewed, Revoked, Swept,
};
use leasehold::backends::memory::Memory;
use leasehold::{Error, ErrorKind, Fence, Guard, LeaseId, Locks, Mutex, Name, PollPolicy, Result};

/// Counts every call that reaches the store, and lets the test choose what the store can do.
#[derive(Debug)]
struct Watched {
    memory: Memory,
    info: Info,
    calls: Arc<AtomicUsize>,
}

impl Watched {
    fn touch(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Backend for Watched {
    fn info(&self) -> Info {
        self.info
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.touch();
        self.memory.try_acquire(claim).await
    }
    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.touch();
        self.memory.wait(claim).await
    }
    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        self.touch();
        self.memory.renew(leases).await
    }
    async fn release(&self, lease: &Release) -> Result<Released> {
        self.touch();
        self.memory.release(lease).await
    }
    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        self.touch();
        self.memory.revoke(name, now, only).await
    }
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.touch();
        self.memory.inspect(query).await
    }
    async fn sweep(&self) -> Result<Swept> {
        self.touch();
        self.memory.sweep().await
    }
}

fn watched(change: impl FnOnce(&mut Info)) -> (Locks, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut info = Memory::new().info();
    change(&mut info);
    let locks = Locks::new(Watched { memory: Memory::new(), info, calls: Arc::clone(&calls) });
    (locks, calls)
}

fn expect(error: Error, kind: ErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error:?} should say {says:?}");
}

async fn refused(lock: impl Fn(&Locks) -> Mutex, says: &str) {
    let (locks, calls) = watched(|_| {});
    let mutex = lock(&locks);
    for result in [
        mutex.try_lock().await,
        mutex.try_lock_for(Duration::from_secs(1)).await,
        mutex.lock().await.map(Some),
    ] {
        expect(result.unwrap_err(), ErrorKind::InvalidArgument, says);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0, "the store was touched");
}

#[tokio::test]
async fn a_bad_name_is_refused_before_any_call() {
    refused(|locks| locks.mutex(""), "name must not be empty").await;
    refused(|locks| locks.mutex("x".repeat(513)), "513 bytes").await;
    refused(|locks| locks.mutex("é".repeat(257)), "514 bytes").await;
    refused(|locks| locks.with_namespace("n".repeat(129)).mutex("x"), "namespace has 129 bytes").await;
}

#[tokio::test]
async fn odd_but_valid_names_are_names() {
    let locks = Locks::connect("memory:").await.unwrap();
    let _nul = locks.mutex("a\0b").try_lock().await.unwrap().unwrap();
    let _plain = locks.mutex("ab").try_lock().await.unwrap().unwrap();
    let _long = locks.mutex("x".repeat(512)).try_lock().await.unwrap().unwrap();
    let _normal = locks.mutex("cafe\u{301}").try_lock().await.unwrap().unwrap();
    assert!(locks.mutex("café").try_lock().await.unwrap().is_none(), "one name in two normal forms");
    assert_eq!(locks.mutex("cafe\u{301}").name(), "café");
    let _other_space = locks.with_namespace("other").mutex("ab").try_lock().await.unwrap().unwrap();
}

#[tokio::test]
async fn a_bad_ttl_is_refused_with_the_value_and_the_limits() {
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::from_millis(49), Duration::MAX] {
        refused(|locks| locks.mutex("x").ttl(ttl), "choose one from 50 ms to 24 h").await;
    }
    let day = Duration::from_secs(86_400);
    for (ttl, says) in [
        (Duration::ZERO, "a ttl of 0 s is too short: choose one"),
        (Duration::from_micros(999), "a ttl of 0.999 ms is too short: choose one"),
        (Duration::from_millis(49), "a ttl of 49 ms is too short: choose one"),
        (2 * day, "a ttl of 48 h is too long: choose one from 50 ms to 24 h; it need not outlast the work"),
    ] {
        refused(|locks| locks.mutex("x").ttl(ttl), says).await;
    }
    // Plain leases may be shorter, but not below a millisecond.
    let (locks, calls) = watched(|_| {});
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let error = locks.leasing("x").ttl(ttl).try_acquire().await.unwrap_err();
        expect(error, ErrorKind::InvalidArgument, "choose one from 1 ms to 24 h");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let lease = locks.leasing("x").ttl(Duration::from_millis(20)).try_acquire().await.unwrap();
    assert!(lease.is_some());
}

#[tokio::test]
async fn a_bad_ttl_is_refused_when_renewing_too() {
    let (locks, calls) = watched(|_| {});
    let guard = locks.mutex("x").lock().await.unwrap();
    let mut lease = locks.leasing("y").try_acquire().await.unwrap().unwrap();
    let before = calls.load(Ordering::SeqCst);
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        lease.ttl = ttl;
        let errors = [
            guard.renew_for(ttl).await.unwrap_err(),
            guard.shorten_to(ttl).await.unwrap_err(),
            locks.renew(&lease).await.unwrap_err(),
            locks.renew_by_id(lease.id, ttl).await.unwrap_err(),
            locks.adopt(lease.clone()).await.unwrap_err(),
        ];
        for error in errors {
            expect(error, ErrorKind::InvalidArgument, "a ttl of");
        }
    }
    assert_eq!(calls.load(Ordering::SeqCst), before);
}

#[tokio::test]
async fn bad_options_are_refused_before_any_call() {
    refused(|locks| locks.mutex("x").owner(""), "owner must not be empty").await;
    refused(|locks| locks.mutex("x").owner("o".repeat(257)), "257 bytes").await;
    refused(|locks| locks.mutex("x").metadata("m".repeat(4097)), "4097 bytes").await;
    refused(|locks| locks.mutex("x").max_hold(Duration::ZERO), "a max_hold of 0 s is too short").await;
    refused(|locks| locks.mutex("x").renew_every(Duration::ZERO), "renew_every").await;
    refused(|locks| locks.mutex("x").renew_every(Duration::from_secs(16)), "renew_every is 16 s").await;
    refused(|locks| locks.mutex("x").min_validity_percent(99), "min_validity_percent").await;
    refused(|locks| locks.mutex("x").max_attempts(0), "max_attempts").await;
    refused(|locks| locks.mutex("x").request_timeout(Duration::ZERO), "request_timeout").await;
    refused(|locks| locks.mutex("x").release_timeout(Duration::ZERO), "release_timeout").await;
    refused(|locks| locks.mutex("x").poll(PollPolicy::new(Duration::ZERO, Duration::ZERO)), "poll").await;
}

#[tokio::test]
async fn bad_limits_and_missing_abilities_are_refused_before_any_call() {
    let (locks, calls) = watched(|info| {
        info.max_permits = 8;
        info.shared = false;
        info.find_by_id = false;
    });
    let error = |result: Result<Option<Guard>>| result.unwrap_err();
    expect(error(locks.semaphore("x", 0).try_acquire().await), ErrorKind::InvalidArgument, "at least 1");
    expect(
        error(locks.semaphore("x", 9).try_acquire().await),
        ErrorKind::InvalidArgument,
        "at most 8 permits",
    );
    expect(error(locks.rwlock("x").try_read().await), ErrorKind::Unsupported, "no shared locks");
    expect(locks.owns(LeaseId::random()).await.unwrap_err(), ErrorKind::Unsupported, "by its id");
    expect(locks.list("", 0, None).await.unwrap_err(), ErrorKind::InvalidArgument, "at least 1");
    let (none, other_calls) = watched(|info| info.max_permits = 0);
    expect(error(none.semaphore("x", 1).try_acquire().await), ErrorKind::Unsupported, "no semaphores");
    assert_eq!(calls.load(Ordering::SeqCst) + other_calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_store_without_fences_is_used_only_by_explicit_opt_in() {
    let (locks, calls) = watched(|info| info.fenced = false);
    let error = locks.mutex("x").try_lock().await.unwrap_err();
    expect(error, ErrorKind::Unsupported, "allow_unfenced(true)");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(locks.mutex("x").allow_unfenced(true).try_lock().await.unwrap().is_some());
}

#[test]
fn a_malformed_lease_id_is_refused_and_not_repeated() {
    let error = LeaseId::parse("not-an-id-but-a-secret").map(|_| ()).err();
    assert!(error.is_none(), "22 characters of the alphabet are an id");
    for text in ["", "short", "AAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAAAA"] {
        let error = LeaseId::parse(text).unwrap_err();
        expect(error, ErrorKind::InvalidArgument, "22 characters");
    }
}

#[tokio::test]
async fn a_bad_url_is_refused_without_repeating_a_possible_password() {
    let connect = |url: &'static str| async move { Locks::connect(url).await.unwrap_err() };
    expect(connect("").await, ErrorKind::InvalidArgument, "scheme");
    expect(connect("memory").await, ErrorKind::InvalidArgument, "scheme");
    expect(connect("memory:x").await, ErrorKind::InvalidArgument, "nothing after the colon");
    expect(connect("gopher://h/").await, ErrorKind::InvalidArgument, "\"gopher\"; this build knows memory:");
    #[cfg(feature = "http")]
    {
        expect(connect("gopher://h/").await, ErrorKind::InvalidArgument, "http:, https:");
        // Three servers that are away; their scheme is known.
        let quorum = "quorum:https://127.0.0.1:1,HTTPS://127.0.0.1:2,https://127.0.0.1:3";
        expect(connect(quorum).await, ErrorKind::Unavailable, "3 of 3 nodes");
    }
    let quorum = "quorum:gopher://a,gopher://b,gopher://c";
    expect(connect(quorum).await, ErrorKind::InvalidArgument, "node 1 of the quorum: unknown store scheme");
    for url in [
        "redis://user:hunter2@127.0.0.1:1",
        "postgres://user:hunter2@127.0.0.1:1/db",
        "us er:hunter2",
        "x://user:hunter2@host",
    ] {
        let error = Locks::connect(url).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    #[cfg(not(feature = "http"))]
    expect(connect("http://h").await, ErrorKind::Unsupported, "the feature `http`");
    assert!(Locks::connect("MEMORY:").await.is_ok());
}

#[tokio::test]
async fn no_duration_panics_or_means_something_else() {
    let locks = Locks::connect("memory:").await.unwrap();
    let held = locks.mutex("x").lock().await.unwrap();
    for huge in [Duration::MAX, Duration::from_millis(i32::MAX as u64 + 1), Duration::from_secs(u64::MAX / 2)]
    {
        let mutex =
            locks.mutex("x").max_wait(huge).max_hold(huge).request_timeout(huge).release_timeout(huge);
        let waiting = tokio::time::timeout(Duration::from_millis(5), mutex.lock());
        assert!(waiting.await.is_err(), "a huge wait waits");
        let waiting = tokio::time::timeout(Duration::from_millis(5), mutex.try_lock_for(huge));
        assert!(waiting.await.is_err(), "a huge wait waits");
        assert!(mutex.try_lock_for(Duration::ZERO).await.unwrap().is_none(), "zero is one attempt");
        assert!(mutex.try_lock_for(Duration::from_nanos(1)).await.unwrap().is_none());
    }
    held.release().await.unwrap();
    let guard = locks.mutex("x").max_hold(Duration::MAX).release_timeout(Duration::MAX).lock().await.unwrap();
    guard.release().await.unwrap();
}
