//! `leasehold bench` does what holders do, reports what it saw, and fails when a promise is broken.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use serde_json::Value;
use support::{Ended, Running, ended, leasehold, server, sqlite, until};

fn load(url: &str, options: &[&str]) -> std::process::Command {
    leasehold(&[&["bench", "--url", url, "--output", "json"], options].concat())
}

fn figures(load: &Ended) -> Value {
    serde_json::from_str(&load.out).unwrap_or_else(|_| panic!("{load:?}"))
}

fn count(figures: &Value, of: &str) -> u64 {
    figures[of].as_u64().unwrap_or_else(|| panic!("no {of}: {figures}"))
}

/// Six clients for two locks; each holds for half a ttl.
const CROWD: [&str; 10] =
    ["--clients", "6", "--locks", "2", "--duration", "4s", "--ttl", "600ms", "--hold", "300ms"];

#[test]
fn holding_longer_than_a_third_of_the_ttl_renews() {
    let store = server();
    let outcome =
        ended(load(&store.url, &[&CROWD[..], &["--failure-rate", "0", "--long-rate", "0"]].concat()));
    let figures = figures(&outcome);
    assert_eq!((outcome.code(), count(&figures, "violations")), (0, 0), "{outcome:?}");
    assert!(count(&figures, "renewals") > 0 && count(&figures, "acquisitions") > 0, "{figures}");
    // A client that came while another held the lock had to wait for some of those 300 ms.
    let wait = |part: &str| figures[part].as_f64().unwrap_or_else(|| panic!("no {part}: {figures}"));
    assert!(count(&figures, "waits") > 0 && count(&figures, "waits") <= count(&figures, "acquisitions"));
    assert!(wait("wait_ms_p50") > 0.0 && wait("wait_ms_p50") <= wait("wait_ms_p99"), "{figures}");
}

#[test]
fn a_short_hold_does_not_renew_and_free_names_have_no_waiters() {
    let options = ["--clients", "1", "--duration", "1s", "--ttl", "30s", "--failure-rate", "0"];
    let outcome = ended(load("memory:", &[&options[..], &["--long-rate", "0"]].concat()));
    let figures = figures(&outcome);
    assert!(count(&figures, "acquisitions") > 0, "{figures}");
    for none in ["renewals", "waits", "leases_lost", "violations"] {
        assert_eq!(count(&figures, none), 0, "{none}: {figures}");
    }
    // Some of them hold for longer than a ttl all the same.
    let long = ["--clients", "2", "--duration", "2s", "--ttl", "900ms", "--long-rate", "1"];
    let outcome = ended(load("memory:", &[&long[..], &["--failure-rate", "0"]].concat()));
    assert!(outcome.code() == 0 && count(&self::figures(&outcome), "renewals") > 0, "{outcome:?}");
}

#[test]
fn the_table_has_the_figures_of_waiters() {
    let options =
        ["--duration", "1s", "--clients", "8", "--locks", "1", "--failure-rate", "0", "--long-rate", "0"];
    let outcome = ended(leasehold(&[&["bench"], &options[..]].concat()));
    let row = |name: &str| outcome.out.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    for name in ["acquire p50 / p99", "wait p50 / p99", "hand-over p50 / p99"] {
        assert!(row(name).ends_with(" ms") && !row(name).ends_with(" 0 / 0 ms"), "{name}: {}", outcome.out);
    }
}

