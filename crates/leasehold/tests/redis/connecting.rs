//! What a client refuses when it opens a store, and which error says why.

use std::net::Ipv4Addr;

use leasehold::backends::redis::Redis;
use leasehold::{Error, ErrorKind, Locks};
use testkit::proxy::Proxy;
use testkit::redis::{Cluster, Server, with_replica};
use testkit::until::{in_time, until_async};

use crate::support::{LONG, claim, granted, granted_at_last, own_connection};

/// How many connections a server has accepted so far, including the one that asks.
fn taken(server: &Server) -> u64 {
    let stats = server.cli(&["INFO", "stats"]);
    let taken = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    taken.unwrap().trim().parse().unwrap()
}

#[track_caller]
fn is_invalid(error: &Error, words: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert!(words.iter().all(|word| error.message().contains(word)), "{words:?}: {error:?}");
}

#[tokio::test]
async fn a_tls_url_never_connects_without_tls() {
    let (server, tls) = (Server::start(), Server::with_tls());
    let (at, ca) = (format!("127.0.0.1:{}", server.port()), tls.ca().display().to_string());
    let before = taken(&server);
    let urls =
        [format!("redis://{at}"), format!("redis-sentinel://{at}/main"), format!("redis-cluster://{at}")];
    for url in &urls {
        for value in ["yes", "on", "True", "TRUE", "require", "2"] {
            let error = Redis::connect(&format!("{url}?tls={value}")).await.unwrap_err();
            is_invalid(&error, &["`tls`", "tls=1"]);
        }
        for options in
            [format!("cacert={ca}"), format!("cacert={ca}&tls=0"), "cacert=/no/such/file".to_owned()]
        {
            let error = Redis::connect(&format!("{url}?{options}")).await.unwrap_err();
            is_invalid(&error, &["`cacert`", "tls=1"]);
        }
        let error = Redis::connect(&format!("{url}?cert={ca}&key={ca}")).await.unwrap_err();
        is_invalid(&error, &["`cert`", "tls=1"]);
        let pem = std::fs::read(tls.ca()).unwrap();
        let builder = Redis::builder(url).unwrap();
        let error = builder.clone().root_certificate(pem.clone()).connect().await.unwrap_err();
        is_invalid(&error, &["`root_certificate`", "tls=1"]);
        let error = builder.client_certificate(pem.clone(), pem).connect().await.unwrap_err();
        is_invalid(&error, &["`client_certificate`", "tls=1"]);
    }
    let own = own_connection(&server.url()).await;
    let error = Redis::with_connection(&format!("{}?cacert={ca}", urls[0]), own).await.unwrap_err();
    is_invalid(&error, &["`cacert`"]);
    // This test's own connection, and the one that asks.
    assert_eq!(taken(&server), before + 2, "nothing was sent");
    for url in [format!("redis://{at}?tls=0"), format!("redis://{at}?tls=false")] {
        Redis::connect(&url).await.unwrap();
    }
    let at = format!("redis://localhost:{}?cacert={ca}", tls.port());
    for option in ["tls", "tls=1", "tls=true"] {
        Redis::connect(&format!("{at}&{option}")).await.unwrap();
    }
}

#[tokio::test]
async fn a_user_without_a_password_is_refused() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "app", "on", ">hush", "~*", "&*", "+@all"]);
    let at = format!("127.0.0.1:{}", server.port());
    for host in ["app@", "app:@", "default@"].map(|user| format!("{user}{at}")) {
        for url in [
            format!("redis://{host}"),
            format!("redis-sentinel://{host}/main"),
            format!("redis-cluster://{host}"),
        ] {
            is_invalid(&Redis::builder(&url).unwrap_err(), &["user", "password"]);
            let own = own_connection(&server.url()).await;
            is_invalid(&Redis::with_connection(&url, own).await.unwrap_err(), &["user", "password"]);
        }
    }
    let sentinels = format!("redis-sentinel://{at}/main?sentinel_user=app");
    is_invalid(&Redis::connect(&sentinels).await.unwrap_err(), &["`sentinel_user`", "`sentinel_password`"]);
    let store = Redis::connect(&format!("redis://app:hush@{at}")).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    assert!(server.cli(&["CLIENT", "LIST"]).contains("user=app"));
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_as_a_single_server() {
    let cluster = Cluster::start();
    let url = cluster.nodes[0].url();
    is_invalid(&Redis::connect(&url).await.unwrap_err(), &["cluster", "redis-cluster://"]);
    let own = own_connection(&url).await;
    is_invalid(&Redis::with_connection(&url, own).await.unwrap_err(), &["cluster", "redis-cluster://"]);
    let single = Server::start();
    let error = Redis::connect(&format!("redis-cluster://127.0.0.1:{}", single.port())).await.unwrap_err();
    is_invalid(&error, &["not a node of a cluster", "redis://"]);
    // A cluster has no numbered databases.
    is_invalid(&Redis::connect(&format!("{url}1")).await.unwrap_err(), &["cluster", "redis-cluster://"]);
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_an_invalid_argument() {
    let server = Server::start();
    for db in ["99", "-1"] {
        let error = Redis::connect(&format!("{}{db}", server.url())).await.unwrap_err();
        is_invalid(&error, &["database", "`databases`"]);
    }
    let store = Redis::connect(&format!("{}15", server.url())).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    assert_eq!(server.cli(&["-n", "15", "EXISTS", "leasehold:{/x}"]), "1");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    granted_at_last(&store, &claim("y", LONG)).await;
    assert_eq!(server.cli(&["-n", "15", "EXISTS", "leasehold:{/y}"]), "1");
    server.cli(&["ACL", "SETUSER", "app", "on", ">hush", "~*", "&*", "+@all", "-select"]);
    let url = format!("redis://app:hush@127.0.0.1:{}/1", server.port());
    let error = Redis::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error:?}");
    assert!(error.message().contains("permission"), "{error:?}");
}

