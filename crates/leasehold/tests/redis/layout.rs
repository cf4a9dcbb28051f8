//! Two builds on one Redis: what a newer leasehold has written is refused, when connecting and name by name.

use leasehold::ErrorKind;
use leasehold::backend::{Backend as _, Query, Release, Renewal};
use leasehold::backends::redis::Redis;
use testkit::redis::{Cluster, Server};

use crate::support::{LONG, claim, granted, name};

/// Where the layout of the whole store is said.
const LAYOUT: &str = "leasehold:layout";

#[tokio::test]
async fn a_store_of_a_newer_layout_is_refused() {
    let server = Server::start();
    // A known number, or none, means the current layout.
    drop(Redis::connect(&server.url()).await.unwrap());
    assert_eq!(server.cli(&["DBSIZE"]), "0", "connecting writes nothing");
    server.cli(&["SET", LAYOUT, "1"]);
    drop(Redis::connect(&server.url()).await.unwrap());
    server.cli(&["SET", LAYOUT, "2"]);
    let error = Redis::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("layout 2") && error.message().contains("update"), "{error}");
    for strange in ["", "two", "-1"] {
        server.cli(&["SET", LAYOUT, strange]);
        assert_eq!(Redis::connect(&server.url()).await.unwrap_err().kind(), ErrorKind::Internal, "{strange}");
    }
    server.cli(&["DEL", LAYOUT]);
    server.cli(&["HSET", LAYOUT, "a", "b"]);
    assert_eq!(Redis::connect(&server.url()).await.unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(server.cli(&["HGET", LAYOUT, "a"]), "b");
}

#[tokio::test]
async fn a_cluster_of_a_newer_layout_is_refused() {
    let cluster = Cluster::start();
    drop(Redis::connect(&cluster.url()).await.unwrap());
    // On the one node that has it.
    let port = cluster.nodes[0].port().to_string();
    let set = std::process::Command::new("redis-cli").args(["-c", "-p", &port, "SET", LAYOUT, "2"]).output();
    assert_eq!(set.unwrap().stdout, b"OK\n");
    let error = Redis::connect(&cluster.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}

#[tokio::test]
async fn a_user_without_the_right_to_read_the_layout_still_connects() {
    let server = Server::start();
    server.cli(&["SET", LAYOUT, "2"]);
    server.cli(&["ACL", "SETUSER", "few", "on", ">x", "~leasehold:{*", "~leasehold-id:*", "&*", "+@all"]);
    let url = format!("redis://few:x@127.0.0.1:{}/", server.port());
    let store = Redis::connect(&url).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
}

#[tokio::test]
async fn a_name_of_a_newer_layout_is_refused_and_left_as_it_is() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    let head = "LH2:something that only a newer leasehold understands, of any length";
    server.cli(&["SET", "leasehold:{/x}", head]);
    let refused = |error: leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.message().contains("newer") && error.message().contains("update"), "{error}");
        assert!(!error.is_retryable());
    };
    refused(store.try_acquire(&claim("x", LONG)).await.unwrap_err());
    refused(store.renew(&[Renewal::new(held.name.clone(), held.id, LONG)]).await.remove(0).unwrap_err());
    refused(store.release(&Release::new(held.name.clone(), held.id)).await.unwrap_err());
    refused(store.revoke(&held.name, true, None).await.unwrap_err());
    refused(store.inspect(&Query::Name(name("x"))).await.unwrap_err());
    // It keeps no sweep from the other names, and the next sweep reports it.
    granted(&store, &claim("y", LONG)).await;
    assert_eq!(store.sweep().await.unwrap().held, 1);
    refused(store.sweep().await.unwrap_err());
    assert_eq!(server.cli(&["GET", "leasehold:{/x}"]), head);
}
