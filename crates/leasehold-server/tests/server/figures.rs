//! The metrics, one by one: that each really counts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks};
use leasehold_server::{Limits, NewToken, Settings, Tokens};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::faulty::{Act, Verb};
use testkit::proxy::{Direction, Proxy};
use testkit::until::{in_time, until_async};

use crate::support::{Server, faulty};

impl Server {
    /// The value of a metric, by its name and labels.
    pub(crate) async fn figure(&self, name: &str) -> f64 {
        let text = self.get("/metrics").await.text;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    }

    /// Waits until a metric has this value.
    pub(crate) async fn figure_becomes(&self, name: &str, value: f64) {
        until_async(&format!("{name} is {value}"), async || self.figure(name).await == value).await;
    }

    /// Checks how often a verb ended in each result.
    async fn counts(&self, verb: &str, results: [(&str, f64); 3]) {
        for (result, count) in results {
            let name = format!("lock_{verb}_total{{result=\"{result}\"}}");
            assert_eq!(self.figure(&name).await, count, "{name}");
        }
    }

    pub(crate) async fn take(&self, name: &str, ttl_ms: u64) -> Value {
        let answer = self.verb(name, "acquire", json!({"owner_id": "me", "ttl_ms": ttl_ms})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["lease_id"].clone()
    }

    /// Takes a lock, then shortens its lease. Asked for so short a ttl, a quorum on a busy machine might not grant it:
    /// a grant must have nine tenths of its time left on arrival.
    async fn take_for_only(&self, name: &str, ttl_ms: u64) -> Value {
        let id = self.take(name, 60_000).await;
        until_async("the lease is short", async || {
            let seen = self.get(&format!("/v1/locks/{name}")).await.body;
            let Some(holder) = seen["holders"].get(0) else { return true };
            if holder["expires_in_ms"].as_u64().unwrap() <= ttl_ms {
                return true;
            }
            let shorten = json!({"lease_id": id, "extend_by_ms": ttl_ms, "shorten": holder["renewals"]});
            self.verb(name, "renew", shorten).await;
            false
        })
        .await;
        id
    }

    /// Takes a lock whose lease has already expired.
    async fn take_expired(&self, name: &str) -> Value {
        let id = self.take_for_only(name, 100).await;
        self.until(name, |lock| lock["held"] == false).await;
        id
    }

    async fn sweep(&self) -> u64 {
        self.post("/v1/sweep", "{}").await.body["expired"].as_u64().unwrap()
    }
}

/// Stores that report what has expired.
struct Stores {
    directory: TempDir,
    redis: Vec<testkit::redis::Server>,
    postgres: testkit::postgres::Postgres,
}

impl Stores {
    fn start() -> Self {
        let (redis, postgres) = (testkit::redis::servers(4), testkit::postgres::Postgres::start());
        Stores { directory: tempfile::tempdir().unwrap(), redis, postgres }
    }

    /// A server on each store, which sweeps at its start and then only on request.
    async fn swept_once(&self) -> [(&'static str, Server); 5] {
        let sqlite = format!("sqlite:{}", self.directory.path().join("locks.db").display());
        let nodes = quorum(self.redis[1..].iter().map(testkit::redis::Server::url));
        [
            ("memory", swept_once("memory:").await),
            ("sqlite", swept_once(&sqlite).await),
            ("redis", swept_once(&self.redis[0].url()).await),
            ("postgres", swept_once(&self.postgres.url()).await),
            ("quorum", swept_once(&nodes).await),
        ]
    }
}

/// A server that sweeps at its start and then only on request.
async fn swept_once(url: &str) -> Server {
    let mut settings = Settings::default();
    settings.sweep_every = Duration::from_secs(3600);
    let server = Server::on(Locks::connect(url).await.unwrap(), settings).await;
    server.figure_becomes("lock_store_latency_ms_count{op=\"sweep\"}", 1.0).await;
    server
}

fn quorum(urls: impl Iterator<Item = String>) -> String {
    format!("quorum:{}", urls.collect::<Vec<_>>().join(","))
}

#[tokio::test]
async fn acquires_are_counted_by_result() {
    let (server, store) = faulty().await;
    server.take("a", 60_000).await;
    server.take("b", 60_000).await;
    assert_eq!(server.acquire("a").await.status, 409);
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Overloaded)]);
    server.acquire("c").await;
    server.verb("d", "acquire", json!({"owner_id": ""})).await.is_problem(400, "INVALID_ARGUMENT");
    server.counts("acquire", [("success", 2.0), ("fail", 2.0), ("busy", 1.0)]).await;
}

