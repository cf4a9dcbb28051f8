//! Several hosts, or several addresses of one: a silent one does not hold up connections for good. For both stores.

use leasehold::Locks;
use testkit::postgres::Postgres;
use testkit::proxy::Proxy;

use crate::support::{in_time, until};

/// As a URL of each store.
fn both(url: &str) -> [String; 2] {
    [url.to_owned(), url.replacen("postgres:", "postgres+advisory:", 1)]
}

async fn works(locks: &Locks) {
    in_time("it is granted", locks.mutex("x").lock()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_host_is_used_if_the_first_is_silent() {
    let server = Postgres::start();
    // It accepts, and never answers.
    let silent = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
    silent.blackhole();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", silent.address().port(), server.port());
    for url in both(&format!("postgres://postgres@{hosts}/postgres?connect_timeout=2")) {
        let before = silent.counts().accepted;
        let locks = in_time("it is opened", Locks::connect(&url)).await.unwrap();
        works(&locks).await;
        // Waiters and others at the same time need more connections.
        let held = locks.mutex("y").lock().await.unwrap();
        let waiter = locks.clone();
        let waiter = tokio::spawn(async move { waiter.mutex("y").lock().await.unwrap() });
        works(&locks).await;
        held.release().await.unwrap();
        in_time("the waiter has it", waiter).await.unwrap().release().await.unwrap();
        assert_eq!(silent.counts().accepted - before, 1, "the silent host was tried again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_falls_silent_is_left_for_the_next() {
    let server = Postgres::start();
    for url in both("postgres://postgres@127.0.0.1:FIRST,127.0.0.1:SECOND/postgres?connect_timeout=2") {
        let first = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
        let url = url.replace("FIRST", &first.address().port().to_string());
        let locks = Locks::connect(&url.replace("SECOND", &server.port().to_string())).await.unwrap();
        works(&locks).await;
        assert!(first.counts().accepted > 0);
        // Its machine vanishes: connections break, and a new connection gets no answer.
        first.blackhole();
        first.reset();
        until("its connections are gone", async || first.counts().open == 0).await;
        works(&locks).await;
    }
}

/// The limit of one address covers everything: TCP, TLS, login and the first questions.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_host_that_hangs_at_any_step_is_left_in_time() {
    let server = Postgres::start();
    let tls = 80_877_103_u32.to_be_bytes();
    for held_up_at in [&tls[..], b"application_name", b"transaction_read_only"] {
        let first = Proxy::before(([127, 0, 0, 1], server.port()).into()).unwrap();
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", first.address().port(), server.port());
        for url in both(&format!("postgres://postgres@{hosts}/postgres?connect_timeout=1")) {
            let mut held = first.hold_request(held_up_at);
            let locks = in_time("it is opened", Locks::connect(&url)).await.unwrap();
            in_time("the first was tried", held.caught()).await;
            first.disarm();
            works(&locks).await;
        }
    }
    // Nothing stays behind there.
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    until("no connection is left", async || server.sql(connections) == "0").await;
}