/// Runs this SQL on the database, at any moment of the load, until the load has ended.
fn meddled_with(store: &support::Store, mut load: Running, sql: &str) -> Ended {
    let path = store.url.strip_prefix("sqlite:").unwrap();
    support::appears(std::path::Path::new(path));
    let db = rusqlite::Connection::open(path).unwrap();
    db.busy_timeout(support::PATIENCE).unwrap();
    until("the load has ended", || {
        // A client that caches a name reads it again when its change count has moved.
        let meddle = format!("BEGIN IMMEDIATE; {sql}; UPDATE names SET changes = changes + 1; COMMIT");
        // Before the table exists there is nothing to do.
        if db.execute_batch(&meddle).is_err() {
            let _ = db.execute_batch("ROLLBACK");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        load.has_ended()
    });
    load.ended()
}

#[test]
fn a_lease_that_is_gone_before_its_time_makes_it_fail() {
    let store = sqlite();
    let options = ["--clients", "1", "--locks", "1", "--ttl", "9s", "--hold", "4s", "--jitter", "0"];
    let load = load(&store.url, &[&options[..], &["--duration", "1s", "--failure-rate", "0"]].concat());
    let outcome = meddled_with(&store, Running::start(load), "DELETE FROM leases");
    let figures = figures(&outcome);
    assert!(count(&figures, "leases_lost_early") > 0, "{figures}");
    assert!(count(&figures, "violations") >= count(&figures, "leases_lost_early"), "{figures}");
    assert_eq!(outcome.code(), 70, "{outcome:?}");
}

#[test]
fn a_release_that_ends_a_lease_after_its_time_makes_it_fail() {
    let store = sqlite();
    let options = ["--clients", "1", "--locks", "1", "--ttl", "2s", "--duration", "4s"];
    let load = load(&store.url, &[&options[..], &["--failure-rate", "1"]].concat());
    let longer = "UPDATE leases SET expires_us = expires_us + 60000000";
    let outcome = meddled_with(&store, Running::start(load), longer);
    let figures = figures(&outcome);
    assert!(count(&figures, "stalls") > 0 && count(&figures, "stale_releases_done") > 0, "{figures}");
    assert_eq!(outcome.code(), 70, "{outcome:?}");
}

#[test]
fn bench_names_its_store_before_and_after_the_load() {
    let redis = testkit::redis::Server::with(&["--requirepass", "hush"]);
    let store = support::Store::at(redis.url());
    let shown = store.shown();
    let file = store.path("url");
    std::fs::write(&file, &store.url).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let bench = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = leasehold(
            &[&["bench", "--clients", "1", "--failure-rate", "0", "--long-rate", "0"], arguments].concat(),
        );
        command.envs(environment.iter().copied());
        command
    };
    for (arguments, (variable, value), why) in [
        (&[][..], ("LEASEHOLD_URL", store.url.as_str()), "LEASEHOLD_URL names it"),
        (&[], ("LEASEHOLD_URL_FILE", file), "LEASEHOLD_URL_FILE names it"),
        (&["--url-file", file], ("LEASEHOLD_URL", "memory:"), ""),
    ] {
        let environment = &[(variable, value)];
        let long = bench(&[arguments, &["--duration", "600s"]].concat(), environment);
        let mut running = Running::start(long);
        until("it says what it loads", || {
            running.said().contains(&format!("leasehold: bench loads {shown}"))
        });
        assert!(!running.has_ended() && running.said().contains(why), "{}", running.said());
        drop(running);
        let short = [arguments, &["--duration", "200ms", "--output", "json"]].concat();
        let outcome = ended(bench(&short, environment));
        assert_eq!((outcome.code(), figures(&outcome)["store"].as_str()), (0, Some(&*shown)), "{outcome:?}");
        assert!(!format!("{outcome:?}").contains("hush"), "{outcome:?}");
    }
    let bare = ended(bench(&["--duration", "200ms"], &[]));
    assert!(bare.code() == 0 && bare.err.contains("leasehold: bench loads memory:"), "{bare:?}");
    assert!(
        bare.out.lines().any(|line| line.starts_with("store ") && line.ends_with(" memory:")),
        "{bare:?}"
    );
    // The user meant to name a store.
    for variable in ["LEASEHOLD_URL", "LEASEHOLD_URL_FILE"] {
        ended(bench(&[], &[(variable, "")])).says(64, variable);
    }
}

#[test]
fn a_second_load_leaves_no_more_names_than_the_first() {
    let store = sqlite();
    let path = store.url.strip_prefix("sqlite:").unwrap();
    let names = || -> u32 {
        let db = rusqlite::Connection::open(path).unwrap();
        db.busy_timeout(support::PATIENCE).unwrap();
        db.query_row("SELECT count(*) FROM names", [], |row| row.get(0)).unwrap_or_default()
    };
    // Three names, and one that keeps runs apart. A short run may not use all of them.
    let options = ["--clients", "4", "--locks", "3", "--failure-rate", "0", "--long-rate", "0"];
    let five_runs = || {
        for _ in 0..5 {
            let outcome = ended(load(&store.url, &[&options[..], &["--duration", "200ms"]].concat()));
            assert_eq!(outcome.code(), 0, "{outcome:?}");
        }
    };
    five_runs();
    assert!((2..=4).contains(&names()), "{}", names());
    // A run beside another uses other names, and leaves them to the next such run.
    let mut long = Running::start(load(&store.url, &[&options[..], &["--duration", "600s"]].concat()));
    let locks = leasehold::blocking::Locks::connect(&store.url).unwrap();
    until("the long one holds something", || !locks.list("bench/0/", 10, None).unwrap().items.is_empty());
    five_runs();
    assert!(!long.has_ended() && (4..=8).contains(&names()), "{}", names());
}