#[tokio::test]
async fn a_server_without_info_is_used_all_the_same() {
    let server = Server::with(&["--rename-command", "INFO", ""]);
    let store = Redis::connect(&server.url()).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    let report = leasehold::doctor::examine(&server.url()).await;
    let report = format!("{report:?}");
    assert!(report.contains("INFO") && report.contains("whether it is a replica"), "{report}");
    // Only what INFO would report is missing: a replica says so itself.
    let servers = with_replica();
    servers[1].cli(&["ACL", "SETUSER", "app", "on", ">hush", "~*", "&*", "+@all", "-info"]);
    let url = format!("redis://app:hush@127.0.0.1:{}", servers[1].port());
    let error = leasehold::Locks::connect(&url).await.unwrap().mutex("x").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("replica"), "{error:?}");
}

#[tokio::test]
async fn a_server_with_no_connection_left_says_so() {
    for password in [None, Some("hush")] {
        let options = password.map_or(vec![], |password| vec!["--requirepass", password]);
        let server = Server::with(&options);
        let store = Redis::connect(&server.url()).await.unwrap();
        let admin = own_connection(&server.url()).await;
        let limit = async |clients: &str| {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg("maxclients").arg(clients);
            set.query_async::<()>(&mut admin.clone()).await.unwrap();
        };
        // The store's and the test's own; whatever else this test had is gone soon.
        limit("2").await;
        until_async("it is said that the server is full", async || {
            let Err(error) = Redis::connect(&server.url()).await else { return false };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            error.message().contains("no connection left") && error.message().contains("`maxclients`")
        })
        .await;
        granted(&store, &claim("x", LONG)).await;
        limit("100").await;
        Redis::connect(&server.url()).await.unwrap();
    }
}

#[tokio::test]
async fn a_tls_port_spoken_to_without_tls_is_named_as_a_cause() {
    let server = Server::with_tls();
    let plain = format!("redis://localhost:{}", server.port());
    let error = in_time("a refusal", Redis::connect(&plain)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("TLS"), "{error:?}");
}

#[tokio::test]
async fn quorum_notices_one_server_behind_several_urls() {
    let server = Server::with(&["--requirepass", "hush-hush"]);
    let allow = ["ACL", "SETUSER", "locks", "on", ">hush-hush", "~leasehold*", "&leasehold*", "+@all"];
    let user = format!("redis://locks:hush-hush@127.0.0.1:{}", server.port());
    let quorum = format!("quorum:{user}/0,{user}/1,{user}/2");
    server.cli(&[&allow[..], &["-config"]].concat());
    let error = Locks::connect(&quorum).await.unwrap_err();
    assert!(error.message().contains("was listed before"), "{error}");
    // A server that does not identify itself cannot be recognised.
    server.cli(&[&allow[..], &["-info"]].concat());
    Locks::connect(&quorum).await.unwrap();
}

#[tokio::test]
async fn all_steps_of_connecting_share_one_time_limit() {
    let server = Server::start();
    let proxy = Proxy::before((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap();
    // The first request on a connection, and the later ones.
    for (step, db) in [("SETINFO", ""), ("SELECT", "/1"), ("replication", "")] {
        let held = proxy.hold_request(step.as_bytes());
        let limits = "connect_timeout_ms=1000&response_timeout_ms=3600000";
        let url = format!("redis://{}{db}?{limits}", proxy.address());
        let error = tokio::time::timeout(LONG, Redis::connect(&url)).await.expect(step).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.message().contains("did not answer a new connection"), "{error:?}");
        drop(held);
    }
}
