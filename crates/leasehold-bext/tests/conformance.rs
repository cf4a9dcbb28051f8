//! The suite on the plugin of this crate, on real stores, each broken in a way of its own at the end.

#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::sync::Arc;
use std::time::{Duration, Instant};

use bext_plugin_api::locking::LockingPlugin;
use leasehold::Locks;
use leasehold::backends::memory::Memory;
use leasehold_bext::conformance::{Harness, Outcome, checks, run_all};
use leasehold_bext::{LeaseholdPlugin, PluginOptions, fence_of};
use leasehold_server::{App, Settings, serve};
use testkit::until::in_time_blocking;

/// For plugins that keep their locks after the release.
const MIN_HOLD: Duration = Duration::from_millis(500);

fn plugin(url: &str, options: PluginOptions) -> Result<Arc<dyn LockingPlugin>, String> {
    let plugin = LeaseholdPlugin::connect(url, options).map_err(|error| error.to_string())?;
    Ok(Arc::new(plugin))
}

fn harness(url: &str, options: PluginOptions) -> Harness {
    let url = url.to_owned();
    Harness::new(move || plugin(&url, options.clone())).fences(|handle| fence_of(handle).map(u64::from))
}

/// Runs the suite three times: with each option, and at the end plainly, while the store breaks. Shows the name that
/// the plugin has on this store.
fn behaves(name: &str, url: String, break_store: impl FnOnce() + Send + 'static) {
    assert_eq!(plugin(&url, PluginOptions::default()).unwrap().name(), name);
    holds_after_the_release(&url);
    // A lock that is kept does not expire, unless it reaches the limit: as long as the longest ttl of the suite.
    let report = run_all(harness(&url, PluginOptions::default().min_hold(MIN_HOLD)));
    println!("{report}");
    report.assert_passed();
    let report = run_all(harness(&url, PluginOptions::default()).breaks(break_store));
    println!("{report}");
    report.assert_passed();
    assert!(report.outcomes().all(|(_, outcome)| *outcome == Outcome::Passed), "every check applies");
}

/// A lock with `min_hold`, also one that was renewed or kept alive, is taken for at least that long.
fn holds_after_the_release(url: &str) {
    const LONGER: Duration = Duration::from_secs(2);
    let kept = PluginOptions::default().keep_alive(Duration::from_secs(600));
    for options in [PluginOptions::default(), kept] {
        let one = plugin(url, options.clone().min_hold(LONGER)).unwrap();
        let other = plugin(url, options).unwrap();
        let handle = one.try_lock("held after its release", 120_000).unwrap().unwrap();
        one.renew(&handle).unwrap();
        let released = Instant::now();
        one.release(handle.clone()).unwrap();
        assert!(one.renew(&handle).is_err(), "it was released");
        other.release(handle).unwrap();
        let next = in_time_blocking("the key becomes free, long before its ttl", move || {
            loop {
                match other.try_lock("held after its release", 120_000).unwrap() {
                    Some(next) => return (Instant::now(), other.release(next)),
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        next.1.unwrap();
        assert!(next.0 - released >= LONGER * 98 / 100, "free after {:?}", next.0 - released);
        assert!(next.0 - released < Duration::from_secs(100), "free after {:?}", next.0 - released);
    }
}

#[test]
fn the_plugin_on_memory_behaves() {
    for options in [PluginOptions::default(), PluginOptions::default().min_hold(MIN_HOLD)] {
        let store = Memory::new();
        let connect = move || {
            let plugin = LeaseholdPlugin::new(Locks::new(store.clone()), options.clone());
            plugin.map(|plugin| Arc::new(plugin) as Arc<dyn LockingPlugin>).map_err(|error| error.to_string())
        };
        let report = run_all(Harness::new(connect).fences(|handle| fence_of(handle).map(u64::from)));
        println!("{report}");
        report.assert_passed();
        let left_out = |outcome: &Outcome| matches!(outcome, Outcome::LeftOut(_));
        let left_out: Vec<_> = report.outcomes().filter(|(_, outcome)| left_out(outcome)).collect();
        assert_eq!(left_out.len(), 1, "only the check that breaks a store: {left_out:?}");
        assert_eq!(left_out[0].0.name(), "a_broken_store_is_an_error_in_time");
    }
}

/// Another program has the file, in one endless transaction.
#[test]
fn the_plugin_on_sqlite_behaves() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.db");
    let other = rusqlite::Connection::open(&file).unwrap();
    behaves("sqlite", format!("sqlite:{}", file.display()), move || {
        other.busy_timeout(Duration::from_secs(60)).unwrap();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        // Kept open until the process ends.
        Box::leak(Box::new(other));
    });
}

/// The server answers no more, and its connections stay.
#[test]
fn the_plugin_on_redis_behaves() {
    let server = Arc::new(testkit::redis::Server::start());
    let frozen = Arc::clone(&server);
    behaves("redis", server.url(), move || frozen.freeze());
}

/// The server is gone.
#[test]
fn the_plugin_on_postgres_behaves() {
    let mut server = testkit::postgres::Postgres::start();
    let url = server.url();
    behaves("pg", url, move || server.stop(testkit::postgres::Stop::Immediate));
}

/// The lock server is gone, in front of a store that works.
#[test]
fn the_plugin_on_a_server_behaves() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("locks.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = runtime.block_on(async {
        let app = App::new(Locks::connect(&store).await.unwrap(), Settings::default()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(app, listener, None, std::future::pending()));
        url
    });
    behaves("http", url, move || runtime.shutdown_background());
}

/// Two of three servers are gone: no majority is left.
#[test]
fn the_plugin_on_a_quorum_behaves() {
    let mut servers = testkit::redis::servers(3);
    let urls: Vec<_> = servers.iter().map(testkit::redis::Server::url).collect();
    behaves("quorum", format!("quorum:{}", urls.join(",")), move || {
        servers[..2].iter_mut().for_each(testkit::redis::Server::kill);
        // The third one lives on until the process ends.
        Box::leak(Box::new(servers));
    });
}

#[test]
fn every_check_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = checks().iter().map(|check| check.name()).collect();
    assert_eq!(names.len(), checks().len());
}
