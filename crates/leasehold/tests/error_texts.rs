//! Every error text of the library, compared with the files in `tests/snapshots/`.
//!
//! `errors.txt` has errors as a program meets them; `messages.txt` has every text in `src/` that goes into an
//! error, so that one that is hard to provoke is read in review too. `UPDATE_SNAPSHOTS=1` writes both anew.

#![allow(clippy::unwrap_used)]

use std::error::Error as _;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use leasehold::backends::memory::Memory;
use leasehold::{Error, LeaseId, Locks, Name, PollPolicy};

fn compare(file: &str, text: &str) {
    testkit::snapshot::check(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(file), text);
}

#[derive(Default)]
struct Errors(String);

impl Errors {
    fn section(&mut self, title: &str) {
        writeln!(self.0, "{}## {title}", if self.0.is_empty() { "" } else { "\n" }).unwrap();
    }

    fn add<T>(&mut self, cause: &str, result: Result<T, Error>) {
        let Err(error) = result else { panic!("{cause}: no error") };
        writeln!(self.0, "{cause}\n    {error}").unwrap();
        let mut next = error.source();
        while let Some(source) = next {
            writeln!(self.0, "    because: {source}").unwrap();
            next = source.source();
        }
    }
}

#[cfg(all(feature = "file", feature = "http", feature = "postgres", feature = "redis", feature = "sqlite"))]
#[tokio::test]
async fn errors_of_store_urls() {
    let mut errors = Errors::default();
    let urls: [(&str, &[&str]); 7] = [
        ("any", &["", "locks", "etcd://h", "localhost:7420", "memory", "memory:x"]),
        ("file", &["file:", "file://host/dir", "file:/no/such/directory/at/all", "file:/proc/self/mounts"]),
        (
            "sqlite",
            &[
                "sqlite:",
                "sqlite::memory:",
                "sqlite:a?mode=ro",
                "sqlite://host/a",
                "sqlite:/no/such/directory/a",
                "sqlite:/dev/null",
                "sqlite:/etc/passwd",
            ],
        ),
        (
            "redis",
            &[
                "redis:",
                "redis://",
                "redis://h/x",
                "redis://h#insecure",
                "redis://h:99999",
                "redis://user@h",
                "redis://a,b",
                "redis://h?what=1",
                "redis://h?wait_replicas=x",
                "redis://h?connect_timeout_ms=0",
                "redis://h?tls=maybe",
                "rediss://h?tls=0",
                "rediss://h?cert=a",
                "rediss://h?cacert=%zz",
                "rediss://h?cacert=/no/such/file",
                "redis://h?cacert=/a",
                "redis-sentinel://h",
                "redis-sentinel://h/s?sentinel_user=u",
                "redis-cluster://h/1",
                "redis://127.0.0.1:1",
                "redis-sentinel://127.0.0.1:1/s",
                "redis-cluster://127.0.0.1:1",
            ],
        ),
        (
            "postgres",
            &[
                "postgres:h",
                "postgres://h:x/d",
                "postgres://h/d?what=1",
                "postgres://h/d?connect_timeout=x",
                "postgres://h/d?pool_size=0",
                "postgres://h/d?pool_size=x",
                "postgres://h/d?pooler=x",
                "postgres://h/d?schema=",
                "postgres://h/d?schema=pg_x",
                "postgres://h/d?sslmode=x",
                "postgres://h/d?sslcert=/a",
                "postgres://h/d?sslmode=verify-full&sslrootcert=/no/such/file",
                "postgres://h/d?sslmode=disable&sslrootcert=/a",
                "postgres://h/d?sslmode=verify-ca",
                "postgres://127.0.0.1:1/d",
                "postgres+advisory://h/d?connections=1",
                "postgres+advisory://h/d?connections=x",
                "postgres+advisory://h/d?keepalive=0",
                "postgres+advisory://h/d?pooler=transaction",
                "postgres+advisory://127.0.0.1:1/d",
            ],
        ),
        (
            "http",
            &[
                "http:",
                "http://",
                "http://h:99999",
                "http://127.0.0.1:1",
                "http://token@h",
                "http://h?what=1",
                "http://h?token_file=/no/such/file",
                "https://h?ca=/no/such/file",
                "https://h?cert=/a",
                "https://h?cert=/no/such/cert&key=/no/such/key",
            ],
        ),
        ("quorum", &["quorum:", "quorum:memory:", "quorum:redis://a,redis://a,redis://a"]),
    ];
    for (store, urls) in urls {
        errors.section(store);
        for url in urls {
            errors.add(url, Locks::connect(url).await);
        }
    }
    compare("urls.txt", &errors.0);
}

