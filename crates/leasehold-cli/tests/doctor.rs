//! `leasehold doctor` on real stores that are set up well, and badly.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use serde_json::Value;
use support::{Served, ended, leasehold, sqlite, stores};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use testkit::redis::{Cluster, Sentinels, Server, with_replica};

/// What was found, by level.
struct Found {
    code: i32,
    findings: Vec<Value>,
}

fn examine(url: &str) -> Found {
    let outcome = ended(leasehold(&["doctor", "--output", "json", url]));
    assert!(outcome.err.is_empty(), "{url}: {outcome:?}");
    let found: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(found["safe"], outcome.code() == 0, "{found}");
    let findings = found["findings"].as_array().unwrap().clone();
    for finding in &findings {
        // What is not as it should be has what it risks and how to mend it.
        let whole = finding["risk"].is_string() == finding["fix"].is_string();
        assert!(whole && (finding["level"] != "risk" || finding["fix"].is_string()), "{finding}");
    }
    Found { code: outcome.code(), findings }
}

impl Found {
    fn of(&self, level: &str) -> Vec<&str> {
        let of_it = self.findings.iter().filter(|finding| finding["level"] == level);
        of_it.map(|finding| finding["what"].as_str().unwrap()).collect()
    }

    /// Exactly these risks, each by some of its words.
    #[track_caller]
    fn risks(self, expected: &[&str]) -> Self {
        let risks = self.of("risk");
        assert_eq!(risks.len(), expected.len(), "{risks:#?}");
        for words in expected {
            assert!(risks.iter().any(|risk| risk.contains(words)), "{words}: {risks:#?}");
        }
        assert_eq!(self.code, i32::from(!expected.is_empty()));
        self
    }

    /// These among others.
    #[track_caller]
    fn has(self, level: &str, expected: &[&str]) -> Self {
        let found = self.of(level);
        for words in expected {
            assert!(found.iter().any(|one| one.contains(words)), "{words}: {:#?}", self.findings);
        }
        self
    }

    #[track_caller]
    fn has_not(self, words: &str) -> Self {
        let what = self.findings.iter().map(|finding| finding["what"].as_str().unwrap());
        assert!(!what.clone().any(|what| what.contains(words)), "{words}: {:#?}", self.findings);
        self
    }
}

#[test]
fn what_is_true_of_every_store_is_tried_out_and_nothing_is_left_behind() {
    for store in stores() {
        let found = examine(&store.url);
        found
            .has(
                "ok",
                &["is there", "a look takes", "keeps another client out, and fences rise", "free when its"],
            )
            .has_not("how the server is set up");
        if store.shows_names {
            let left = ended(store.leasehold(&["list", "--output", "json"]));
            assert_eq!(left.out.trim(), "[]", "{left:?}");
        }
    }
}

#[test]
fn it_prints_for_people_and_exits_1_on_a_risk_64_and_69_if_there_is_nothing_to_look_at() {
    use std::os::unix::fs::PermissionsExt as _;
    let store = sqlite();
    let fine = ended(store.leasehold(&["doctor"]));
    assert_eq!(fine.code(), 0, "{fine:?}");
    assert!(
        fine.out.starts_with("ok    ") && fine.out.ends_with("No risk to safety was found.\n"),
        "{fine:?}"
    );
    let database = store.path("locks.db");
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644)).unwrap();
    let found = ended(leasehold(&["doctor", &store.url]));
    assert_eq!(found.code(), 1, "{found:?}");
    let fix = format!(
        "RISK  the database has mode 0644\n      risks: who can read it has the lease ids, and can release every \
         lock\n      fix: chmod 600 {}\n",
        database.display()
    );
    assert!(found.out.contains(&fix) && found.out.ends_with("There is a risk to safety.\n"), "{found:?}");
    let away = store.cut_off();
    assert_eq!(ended(store.leasehold(&["doctor"])).code(), 69);
    drop(away);
    ended(leasehold(&["doctor", "memory:"])).says(64, "private to one process");
    ended(leasehold(&["doctor", "redis://127.0.0.1:1"])).says(69, "Redis");
}