#[tokio::test]
async fn renewals_are_counted_by_result_also_those_of_a_batch() {
    let (server, store) = faulty().await;
    let id = server.take("a", 60_000).await;
    let renew = json!({"lease_id": id, "extend_by_ms": 60_000});
    assert_eq!(server.verb("a", "renew", renew.clone()).await.status, 200);
    assert_eq!(server.verb("other", "renew", renew.clone()).await.status, 410);
    store.plan(Verb::Renew, [Act::Fail(ErrorKind::Overloaded)]);
    assert_eq!(server.verb("a", "renew", renew).await.status, 503);
    let one = |name: &str| json!({"lock_name": name, "lease_id": id, "extend_by_ms": 60_000});
    let batch = json!({"leases": [one("a"), one("a"), one("other")]}).to_string();
    assert_eq!(server.post("/v1/renew", &batch).await.status, 200);
    server.counts("renew", [("success", 3.0), ("fail", 2.0), ("busy", 1.0)]).await;
}

#[tokio::test]
async fn releases_are_counted_by_result() {
    let (server, store) = faulty().await;
    let id = server.take("a", 60_000).await;
    let release = json!({"lease_id": id});
    store.plan(Verb::Release, [Act::Fail(ErrorKind::Overloaded)]);
    assert_eq!(server.verb("a", "release", release.clone()).await.status, 503);
    assert_eq!(server.verb("a", "release", release.clone()).await.body["released"], true);
    assert_eq!(server.verb("a", "release", release).await.body["released"], false);
    server.counts("release", [("success", 1.0), ("fail", 1.0), ("busy", 1.0)]).await;
}

/// Also the store's part of that time.
#[tokio::test]
async fn the_time_of_each_operation_is_observed_once() {
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::Slow(Duration::from_millis(20))]);
    let id = server.take("a", 60_000).await;
    server.acquire("a").await;
    server.verb("a", "renew", json!({"lease_id": id, "extend_by_ms": 60_000})).await;
    server.verb("a", "release", json!({"lease_id": id})).await;
    for (op, count) in [("acquire", 2.0), ("renew", 1.0), ("release", 1.0)] {
        let count_of = |metric: &str| format!("lock_{metric}_latency_ms_count{{op=\"{op}\"}}");
        assert_eq!(server.figure(&count_of("op")).await, count, "{op}");
        assert_eq!(server.figure(&count_of("store")).await, count, "{op}");
    }
    // The slow call is in the buckets above 16 ms, and no bucket from 1 to 2048 is missing.
    let bucket = |bound: u32| format!("lock_op_latency_ms_bucket{{le=\"{bound}.0\",op=\"acquire\"}}");
    assert!(server.figure(&bucket(16)).await <= 1.0);
    for power in 0..12 {
        server.figure(&bucket(1 << power)).await;
    }
    assert!(server.figure("lock_op_latency_ms_sum{op=\"acquire\"}").await >= 20.0);
}

#[tokio::test]
async fn a_busy_store_is_counted_for_each_verb() {
    let (server, store) = faulty().await;
    let id = server.take("a", 60_000).await;
    for verb in [Verb::TryAcquire, Verb::Renew, Verb::Release] {
        store.plan(verb, [Act::Fail(ErrorKind::Overloaded)]);
    }
    server.verb("a", "renew", json!({"lease_id": id, "extend_by_ms": 60_000})).await;
    server.verb("a", "release", json!({"lease_id": id})).await;
    // Last, because an id that the server made is given back after a fault, by a separate release.
    server.acquire("b").await;
    for op in ["acquire", "renew", "release"] {
        assert_eq!(server.figure(&format!("lock_db_busy_total{{op=\"{op}\"}}")).await, 1.0, "{op}");
    }
}