#[tokio::test(start_paused = true)]
async fn errors_of_options_and_calls() {
    let mut errors = Errors::default();
    let locks = Locks::new(Memory::new());
    let mutex = || locks.mutex("a");
    errors.section("names");
    errors.add("empty name", locks.mutex("").try_lock().await);
    errors.add("long name", locks.mutex("x".repeat(513)).try_lock().await);
    errors.add("Name::new of an empty name", Name::new(""));
    errors.add("long namespace", Name::within(&"x".repeat(513), "a"));
    errors.add("LeaseId of a short text", "abc".parse::<LeaseId>());

    errors.section("options");
    errors.add("short ttl", mutex().ttl(Duration::from_millis(1)).try_lock().await);
    errors.add("long ttl", mutex().ttl(Duration::from_secs(100_000)).try_lock().await);
    errors.add("empty owner", mutex().owner("").try_lock().await);
    errors.add("long owner", mutex().owner("x".repeat(257)).try_lock().await);
    errors.add("long metadata", mutex().metadata("x".repeat(4097)).try_lock().await);
    errors.add("short max_hold", mutex().max_hold(Duration::from_millis(1)).try_lock().await);
    errors.add("long renew_every", mutex().renew_every(Duration::from_secs(20)).try_lock().await);
    errors.add("min_validity_percent 99", mutex().min_validity_percent(99).try_lock().await);
    errors.add("max_attempts 0", mutex().max_attempts(0).try_lock().await);
    errors.add("release_timeout 0", mutex().release_timeout(Duration::ZERO).try_lock().await);
    let poll = PollPolicy::new(Duration::from_secs(2), Duration::from_secs(1));
    errors.add("poll from 2 s to 1 s", mutex().poll(poll).try_lock().await);
    errors.add("semaphore of 0", locks.semaphore("s", 0).try_acquire().await);

    errors.section("calls");
    let held = mutex().lock().await.unwrap();
    errors.add("lock, held by another", mutex().max_wait(Duration::from_secs(1)).lock().await);
    // It says how long it really waited, which is never quite a second.
    let waited = errors.0.rfind("not acquired within 1").unwrap();
    errors.0.truncate(waited);
    errors.0.push_str("not acquired within 1 s\n");
    errors.add("semaphore on a mutex", locks.semaphore("a", 2).try_acquire().await);
    let permit = locks.semaphore("p", 2).try_acquire().await.unwrap().unwrap();
    errors.add("another limit", locks.semaphore("p", 3).try_acquire().await);
    errors.add("mutex on a semaphore", locks.mutex("p").try_lock().await);
    errors.add("downgrade of a permit", permit.downgrade().await);
    locks.revoke("a", true).await.unwrap();
    errors.add("check of a revoked lease", {
        held.lost().await;
        held.check()
    });
    locks.close().await;
    errors.add("lock of a closed client", mutex().try_lock().await);
    compare("errors.txt", &errors.0);
}

#[test]
fn texts_in_the_sources() {
    // The conformance suite and the planted bugs speak to developers of stores, in panics and reports.
    testkit::messages::check(env!("CARGO_MANIFEST_DIR"), &["conformance", "bugs"]);
}