#[test]
fn a_redis_is_judged_by_what_it_keeps_and_evicts() {
    let good = Server::durable();
    examine(&good.url()).risks(&[]).has(
        "ok",
        &[
            "this is Redis 7",
            "evicts nothing",
            "on disk before it answers (appendfsync always)",
            "wall clock differs",
        ],
    );
    good.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    examine(&good.url()).risks(&[]).has("note", &["once a second (appendfsync everysec)"]);
    good.cli(&["CONFIG", "SET", "appendfsync", "no"]);
    examine(&good.url()).risks(&["appendfsync no"]);
    let bad = Server::with(&["--maxmemory-policy", "allkeys-lru"]);
    examine(&bad.url()).risks(&["keeps nothing on disk", "maxmemory-policy allkeys-lru"]);
    bad.cli(&["CONFIG", "SET", "save", "3600 1"]);
    bad.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    examine(&bad.url()).risks(&["snapshots only"]);
    // Who may not look cannot say that all is well.
    let allow = ["ACL", "SETUSER", "locks", "on", ">hush", "~leasehold*", "&leasehold*", "+@all", "-info"];
    good.cli(&allow);
    let blind = format!("redis://locks:hush@127.0.0.1:{}", good.port());
    let mut command = leasehold(&["doctor", "--output", "json"]);
    command.env("LEASEHOLD_URL", &blind);
    let outcome = ended(command);
    assert!(outcome.code() == 1 && outcome.out.contains("may not call INFO"), "{outcome:?}");
    assert!(!outcome.out.contains("hush"), "{outcome:?}");
}

