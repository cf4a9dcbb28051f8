//! What is logged when a Redis store is opened. Alone in its binary, because the log belongs to the process.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::io::Write;
use std::sync::{Arc, Mutex};

use leasehold::backends::redis::Redis;
use testkit::redis::{Cluster, Server};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The warnings since the last call.
    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn only_risky_settings_are_warned_of_and_the_risk_is_named() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let warned = async |url: &str, expected: &[&[&str]]| {
        Redis::connect(url).await.unwrap();
        let lines = log.take();
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, words) in lines.iter().zip(expected) {
            assert!(line.contains("WARN leasehold"), "{line}");
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
            assert!(!line.contains("127.0.0.1") && !line.contains("hush-hush"), "{line}");
        }
    };
    const NOTHING: &[&str] = &["keeps nothing on disk", "a restart frees every lock", "set appendonly yes"];

    warned(&Server::durable().url(), &[]).await;
    warned(&Server::start().url(), &[NOTHING]).await;
    let snapshots = Server::with(&["--save", "3600 1"]);
    warned(&snapshots.url(), &[&["snapshots only", "forgets the latest grants", "set appendonly yes"]]).await;

    let evicts = Server::with(&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"]);
    let eviction: &[&str] = &["allkeys-lru", "leases can vanish while they are held", "noeviction"];
    warned(&evicts.url(), &[eviction]).await;
    evicts.cli(&["CONFIG", "SET", "appendonly", "no"]);
    warned(&evicts.url(), &[eviction, NOTHING]).await;

    let server = Server::with(&["--requirepass", "hush-hush"]);
    let allow = ["ACL", "SETUSER", "locks", "on", ">hush-hush", "~leasehold*", "&leasehold*", "+@all"];
    let user = format!("redis://locks:hush-hush@127.0.0.1:{}", server.port());
    server.cli(&[&allow[..], &["-config"]].concat());
    let unchecked: &[&str] = &["no append-only file", "could not be checked", "forgets at least"];
    warned(&user, &[unchecked]).await;
    server.cli(&[&allow[..], &["-info"]].concat());
    let blind: &[&str] = &["may not call INFO", "could not be checked"];
    warned(&user, &[blind]).await;

    // Every node of a cluster is looked at.
    let cluster = Cluster::start();
    warned(&cluster.url(), &[NOTHING; 3]).await;
    cluster.nodes[1].cli(&["CONFIG", "SET", "appendonly", "yes"]);
    warned(&cluster.url(), &[NOTHING; 2]).await;
}
