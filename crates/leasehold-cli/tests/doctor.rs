//! `leasehold doctor` on real stores, well and badly set up.
//!
//! One file because all of them read the findings in the same way.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use serde_json::Value;
use support::{Ended, Served, ended, leasehold, sqlite, stores, until};
use testkit::postgres::{PgBouncer, PoolMode, Postgres};
use testkit::redis::{Cluster, Sentinels, Server, with_replica};

/// The findings, by level.
struct Found {
    code: i32,
    findings: Vec<Value>,
}

/// The URL with a minute for each login to PostgreSQL: a machine that stalls for some seconds is no finding.
fn patient(url: &str) -> String {
    if !url.starts_with("postgres") || url.contains("connect_timeout") {
        return url.to_owned();
    }
    format!("{url}{}connect_timeout=60", if url.contains('?') { '&' } else { '?' })
}

fn examine(url: &str) -> Found {
    let outcome = ended(leasehold(&["doctor", "--output", "json", &patient(url)]));
    assert!(outcome.err.is_empty(), "{url}: {outcome:?}");
    let found: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(found["safe"], outcome.code() == 0, "{found}");
    let findings = found["findings"].as_array().unwrap().clone();
    for finding in &findings {
        // Each problem comes with its risk and its fix.
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

    /// Expects exactly these risks, each by some of its words.
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

    /// Expects these findings among others.
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
fn checks_common_to_all_stores_run_and_leave_nothing_behind() {
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
fn output_is_readable_and_exit_codes_are_1_64_and_69() {
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
fn redis_is_judged_by_persistence_and_eviction() {
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
    // A user without the permission to look cannot report that all is well.
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
fn redis_replicas_are_judged_by_failover_and_confirmation() {
    let servers = with_replica();
    let url = servers[0].url();
    const FORGETS: &str = "keeps nothing on disk";
    examine(&url).risks(&[FORGETS]).has("note", &["1 of its replicas learn of grants later"]);
    examine(&format!("{url}?wait_replicas=1"))
        .risks(&[FORGETS])
        .has("note", &["counts when 1 of 1 replicas have it"]);
    // It is a risk where a replica takes over by itself.
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
fn postgres_is_judged_by_durability_and_write_access() {
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
    // A pooler that keeps a session for each client is as good as none, if the URL says so.
    let pooler = PgBouncer::start(&good, PoolMode::Session, 20);
    examine(&pooler.url()).risks(&[]).has("note", &["a pooler that shares sessions"]);
    examine(&format!("{}?pooler=session", pooler.url())).risks(&[]).has("ok", &["nothing stands between"]);
}

#[test]
fn a_postgres_primary_reports_standbys_and_a_standby_is_refused() {
    let primary = Postgres::start();
    let standby = primary.standby();
    examine(&primary.url()).risks(&[]).has("note", &["1 standbys learn of grants later"]);
    for url in [standby.url(), standby.url().replacen(':', "+advisory:", 1)] {
        ended(leasehold(&["doctor", &url])).says(69, "connect to the primary");
    }
    let name = primary.sql("SELECT application_name FROM pg_stat_replication");
    primary.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '\"{}\"'", name.trim()));
    primary.sql("SELECT pg_reload_conf()");
    until("the standby is synchronous", || {
        primary.sql("SELECT sync_state FROM pg_stat_replication").contains("sync")
    });
    examine(&primary.url()).risks(&[]).has("ok", &["standbys confirm grants before they are answered"]);
}

#[test]
fn a_redis_that_refuses_writes_still_gets_findings_that_say_why() {
    // The append-only file is on a device that is always full.
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("appendonlydir");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("appendonly.aof.manifest"), "file appendonly.aof.1.incr.aof seq 1 type i\n")
        .unwrap();
    std::os::unix::fs::symlink("/dev/full", files.join("appendonly.aof.1.incr.aof")).unwrap();
    let full = Server::with(&["--dir", dir.path().to_str().unwrap(), "--appendonly", "yes"]);
    // The first write is answered before it fails.
    full.cli(&["SET", "other", "1"]);
    until("it has noticed", || full.cli(&["INFO", "persistence"]).contains("aof_last_write_status:err"));
    broken(&full.url(), "Redis cannot save to disk", "cannot write its append-only file");
    let servers = with_replica();
    const REFUSED: &str = "this Redis is a replica; connect to its primary";
    ended(leasehold(&["doctor", &servers[1].url()])).says(69, REFUSED);
    // A replica that accepts writes would be the worse for it.
    servers[1].cli(&["CONFIG", "SET", "replica-read-only", "no"]);
    ended(leasehold(&["doctor", &servers[1].url()])).says(69, REFUSED);
}

/// Runs the command until the store has answered it: a busy machine may take longer than the command waits.
fn answered(arguments: &[&str]) -> Ended {
    let mut outcome = ended(leasehold(arguments));
    until("the store answers in time", || {
        if outcome.err.contains("in time") {
            outcome = ended(leasehold(arguments));
        }
        !outcome.err.contains("in time")
    });
    outcome
}

/// The store does not work, and the findings say why.
#[track_caller]
fn broken(url: &str, error: &str, risk: &str) {
    let outcome = answered(&["doctor", url]);
    outcome.says(69, error);
    assert!(outcome.out.contains(risk), "{outcome:?}");
    assert!(outcome.out.ends_with("It does not work.\n"), "{outcome:?}");
    let outcome = answered(&["doctor", "--output", "json", url]);
    outcome.says(69, error);
    let found: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!((&found["works"], &found["safe"]), (&false.into(), &false.into()), "{found}");
    let of_it = |finding: &Value| {
        finding["level"] == "risk"
            && finding["what"].as_str().unwrap().contains(risk)
            && finding["fix"].is_string()
    };
    assert!(found["findings"].as_array().unwrap().iter().any(of_it), "{found}");
}

#[test]
fn a_wrong_clock_is_reported_with_its_offset() {
    use leasehold_torture::clock::Clocks;
    use leasehold_torture::history::record::Fault;
    let clocks = Clocks::new().unwrap();
    let redis =
        Server::try_with(&["--appendonly", "yes", "--appendfsync", "always"], &clocks.of_store()).unwrap();
    let postgres = clocks.of_store().into_iter();
    let postgres =
        postgres.fold(Postgres::builder(), |builder, (name, value)| builder.environment(&name, &value));
    let postgres = postgres.start();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &["--store", &redis.url()]);
    for seconds in [3600, -120_i64] {
        clocks.step(Fault::ClockStore, seconds).unwrap();
        for url in [redis.url(), postgres.url(), served.url.clone()] {
            let found = examine(&url).risks(&[]).has("note", &["the store's wall clock differs"]);
            let what = found
                .of("note")
                .into_iter()
                .find_map(|what| what.split("differs from this machine's by ").nth(1));
            let ms: i64 = what.unwrap().trim_end_matches(" ms").parse().unwrap();
            // Measured between two readings of our own clock, which take a moment.
            let off = seconds.abs() * 1000;
            assert!((off - 20_000..=off + 20_000).contains(&ms), "{seconds} s: {ms} ms on {url}");
        }
    }
    clocks.step(Fault::ClockStore, 0).unwrap();
    examine(&postgres.url()).risks(&[]).has("ok", &["the store's wall clock differs"]);
}

#[test]
fn files_in_memory_or_open_to_others_are_reported() {
    let in_memory = tempfile::tempdir_in("/dev/shm").expect("a file system in memory");
    let (database, locks) = (in_memory.path().join("locks.db"), in_memory.path().join("locks"));
    let urls = [format!("sqlite:{}", database.display()), format!("file:{}", locks.display())];
    for url in &urls {
        // Locks of processes: no holder survives the restart that forgets its lock.
        examine(url).risks(&[]).has("note", &["it is on tmpfs, in memory"]);
    }
    // The clients of a server do survive it.
    let served = Served::start(in_memory.path(), &["--store", &urls[0]]);
    examine(&served.url).risks(&["its store: it is on tmpfs, in memory"]).has_not("and no further");
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&locks, std::fs::Permissions::from_mode(0o770)).unwrap();
    examine(&urls[1]).risks(&["the directory has mode 0770"]);
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
    let through =
        |pooler: &PgBouncer| patient(&pooler.url().replacen("postgres://", "postgres+advisory://", 1));
    ended(leasehold(&["doctor", &through(&pooler)])).says(64, "pooler");
    ended(leasehold(&["doctor", &format!("{}&pooler=session", through(&pooler))]))
        .says(64, "transaction mode");
    let pooler = PgBouncer::start(&usual, PoolMode::Session, 20);
    ended(leasehold(&["doctor", &through(&pooler)])).says(64, "pooler=session");
    examine(&format!("{}&pooler=session", through(&pooler)))
        .risks(&[])
        .has("note", &["a pooler in session mode"]);
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
fn a_server_is_judged_by_its_store_and_its_access_rules() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &[]);
    let open = examine(&served.url)
        .risks(&[])
        .has(
            "ok",
            &["before sqlite:", "its store: answers are on disk", "on this machine", "wall clock differs"],
        )
        .has("note", &["gets in without a token"]);
    // A release takes the lease id, which is secret.
    let risks: Vec<_> = open.findings.iter().filter_map(|finding| finding["risk"].as_str()).collect();
    assert!(risks.contains(&"every user of this machine can revoke every lock"), "{risks:?}");
    let forgetful = Served::start(dir.path(), &["--store", "memory:"]);
    examine(&forgetful.url).risks(&["keeps leases in its memory"]);
    // The server examines its store for us.
    let redis = Server::durable();
    let before = Served::start(dir.path(), &["--store", &redis.url()]);
    examine(&before.url)
        .risks(&[])
        .has("ok", &["its store: this Redis has grants on disk before it answers"]);
    let bad = Server::with(&["--maxmemory-policy", "allkeys-lru", "--requirepass", "hush"]);
    let before = Served::start(dir.path(), &["--store", &bad.url()]);
    let found = examine(&before.url)
        .risks(&["its store: this Redis keeps nothing on disk", "its store: this Redis evicts keys"]);
    assert!(!format!("{:?}", found.findings).contains("hush"));
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
    assert!(outcome.out.contains("ok    its store: answers are on disk"), "{outcome:?}");
    // A token that may not see every name does not get the findings about the store's setup.
    let narrow = ["token", "create", "--tokens", tokens, "--prefix", "leasehold-doctor-"];
    let narrow = ended(leasehold(&narrow)).out;
    let guarded = Served::start(tempfile::tempdir().unwrap().path(), &["--tokens", tokens]);
    let mut command = leasehold(&["doctor", &guarded.url]);
    command.env("LEASEHOLD_TOKEN", narrow.trim());
    let outcome = ended(command);
    assert_eq!(outcome.code(), 0, "{outcome:?}");
    assert!(outcome.out.contains("note  this token is not told how the sqlite: store"), "{outcome:?}");
    assert!(!outcome.out.contains("its store"), "{outcome:?}");
}

/// Each store with a risk, and words of that risk.
#[test]
fn run_prints_the_risks_of_each_store_once_unless_silenced() {
    use std::os::unix::fs::PermissionsExt as _;
    let forgetful = Server::start();
    let postgres = Postgres::builder().without_fsync().start();
    let sentinels = Sentinels::start();
    let cluster = Cluster::start();
    let quorum = testkit::redis::servers(3);
    let (in_files, in_rows) = (support::file(), sqlite());
    let mode = |path: &str, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for store in [&in_files, &in_rows] {
        assert_eq!(store.run(&["x", "--", "true"]).code(), 0);
    }
    mode(in_files.url.strip_prefix("file:").unwrap(), 0o770);
    mode(in_rows.url.strip_prefix("sqlite:").unwrap(), 0o644);
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &["--store", "memory:"]);
    let tokens = dir.path().join("tokens");
    let tokens = tokens.to_str().unwrap();
    let token = ended(leasehold(&["token", "create", "--tokens", tokens])).out;
    let guarded = Served::start(dir.path(), &["--store", &forgetful.url(), "--tokens", tokens]);
    let urls: Vec<String> = quorum.iter().map(Server::url).collect();
    let stores: [(String, &[&str]); 9] = [
        (in_files.url.clone(), &["the directory has mode 0770: who can write to it"]),
        (in_rows.url.clone(), &["the database has mode 0644: who can read it"]),
        (forgetful.url(), &["keeps nothing on disk"]),
        (sentinels.url(), &["keeps nothing on disk", "learn of grants later"]),
        (cluster.url(), &["keeps nothing on disk"; 3]),
        (
            format!("quorum:{}", urls.join(",")),
            &["3 of 3 nodes are on 127.0.0.1", "node 1", "node 2", "node 3"],
        ),
        (postgres.url(), &["fsync off", "full_page_writes off", "synchronous_commit off"]),
        (
            postgres.url().replacen("postgres", "postgres+advisory", 1),
            &["fsync off", "full_page_writes off", "synchronous_commit off"],
        ),
        (served.url.clone(), &["keeps leases in its memory"]),
    ];
    support::each(&stores, |(url, risks)| run_warns(url, risks, |run| run));
    let with_token = |mut run: std::process::Command| {
        run.env("LEASEHOLD_TOKEN", token.trim());
        run
    };
    run_warns(&guarded.url, &["its store: this Redis keeps nothing on disk"], with_token);
    // With a token, `run` sends nothing that the server refuses.
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sS", "-H", &format!("authorization: Bearer {}", token.trim())]);
    curl.arg(format!("{}/metrics", guarded.url));
    let metrics = ended(curl).out;
    assert!(metrics.contains("\nlock_requests_refused_total 0\n"), "{metrics}");
}

/// Expects one line with each of these words from `run`, while its command runs, and none with `--no-warnings`.
fn run_warns(url: &str, risks: &[&str], with: impl Fn(std::process::Command) -> std::process::Command) {
    let dir = tempfile::tempdir().unwrap();
    let url = patient(url);
    let start = |options: &[&str]| {
        let wait = ["x", "--", "sh", "-c", "until [ -e go ]; do sleep 0.05; done"];
        let mut run = leasehold(&[&["run", "--url", &url], options, &wait].concat());
        run.current_dir(dir.path());
        support::Running::start(with(run))
    };
    let go = dir.path().join("go");
    // The command runs until every risk is printed.
    let told = |options: &[&str], lines: usize| {
        let running = start(options);
        until("each risk is printed", || running.said().matches("warning").count() >= lines);
        std::fs::write(&go, "").unwrap();
        let outcome = running.ended();
        assert_eq!(outcome.code(), 0, "{url}: {outcome:?}");
        std::fs::remove_file(&go).unwrap();
        outcome.err
    };
    let plain = told(&[], risks.len());
    for (line, words) in plain.lines().zip(risks) {
        assert!(line.starts_with("leasehold: warning: ") && line.contains(words), "{url}: {words}: {plain}");
    }
    assert_eq!(plain.lines().count(), risks.len(), "{url}: {plain}");
    let json = told(&["--json"], risks.len());
    let warnings = json.matches("{\"event\":\"warning\",\"what\":\"").count();
    assert_eq!(warnings, risks.len(), "{url}: {json}");
    assert_eq!(told(&["--no-warnings"], 0), "", "{url}");
}

/// A Redis without persistence.
#[test]
fn serve_warns_of_a_risky_store_unless_the_risk_is_accepted() {
    let redis = testkit::redis::Server::start();
    let store = support::Store::at(redis.url());
    let what = "keeps nothing on disk";
    let url = redis.url();
    let serve = |more: &[&str]| {
        let serve = ["serve", "--store", &url, "--listen", "127.0.0.1:0", "--check"];
        ended(store.leasehold(&[&serve, more].concat()))
    };
    let told = serve(&[]);
    assert!(
        told.code() == 1 && told.err.contains("leasehold: RISK: ") && told.err.contains(what),
        "{told:?}"
    );
    assert!(told.out.contains("--accept-risks"), "{told:?}");
    let told = serve(&["--accept-risks"]);
    assert!(
        told.code() == 0 && told.err.is_empty() && told.out.contains("everything is in order"),
        "{told:?}"
    );
    // It serves all the same, and warns.
    let errors = store.path("errors");
    let mut command = support::leasehold(&["serve", "--store", &url, "--listen", "127.0.0.1:0"]);
    command.current_dir(store.dir.path()).stderr(std::fs::File::create(&errors).unwrap());
    let served = support::Served::from(&mut command);
    assert!(std::fs::read_to_string(&errors).unwrap().contains("leasehold: RISK: "));
    drop(served);
}

/// Like a probe that runs every ten seconds.
#[test]
fn a_second_doctor_run_leaves_no_more_names_than_the_first() {
    let (in_files, in_rows) = (support::file(), sqlite());
    let files = || std::fs::read_dir(in_files.path("locks")).unwrap().count();
    let rows = || -> u32 {
        let db = rusqlite::Connection::open(in_rows.url.strip_prefix("sqlite:").unwrap()).unwrap();
        db.busy_timeout(support::PATIENCE).unwrap();
        db.query_row("SELECT count(*) FROM names", [], |row| row.get(0)).unwrap()
    };
    let look = || [&in_files, &in_rows].map(tried);
    look();
    let once = (files(), rows());
    look();
    look();
    assert!(once.0 > 0 && once.1 > 0, "{once:?}");
    assert_eq!((files(), rows()), once);
    // Many at once do not disturb each other, even beside one that was killed while it held its lock.
    let probe = in_rows.leasehold(&["acquire", "-n", "leasehold-doctor-0", "--ttl", "10m"]);
    assert_eq!(ended(probe).code(), 0);
    support::each(&[(); 8], |()| tried(&in_rows));
    assert!(rows() <= 16, "{}", rows());
}

/// The store works. The test's directory may be in memory, which is a risk.
#[track_caller]
fn tried(store: &support::Store) {
    let outcome = ended(store.leasehold(&["doctor"]));
    assert!([0, 1].contains(&outcome.code()), "{outcome:?}");
}
