//! Connecting: TLS, which logins are accepted, and what the errors say.

use leasehold::{ErrorKind, Locks};
use testkit::postgres::Postgres;

use crate::support::{advisory, refused, until, url};

#[tokio::test(flavor = "multi_thread")]
async fn each_sslmode_checks_what_it_says() {
    let server = Postgres::builder().tls().access("hostnossl all all 127.0.0.1/32 reject").start();
    let stranger_to_it = Postgres::builder().tls().start();
    let base = format!("postgres+advisory://postgres@localhost:{}/postgres", server.port());
    let address = format!("postgres+advisory://postgres@127.0.0.1:{}/postgres", server.port());
    let (right, wrong) = (server.authority(), stranger_to_it.authority());
    let (right, wrong) = (right.display(), wrong.display());
    for url in [
        format!("{base}?sslmode=prefer"),
        format!("{base}?sslmode=require"),
        format!("{address}?sslmode=require"),
        format!("{address}?sslmode=require&sslrootcert={right}"),
        format!("{address}?sslmode=verify-ca&sslrootcert={right}"),
        format!("{base}?sslmode=verify-full&sslrootcert={right}"),
    ] {
        let locks = Locks::connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
        // Also the cancel of a wait goes over TLS.
        let _held = locks.mutex("x").lock().await.unwrap();
        let second = locks.clone();
        let waiter = tokio::spawn(async move { second.mutex("x").lock().await.map(drop) });
        let look = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        let waiters = || {
            std::process::Command::new("psql")
                .args(["-XAtc", look, "-d"])
                .arg(format!("host=localhost port={} user=postgres sslmode=require", server.port()))
                .output()
                .unwrap()
                .stdout
        };
        until("it waits", async || waiters() == b"1\n").await;
        waiter.abort();
        until("nobody waits", async || waiters() == b"0\n").await;
    }
    for url in [
        format!("{base}?sslmode=require&sslrootcert={wrong}"),
        format!("{base}?sslmode=verify-ca&sslrootcert={wrong}"),
        format!("{base}?sslmode=verify-full&sslrootcert={wrong}"),
        format!("{address}?sslmode=verify-full&sslrootcert={right}"),
    ] {
        assert_eq!(refused(&url).await.kind(), ErrorKind::Unavailable, "{url}");
    }
    assert_eq!(refused(&format!("{base}?sslmode=disable")).await.kind(), ErrorKind::AuthFailed);
}

#[tokio::test]
async fn a_refused_login_says_why_and_repeats_no_password() {
    let server = Postgres::builder().access("host all alice 127.0.0.1/32 scram-sha-256").start();
    server.sql(
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE alice LOGIN PASSWORD 'right';
         GRANT CREATE ON DATABASE postgres TO alice",
    );
    let at = |user: &str, database: &str| advisory(&server.url_of(user, database));
    Locks::connect(&at("alice:right", "postgres")).await.unwrap();
    for (url, kind) in [
        (at("alice:hunter2", "postgres"), ErrorKind::AuthFailed),
        (at("alice", "postgres"), ErrorKind::AuthFailed),
        (at("nobody", "postgres"), ErrorKind::AuthFailed),
        (at("postgres:hunter2", "nowhere"), ErrorKind::InvalidArgument),
        ("postgres+advisory://u:hunter2@127.0.0.1:1/db".into(), ErrorKind::Unavailable),
        ("postgres+advisory://u:hunter2@/db?nonsense=1".into(), ErrorKind::InvalidArgument),
        (at("postgres", "postgres") + "?keepalive=0", ErrorKind::InvalidArgument),
        (at("postgres", "postgres") + "?schema=", ErrorKind::InvalidArgument),
        (at("postgres", "postgres") + "?pooler=transaction", ErrorKind::Unsupported),
        (at("postgres", "postgres") + "?pooler=statement", ErrorKind::InvalidArgument),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn too_many_connections_are_a_fault_and_not_contention() {
    let server = Postgres::builder()
        .setting("max_connections", "6")
        .setting("superuser_reserved_connections", "0")
        .setting("max_wal_senders", "0")
        .start();
    let mut all = Vec::new();
    let error = loop {
        match Locks::connect(&url(&server, "")).await {
            Ok(locks) => all.push(locks),
            Err(error) => break error,
        }
        assert!(all.len() < 10);
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn both_names_of_the_scheme_and_the_socket_work() {
    let server = Postgres::start();
    let socket = server.socket().display().to_string().replace('/', "%2F");
    for url in [
        url(&server, "").replacen("postgres+", "postgresql+", 1),
        format!("postgres+advisory://postgres@{socket}:{}/postgres", server.port()),
    ] {
        let locks = Locks::connect(&url).await.unwrap();
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn an_address_alone_and_a_socket_work_with_every_sslmode() {
    let server = Postgres::builder().tls().start();
    let (port, right) = (server.port(), server.authority());
    let socket = server.socket().display().to_string().replace('/', "%2F");
    for tls in [
        "disable".to_owned(),
        "prefer".to_owned(),
        "require".to_owned(),
        format!("verify-ca&sslrootcert={}", right.display()),
    ] {
        for url in [
            format!("postgres+advisory://postgres@/postgres?hostaddr=127.0.0.1&port={port}&sslmode={tls}"),
            format!("postgres+advisory://postgres@{socket}:{port}/postgres?sslmode={tls}"),
        ] {
            let locks = Locks::connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error:?}"));
            locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        }
    }
}