/// The client does not see these errors, because the wait goes on. They are counted all the same.
#[tokio::test]
async fn a_busy_store_is_counted_also_where_a_wait_tries_again() {
    let (server, store) = faulty().await;
    store.plan(Verb::TryAcquire, [Act::Fail(ErrorKind::Overloaded), Act::Fail(ErrorKind::Overloaded)]);
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 50_000});
    assert_eq!(server.verb("a", "acquire", waits).await.status, 200);
    assert_eq!(server.figure("lock_db_busy_total{op=\"acquire\"}").await, 2.0);
    server.counts("acquire", [("success", 1.0), ("fail", 0.0), ("busy", 0.0)]).await;
    // The client sees the last error of a wait, which is counted once.
    store.always(Verb::TryAcquire, Act::Fail(ErrorKind::Overloaded));
    let waits = json!({"owner_id": "w", "ttl_ms": 1000, "wait_ms": 10});
    assert_eq!(server.verb("b", "acquire", waits).await.body["reason"], "BUSY_RETRY");
    let tried = store.count(Verb::TryAcquire) - 1;
    assert_eq!(server.figure("lock_db_busy_total{op=\"acquire\"}").await, tried as f64);
}

#[tokio::test]
async fn held_locks_count_only_until_their_ttl_has_passed() {
    let server = Server::start().await;
    let id = server.take("a", 60_000).await;
    server.take("b", 60_000).await;
    server.take("short", 1).await;
    server.figure_becomes("locks_held", 2.0).await;
    server.verb("a", "release", json!({"lease_id": id})).await;
    server.figure_becomes("locks_held", 1.0).await;
}

/// On every store that reports expiry: also a lease that a later call found before a sweep did.
#[tokio::test]
async fn every_lease_that_expired_is_counted_once() {
    let stores = Stores::start();
    for (store, server) in stores.swept_once().await {
        let old = server.take_expired("replaced").await;
        server.take("replaced", 60_000).await;
        // Found by its own renewal, its own release, a revocation, or the sweep.
        for (name, verb) in
            [("renewed", "renew"), ("released", "release"), ("revoked", "revoke"), ("swept", "")]
        {
            let id = server.take_expired(name).await;
            match verb {
                "renew" => drop(server.verb(name, verb, json!({"lease_id": id, "extend_by_ms": 1})).await),
                "release" => drop(server.verb(name, verb, json!({"lease_id": id})).await),
                "revoke" => drop(server.verb(name, verb, json!({"now": true})).await),
                _ => {}
            }
        }
        // Leases that ended in another way are not counted.
        let id = server.take("ended", 60_000).await;
        server.verb("ended", "release", json!({"lease_id": id})).await;
        server.take("freed", 60_000).await;
        server.verb("freed", "revoke", json!({"now": true})).await;
        server.verb("replaced", "release", json!({"lease_id": old})).await;
        assert_eq!(server.sweep().await, 5, "{store}");
        assert_eq!(server.figure("lock_expired_total").await, 5.0, "{store}");
        assert_eq!(server.sweep().await, 0, "{store}");
    }
}

/// A waiter takes over from a holder that died, without a sweep in between.
#[tokio::test]
async fn a_holder_whose_time_ended_while_others_waited_is_counted() {
    let stores = Stores::start();
    for (store, server) in stores.swept_once().await {
        server.take_for_only("a", 500).await;
        let next = json!({"owner_id": "next", "ttl_ms": 60_000, "wait_ms": 50_000});
        assert_eq!(server.verb("a", "acquire", next).await.status, 200);
        assert_eq!(server.sweep().await, 1, "{store}");
    }
}

