//! The server's work for a verb: one statement, which finds rows by the name, whatever the statistics said when its
//! plan was made.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Mode, Query, Release, Renewal};

use leasehold::backends::postgres::Postgres as Store;
use testkit::postgres::Postgres;

use crate::support::{LONG, claim, granted, name, place, told, until};

const SHORT: Duration = Duration::from_millis(200);

/// Rows and index entries read in the tables so far.
const READ: &str =
    "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname || '.' = 'leasehold.')
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname || '.' = 'leasehold.')";

const BY_NAME: &str = "SELECT sum(idx_scan) FROM pg_stat_user_indexes
    WHERE schemaname || '.' = 'leasehold.' AND indexrelname = 'names_pkey'";

#[tokio::test(flavor = "multi_thread")]
async fn no_verb_scans_the_rows_of_other_names() {
    let place = place();
    let store = Store::builder(&place.url).unwrap().pool_size(1).open().await.unwrap();
    // Plans are kept that were made while the tables were empty.
    every_verb(&store, "before").await;
    let number = |sql: &str| place.sql(sql).parse::<u64>().unwrap();
    let later = "now() + interval '1 hour'";
    place.sql(&format!(
        "INSERT INTO leasehold.names (name, mode, holders, waiters, next_expiry, next_lapse, next_forget, id)
            SELECT '/other ' || n, 'shared', 1, 1, {later}, {later}, {later}, lpad(n::text, 22, '0')
            FROM generate_series(1, 3000) AS n;
         INSERT INTO leasehold.shares
            SELECT '/other ' || n, lpad(n::text, 22, '1'), 'shared', NULL, 1, 1, 'o', NULL, 1, now(), {later}, 0, 0,
                false, false
            FROM generate_series(1, 3000) AS n;
         INSERT INTO leasehold.tickets (name, arrival, id, mode, owner, ttl, joined, lapses, nonce)
            SELECT '/other ' || n, n, lpad(n::text, 22, '2'), 'exclusive', 'o', 1, now(), {later}, 0
            FROM generate_series(1, 3000) AS n;
         INSERT INTO leasehold.spent SELECT '/other ' || n, lpad(n::text, 22, '3'), {later}, 'not_found'
            FROM generate_series(1, 3000) AS n"
    ));
    let (read, by_name) = (number(READ), number(BY_NAME));
    for round in 0..3 {
        every_verb(&store, &format!("y{round}")).await;
    }
    drop(store);
    // Sessions report their scans when they end.
    place.is_left_alone().await;
    until("it is counted", async || number(BY_NAME) >= by_name + 30).await;
    let read = number(READ) - read;
    assert!(read < 3000, "{read} rows of other names were read");
}

/// A grant, contention, a queue, renewals, expiry, a repeat, a revocation, looks, of a lock of either kind.
async fn every_verb(store: &Store, on: &str) {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let on = format!("{on} {mode:?}");
        let claim = |ttl| Claim::new(name(&on), mode, ttl, "o");
        let held = claim(SHORT);
        let grant = granted(store, &held).await;
        let mut waits = Claim::new(name(&on), Mode::Exclusive, SHORT, "o").queued(Duration::from_millis(50));
        waits.repeat = true;
        for other in [&waits, &Claim::new(name(&on), Mode::Exclusive, SHORT, "o")] {
            store.try_acquire(other).await.unwrap();
        }
        store.renew(&[Renewal::new(name(&on), held.id, SHORT)]).await.remove(0).unwrap();
        for query in [
            Query::Name(name(&on)),
            Query::LeaseId(held.id),
            Query::Prefix { stored: format!("/{on}"), limit: 10, cursor: None },
        ] {
            store.inspect(&query).await.unwrap();
        }
        until("it has expired", async || match store.try_acquire(&claim(LONG)).await.unwrap() {
            Attempt::Granted(next) => next.fence > grant.fence,
            _ => false,
        })
        .await;
        store.revoke(&name(&on), true, None).await.unwrap();
        let last = claim(LONG);
        granted(store, &last).await;
        store.release(&Release::new(name(&on), last.id)).await.unwrap();
        // The most frequent case: a name without refused ids, and a release with its fence.
        for _ in 0..2 {
            let usual = Claim::new(name(&format!("{on} usual")), mode, LONG, "o");
            let fence = granted(store, &usual).await.fence;
            store.release(&told(&usual, fence)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_is_one_statement() {
    let server = Postgres::builder().setting("log_statement", "all").start();
    let store = Store::builder(&server.url()).unwrap().pool_size(1).open().await.unwrap();
    let told = || {
        let is_statement =
            |line: &&str| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ");
        server.log().lines().filter(is_statement).count()
    };
    // The first round prepares.
    for round in 0..2 {
        let began = told();
        let (held, other) = (claim("x", LONG), claim("x", LONG));
        granted(&store, &held).await;
        assert!(matches!(store.try_acquire(&other).await.unwrap(), Attempt::Busy(_)));
        store.renew(&[Renewal::new(name("x"), held.id, LONG)]).await.remove(0).unwrap();
        store.inspect(&Query::Name(name("x"))).await.unwrap();
        store.release(&Release::new(name("x"), other.id)).await.unwrap();
        store.release(&Release::new(name("x"), held.id)).await.unwrap();
        store.revoke(&name("x"), false, None).await.unwrap();
        if round > 0 {
            assert_eq!(told() - began, 7, "{}", server.log());
        }
    }
}
