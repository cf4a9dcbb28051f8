//! What the server has to do for a verb: one statement, which finds rows by the name, whatever the statistics said
//! when its plan was made.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Query, Release, Renewal};

use leasehold::backends::postgres::Postgres as Store;
use testkit::postgres::Postgres;

use crate::support::{LONG, claim, granted, name, place, until};

const SHORT: Duration = Duration::from_millis(200);

/// Scans of indices on times.
const BY_TIME: &str = "SELECT sum(idx_scan) FROM pg_stat_user_indexes
    WHERE schemaname || '.' = 'leasehold.' AND indexrelname IN ('leases_by_expiry', 'tickets_by_lapse', 'spent_by_until')";

const BY_NAME: &str = "SELECT sum(idx_scan) FROM pg_stat_user_indexes
    WHERE schemaname || '.' = 'leasehold.' AND indexrelname = 'names_pkey'";

#[tokio::test(flavor = "multi_thread")]
async fn no_verb_looks_through_the_leases_of_other_names() {
    let place = place();
    drop(place.open().await);
    // A planner that has seen empty tables takes an index on times for as good as the key. Without the key it takes
    // it whenever it can.
    place.sql(
        "ALTER TABLE leasehold.leases DROP CONSTRAINT leases_pkey; DROP INDEX leasehold.leases_by_id;
         ALTER TABLE leasehold.tickets DROP CONSTRAINT tickets_pkey; DROP INDEX leasehold.tickets_by_id",
    );
    let number = |sql: &str| place.sql(sql).parse::<u64>().unwrap();
    let (by_time, by_name) = (number(BY_TIME), number(BY_NAME));

    // A grant, contention, a queue, renewals, expiry, a repeat, a revocation, looks.
    let store = place.open().await;
    for round in 0..3 {
        let on = format!("y{round}");
        let held = claim(&on, SHORT);
        let grant = granted(&store, &held).await;
        let mut waits = claim(&on, SHORT).queued(Duration::from_millis(50));
        waits.repeat = true;
        for other in [&waits, &claim(&on, SHORT)] {
            store.try_acquire(other).await.unwrap();
        }
        store.renew(&[Renewal::new(name(&on), held.id, SHORT)]).await.remove(0).unwrap();
        for query in [
            Query::Name(name(&on)),
            Query::LeaseId(held.id),
            Query::Prefix { stored: String::new(), limit: 10, cursor: None },
        ] {
            store.inspect(&query).await.unwrap();
        }
        until("it has expired", async || {
            let next = claim(&on, LONG);
            match store.try_acquire(&next).await.unwrap() {
                Attempt::Granted(next) => next.fence > grant.fence,
                _ => false,
            }
        })
        .await;
        store.revoke(&name(&on), true).await.unwrap();
        let last = claim(&on, LONG);
        granted(&store, &last).await;
        store.release(&Release::new(name(&on), last.id)).await.unwrap();
    }
    drop(store);
    // Sessions tell of their scans when they end.
    until("it is counted", async || number(BY_NAME) >= by_name + 30).await;
    assert_eq!(number(BY_TIME), by_time);
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
        store.revoke(&name("x"), false).await.unwrap();
        if round > 0 {
            assert_eq!(told() - began, 7, "{}", server.log());
        }
    }
}