/// The last node gets each lease a little later than the others, so it drops it in a later sweep; then one node is
/// dead.
#[tokio::test]
async fn a_lease_that_quorum_nodes_drop_in_turn_counts_once() {
    let mut redis = testkit::redis::servers(3);
    let far = Proxy::before(([127, 0, 0, 1], redis[2].port()).into()).unwrap();
    let urls = [redis[0].url(), redis[1].url(), format!("redis://{}", far.address())];
    let server = swept_once(&quorum(urls.into_iter())).await;
    far.delay(Direction::ToServer, Duration::from_millis(60));
    // Leases end one after the other while sweeps run.
    let counted = async |names: std::ops::Range<u64>| {
        let (count, mut found) = (names.end - names.start, 0);
        let leases = async {
            for name in names {
                let (name, body) = (format!("l{name}"), json!({"owner_id": "me", "ttl_ms": 3000}));
                // On a busy machine too little of its ttl may be left on arrival. Then the lease is given back, and
                // the give-back must have reached every node before the next attempt.
                while server.verb(&name, "acquire", body.clone()).await.status != 200 {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        };
        let sweep = async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.sweep().await
        };
        let sweeps = until_async("all of them are counted", async || {
            found += sweep().await;
            found >= count
        });
        tokio::join!(in_time("all are granted", leases), sweeps);
        // The last node reports them later, and a quorum remembers for twenty sweeps what only one node has found.
        for _ in 0..25 {
            found += sweep().await;
        }
        assert_eq!(found, count);
    };
    counted(0..20).await;
    redis[0].kill();
    counted(20..25).await;
    assert_eq!(server.figure("lock_expired_total").await, 25.0);
}

#[tokio::test]
async fn no_name_owner_or_lease_id_is_a_label() {
    let (server, store) = faulty().await;
    // Every fate of a lock: held, released, expired, revoked, refused, and a store that fails.
    for name in ["name-one", "name-two", "name-three"] {
        let id = server.take(name, 60_000).await;
        let renew = json!({"lease_id": id, "extend_by_ms": 60_000});
        let wait = json!({"owner_id": "owner-waiting", "ttl_ms": 1000, "wait_ms": 1});
        assert_eq!(server.verb(name, "acquire", wait).await.status, 409);
        assert_eq!(server.verb(name, "acquire", json!({"owner_id": "owner-bad"})).await.status, 400);
        assert_eq!(server.verb(name, "renew", renew.clone()).await.status, 200);
        for kind in [ErrorKind::Unavailable, ErrorKind::Overloaded] {
            store.plan(Verb::Renew, [Act::Fail(kind)]);
            assert_eq!(server.verb(name, "renew", renew.clone()).await.status, 503);
        }
        assert_eq!(server.verb(name, "revoke", json!({"now": true})).await.body["revoked"], 1);
        assert_eq!(server.verb(name, "renew", renew).await.status, 410);
        server.take_expired(name).await;
        let id = server.take(name, 60_000).await;
        assert_eq!(server.verb(name, "release", json!({"lease_id": id})).await.body["released"], true);
        server.take(name, 60_000).await;
    }
    server.sweep().await;
    assert_eq!((server.figure("locks_held").await, server.figure("lock_expired_total").await), (3.0, 3.0));
    let text = server.get("/metrics").await.text;
    let labels = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (_, labels) = line.split_once('{')?;
        labels.split_once('}').map(|(labels, _)| labels)
    });
    let labels: BTreeSet<&str> = labels.flat_map(|labels| labels.split(',')).collect();
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let mut known = vec![version.as_str(), "store=\"memory\""];
    known.extend(["result=\"success\"", "result=\"fail\"", "result=\"busy\""]);
    known.extend(["op=\"acquire\"", "op=\"renew\"", "op=\"release\""]);
    known.extend(["op=\"revoke\"", "op=\"inspect\"", "op=\"sweep\"", "op=\"check_fence\""]);
    let others: Vec<_> = labels.iter().filter(|label| !label.starts_with("le=\"")).copied().collect();
    known.sort_unstable();
    assert_eq!(others, known);
    for secret in ["name-", "owner-", "\"me\""] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