#[test]
fn a_redis_with_replicas_is_judged_by_who_takes_over_and_who_confirms() {
    let servers = with_replica();
    let url = servers[0].url();
    const FORGETS: &str = "keeps nothing on disk";
    examine(&url).risks(&[FORGETS]).has("note", &["1 of its replicas learn of grants later"]);
    examine(&format!("{url}?wait_replicas=1"))
        .risks(&[FORGETS])
        .has("note", &["counts when 1 of 1 replicas have it"]);
    // Where one takes over by itself it is a risk.
    let sentinels = Sentinels::start();
    examine(&sentinels.url()).risks(&[FORGETS, "learn of grants later"]);
    let cluster = Cluster::start();
    let found = examine(&cluster.url()).has("ok", &["3 nodes of the cluster have names"]);
    let each: Vec<String> = cluster
        .nodes
        .iter()
        .map(|node| format!("node 127.0.0.1:{}: this Redis keeps nothing", node.port()))
        .collect();
    found.risks(&each.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_postgres_is_judged_by_what_is_on_disk_and_who_may_write() {
    let good = Postgres::start();
    let sound = ["this is PostgreSQL", "on disk before they are answered", "nothing stands between"];
    examine(&good.url()).risks(&[]).has("ok", &sound).has("note", &["superuser"]);
    good.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    good.sql("DROP SCHEMA leasehold CASCADE");
    examine(&good.url_of("app", "postgres")).risks(&[]).has("ok", &sound).has_not("superuser");
    good.sql("ALTER ROLE app SET synchronous_commit = off; ALTER ROLE app SET default_transaction_isolation = serializable");
    examine(&good.url_of("app", "postgres"))
        .risks(&["synchronous_commit off"])
        .has("note", &["serializable"]);
    good.sql("GRANT UPDATE ON ALL TABLES IN SCHEMA leasehold TO PUBLIC");
    examine(&good.url()).risks(&["every user of the database may change"]);
    let bad = Postgres::builder().without_fsync().start();
    examine(&bad.url()).risks(&["fsync off", "full_page_writes off", "synchronous_commit off"]);
    let pooler = PgBouncer::start(&good, PoolMode::Transaction, 5);
    good.sql("REVOKE ALL ON ALL TABLES IN SCHEMA leasehold FROM PUBLIC");
    examine(&pooler.url()).risks(&[]).has("note", &["a pooler that shares sessions"]);
}

#[test]
fn session_locks_are_judged_by_how_long_a_silence_lasts() {
    let advisory = |server: &Postgres, options: &str| {
        server.url().replacen("postgres://", "postgres+advisory://", 1) + options
    };
    let usual = Postgres::start();
    examine(&advisory(&usual, "?keepalive=3")).risks(&[]).has(
        "note",
        &["a server that hangs is noticed within 6 s", "whose machine has vanished is free after"],
    );
    let unfenced = advisory(&usual, "?fences=off");
    examine(&unfenced).risks(&["carry no fences"]).has("ok", &["a held lock keeps another client out"]);
    ended(leasehold(&["run", "--url", &unfenced, "x", "true"])).says(64, "--allow-unfenced accepts it");
    let accepted = ended(leasehold(&["run", "--url", &unfenced, "--allow-unfenced", "x", "true"]));
    assert_eq!((accepted.code(), accepted.err.as_str()), (0, ""), "{accepted:?}");
    let settings =
        [("tcp_keepalives_idle", "30"), ("tcp_keepalives_interval", "10"), ("tcp_keepalives_count", "3")];
    let builder =
        settings.iter().fold(Postgres::builder(), |builder, (name, value)| builder.setting(name, value));
    examine(&advisory(&builder.start(), "")).risks(&[]).has("ok", &["free after 60 s"]);
    // A pooler in between is refused.
    let pooler = PgBouncer::start(&usual, PoolMode::Transaction, 5);
    let through = pooler.url().replacen("postgres://", "postgres+advisory://", 1);
    ended(leasehold(&["doctor", &through])).says(64, "pooler");
}

#[test]
fn a_quorum_is_judged_node_by_node_and_together() {
    let mut servers: Vec<Server> = (0..4).map(|_| Server::durable()).collect();
    let url = |servers: &[Server]| {
        let urls: Vec<String> = servers.iter().map(Server::url).collect();
        format!("quorum:{}", urls.join(","))
    };
    examine(&url(&servers[..3]))
        .risks(&["3 of 3 nodes are on 127.0.0.1"])
        .has("ok", &["3 nodes, 3 of them there; 1 more may fail", "node 2 (127.0.0.1): this is Redis"]);
    examine(&url(&servers)).risks(&["4 of 4 nodes"]).has("note", &["4 is an even number"]);
    servers[1].cli(&["CONFIG", "SET", "appendonly", "no"]);
    servers[2].kill();
    examine(&url(&servers[..3]))
        .risks(&["3 of 3 nodes", "node 2 (127.0.0.1): this Redis keeps nothing on disk"])
        .has(
            "note",
            &["3 nodes, 2 of them there; 0 more may fail", "node 3 (127.0.0.1): it cannot be looked at"],
        );
}

#[test]
fn a_server_is_judged_by_its_store_and_by_who_gets_in() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[]);
    examine(&served.url)
        .risks(&[])
        .has("ok", &["before sqlite:", "on disk before it answers", "on this machine", "wall clock differs"])
        .has("note", &["gets in without a token"]);
    let forgetful = Served::start(dir.path(), &["--store", "memory:"]);
    examine(&forgetful.url).risks(&["keeps leases in its memory"]);
    let redis = Server::durable();
    let before = Served::start(dir.path(), &["--store", &redis.url()]);
    examine(&before.url).risks(&[]).has("note", &["how its redis: store is set up cannot be seen"]);
    let tokens = dir.path().join("tokens");
    let tokens = tokens.to_str().unwrap();
    let token = ended(leasehold(&["token", "create", "--tokens", tokens])).out;
    let other = tempfile::tempdir().unwrap();
    let guarded = Served::start(other.path(), &["--tokens", tokens]);
    let mut command = leasehold(&["doctor", &guarded.url]);
    command.env("LEASEHOLD_TOKEN", token.trim());
    let outcome = ended(command);
    assert_eq!(outcome.code(), 0, "{outcome:?}");
    assert!(outcome.out.contains("ok    nobody gets in without a token"), "{outcome:?}");
}
