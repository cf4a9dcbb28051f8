//! A server that cannot be reached: nothing can have happened, and no error says that it may have.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use leasehold::{Error, ErrorKind, Locks};
use testkit::postgres::Postgres;
use testkit::proxy::Proxy;
use testkit::redis::{Server, free_port};
use testkit::until::{in_time, until_async};

/// A URL at this port for each store that connects over a network.
fn urls(port: u16) -> Vec<String> {
    let at = format!("127.0.0.1:{port}");
    vec![
        format!("redis://{at}"),
        format!("redis-sentinel://{at}/main"),
        format!("redis-cluster://{at}"),
        format!("postgres://postgres@{at}/postgres?connect_timeout=2"),
        format!("postgres+advisory://postgres@{at}/postgres?connect_timeout=2"),
        format!("http://{at}"),
    ]
}

/// Kinds and words that leave open whether a call took effect.
fn leaves_open(error: &Error) -> bool {
    error.kind() == ErrorKind::NetworkTimeout || error.message().contains("effect")
}

fn says_unreachable(url: &str, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error:?}");
    assert!(!leaves_open(error) && error.is_retryable(), "{url}: {error:?}");
    assert!(!error.message().contains("127.0.0.1"), "{url}: {error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_is_unavailable_and_surely_without_effect() {
    for url in urls(free_port()) {
        let error = in_time(&url, Locks::connect(&url)).await.unwrap_err();
        says_unreachable(&url, &error);
        assert!(error.message().contains("reach"), "{url}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_accepts_but_never_answers_is_unavailable_too() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = urls(silent.local_addr().unwrap().port()).into_iter().filter(|url| {
        // The first answer is to a request that has no effect.
        !url.starts_with("http:")
    });
    let opened = opened.map(|url| async move {
        let error = Locks::connect(&url).await.unwrap_err();
        says_unreachable(&url, &error);
    });
    in_time("they are given up", futures_util::future::join_all(opened)).await;
}

/// The call that finds its connection closed may have taken effect; those after it were not sent.
#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_connection_say_that_they_were_not_sent() {
    let redis = Server::start();
    let postgres = Postgres::start();
    let port = |url: &str| {
        let place = url.split("://").nth(1).unwrap().split(['/', '?']).next().unwrap();
        place.rsplit(':').next().unwrap().parse::<u16>().unwrap()
    };
    for url in
        [redis.url(), postgres.url(), postgres.url().replacen("postgres://", "postgres+advisory://", 1)]
    {
        let proxy = Proxy::before(([127, 0, 0, 1], port(&url)).into()).unwrap();
        let proxied = url.replacen(&format!(":{}", port(&url)), &format!(":{}", proxy.address().port()), 1);
        let locks = Locks::connect(&proxied).await.unwrap();
        let mutex = locks.mutex("x");
        mutex.lock().await.unwrap().release().await.unwrap();
        proxy.refuse(true);
        proxy.reset();
        let mut calls = 0;
        until_async("a call that says it was not sent", async || {
            let error = mutex.try_lock().await.unwrap_err();
            if !leaves_open(&error) {
                says_unreachable(&url, &error);
            }
            calls += 1;
            // The client may have to find each of a few connections broken.
            assert!(calls < 20, "{url}: {error:?}");
            !leaves_open(&error)
        })
        .await;
        proxy.refuse(false);
        until_async("it comes back", async || mutex.try_lock().await.is_ok()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_end_is_not_read_without_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n");
        while stream.write_all(&[b' '; 64 << 10]).is_ok() {}
    });
    let error = in_time("it is given up", Locks::connect(&url)).await.unwrap_err();
    assert!(error.message().contains("too long"), "{error:?}");
}