#[tokio::test]
async fn how_long_leases_were_held_is_measured_from_grant_to_release() {
    let server = Server::start().await;
    let asked = Instant::now();
    let (id, began) = (server.take("a", 60_000).await, Instant::now());
    tokio::time::sleep(Duration::from_millis(30)).await;
    let least = began.elapsed().as_secs_f64();
    // A refused operation, and a lease that this server did not grant, add no hold time.
    for (name, id) in [("b", &id), ("a", &json!("AAAAAAAAAAAAAAAAAAAAAA"))] {
        assert_eq!(server.verb(name, "release", json!({"lease_id": id})).await.body["released"], false);
    }
    assert_eq!(server.figure("lock_hold_seconds_count").await, 0.0);
    assert_eq!(server.verb("a", "release", json!({"lease_id": id})).await.body["released"], true);
    assert_eq!(server.figure("lock_hold_seconds_count").await, 1.0);
    let held = server.figure("lock_hold_seconds_sum").await;
    assert!(held >= least && held <= asked.elapsed().as_secs_f64(), "{held} s");
    assert_eq!(server.figure("lock_hold_seconds_bucket{le=\"0.016\"}").await, 0.0);
}

#[tokio::test]
async fn requests_that_the_gate_refuses_are_counted() {
    let refused = "lock_requests_refused_total";
    let server = Server::start().await;
    assert_eq!(server.figure(refused).await, 0.0);
    server.send("GET", "/v1/locks", &[("host", "evil.example")], "").await.is_problem(403, "AUTH_FAILED");
    let page = [("origin", "http://evil.example")];
    server.send("POST", "/v1/sweep", &page, "").await.is_problem(403, "AUTH_FAILED");
    assert_eq!(server.figure(refused).await, 2.0);
    // A request refused by its route is counted there.
    server.verb("a", "acquire", json!({})).await.is_problem(400, "INVALID_ARGUMENT");
    assert_eq!(server.figure(refused).await, 2.0);
    // Refused for its token, and for exceeding a limit.
    let tokens = tempfile::NamedTempFile::new().unwrap();
    let limits = Limits { requests_per_second: Some(1), ..Limits::default() };
    let slow = NewToken::create("slow", Vec::new(), limits).unwrap();
    let other = NewToken::create("other", Vec::new(), Limits::default()).unwrap();
    std::fs::write(tokens.path(), format!("{}\n{}\n", slow.line, other.line)).unwrap();
    let mut settings = Settings::default();
    settings.tokens = Some(Tokens::read(tokens.path()).unwrap());
    let server = Server::on(Locks::connect("memory:").await.unwrap(), settings).await;
    let get = async |path: &str, secret: &str| {
        server.send("GET", path, &[("authorization", &format!("Bearer {secret}"))], "").await
    };
    assert_eq!(get("/v1/capabilities", "none").await.status, 401);
    let is_refused = async || get("/v1/capabilities", &slow.secret).await.status == 429;
    until_async("one too many in a second is refused", is_refused).await;
    let figures = get("/metrics", &other.secret).await.text;
    assert!(figures.contains(&format!("\n{refused} 2\n")), "{figures}");
}

#[tokio::test]
async fn queue_places_count_only_while_they_are_kept() {
    let server = Server::start().await;
    server.take("a", 60_000).await;
    let place = |id: &str| json!({"owner_id": "w", "ttl_ms": 1000, "lease_id": id, "queue": 600_000});
    for id in ["BBBBBBBBBBBBBBBBBBBBBB", "CCCCCCCCCCCCCCCCCCCCCC"] {
        assert_eq!(server.verb("a", "acquire", place(id)).await.status, 409);
    }
    server.figure_becomes("lock_queued", 2.0).await;
    server.verb("a", "release", json!({"lease_id": "BBBBBBBBBBBBBBBBBBBBBB"})).await;
    server.figure_becomes("lock_queued", 1.0).await;
}

/// Every metric drawn by the board in `docs/deploy/` exists, and figures that each server reports for the whole store
/// are not added up.
#[tokio::test]
async fn every_figure_of_the_grafana_board_is_one_of_ours() {
    let board: Value = serde_json::from_str(include_str!("../../../../docs/deploy/grafana.json")).unwrap();
    let figures = Server::start().await.get("/metrics").await.text;
    let mut seen = 0;
    for target in
        board["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap())
    {
        let drawn = target["expr"].as_str().unwrap();
        for name in drawn.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if name.starts_with("lock") {
                let is_there =
                    |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
                assert!(figures.lines().any(is_there), "{name} of {drawn}");
                let whole_store = matches!(name, "locks_held" | "lock_queued");
                assert!(!whole_store || drawn.starts_with("max("), "{drawn}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "{seen}");
}
