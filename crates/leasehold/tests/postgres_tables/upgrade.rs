//! Functions that an older client has made: a newer client replaces them while others hold, wait and call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leasehold::ErrorKind;
use leasehold::backend::{Attempt, Backend, NewNote, Note, Release, Released, Renewal, Renewed};
use leasehold::backends::postgres::Postgres as Store;
use testkit::postgres::Postgres;
use tokio::task::JoinSet;

use crate::support::{
    LONG, Place, TICKET, claim, granted, in_time, lender, look, name, place, server, until,
};

/// What an older client has made in a schema: every function of it bears a mark.
fn older_functions(schema: &str) -> String {
    let script = Store::script(schema).unwrap();
    assert!(script.contains("(version, revision) VALUES (3, 5)"));
    assert!(script.contains("ELSIF p_patience = 1 THEN"));
    // It knew no notes.
    let columns =
        |line: &&str| !line.trim_start().starts_with("note") && !line.contains("What a holder left there");
    let (script, _) = script.split_once("-- Notes: ").unwrap();
    let script = script.lines().filter(columns).collect::<Vec<_>>().join("\n");
    script
        .replace("    revoked     boolean,\n) WITH", "    revoked     boolean\n) WITH")
        .replace("ELSIF p_patience = 1 THEN", "ELSIF false THEN")
        .replace("(version, revision) VALUES (3, 5)", "(version, revision) VALUES (3, 0)")
        .replace(" AS $$\n", " AS $$ -- older\n")
}

/// How many functions of an older client there are.
fn older_ones(place: &Place) -> String {
    place.sql(&format!(
        "SELECT count(*) FROM pg_proc WHERE pronamespace = '{}'::regnamespace AND prosrc LIKE '%-- older%'",
        place.schema
    ))
}

/// A client that leaves the functions as they are, as an older one does: it calls them on lent connections.
async fn older(schema: &str) -> Store {
    Store::lent(lender("")).schema(schema).open().await.unwrap()
}

fn revision(place: &Place) -> String {
    place.sql("SELECT revision FROM leasehold.about")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_keeps_leases_queues_and_fences() {
    let place = place();
    server().sql(&older_functions(&place.schema));
    let old = older(&place.schema).await;
    let waits = || claim("x", LONG).queued(TICKET);
    let (held, second, third) = (claim("x", LONG), waits(), waits());
    let first = granted(&old, &held).await;
    for waiter in [&second, &third] {
        assert!(matches!(old.try_acquire(waiter).await.unwrap(), Attempt::Busy(_)));
    }
    let ahead = claim("clock was ahead", LONG);
    let before = granted(&old, &ahead).await.fence;
    assert_eq!(old.release(&Release::new(ahead.name.clone(), ahead.id)).await.unwrap(), Released::Done);
    place.sql("UPDATE leasehold.names SET fence = fence + 8000000000000 WHERE name LIKE '%clock%'");
    let seen = look(&old, "x").await;
    assert_eq!((revision(&place).as_str(), older_ones(&place).as_str()), ("0", "16"));

    let new = place.open().await;
    assert_eq!((revision(&place).as_str(), older_ones(&place).as_str()), ("5", "0"));
    let now = look(&new, "x").await;
    assert_eq!((now.version, now.last_fence), (seen.version, seen.last_fence));
    assert_eq!((now.holders[0].id, now.holders[0].grant.fence), (held.id, first.fence));
    let queue: Vec<_> = now.waiters.iter().map(|waiter| waiter.id).collect();
    assert_eq!(queue, [second.id, third.id]);

    // The older client knows no notes. The newer one does, and the older one leaves them as they are.
    let noted = |store: &Store| store.info().notes;
    assert_eq!((noted(&old), noted(&new)), (false, true));
    let mut write = Renewal::new(name("x"), held.id, LONG);
    write.note = Some(NewNote::new("left here", 1).unwrap());
    let refused = old.renew(&[write.clone()]).await.remove(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(matches!(new.renew(&[write]).await[0], Ok(Renewed::Held(_))));
    assert!(matches!(old.renew(&[Renewal::new(name("x"), held.id, LONG)]).await[0], Ok(Renewed::Held(_))));
    assert_eq!(look(&old, "x").await.note, None);
    let left = Note::new("left here", first.fence, 1);
    assert_eq!(look(&new, "x").await.note, Some(left.clone()));

    // Either client may go on with what the other one has.
    assert!(matches!(new.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)));
    assert!(matches!(new.renew(&[Renewal::new(name("x"), held.id, LONG)]).await[0], Ok(Renewed::Held(_))));
    assert_eq!(new.release(&Release::new(name("x"), held.id)).await.unwrap(), Released::Done);
    assert!(matches!(new.try_acquire(&third).await.unwrap(), Attempt::Busy(_)), "it is not its turn");
    let next = granted(&old, &second).await.fence;
    assert!(next > first.fence);
    assert_eq!(new.release(&Release::new(name("x"), second.id)).await.unwrap(), Released::Done);
    assert!(granted(&new, &third).await.fence > next);
    assert_eq!(look(&new, "x").await.note, Some(left));
    let again = granted(&new, &claim("clock was ahead", LONG)).await.fence;
    assert!(again.get() > before.get() + 8_000_000_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_clients_work_while_functions_are_replaced() {
    let place = Arc::new(place());
    server().sql(&older_functions(&place.schema));
    let (inside, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (last, grants) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let work = |store: Store| {
        let (inside, over) = (Arc::clone(&inside), Arc::clone(&over));
        let (last, grants) = (Arc::clone(&last), Arc::clone(&grants));
        async move {
            while !over.load(Ordering::Relaxed) {
                let claim = claim("x", LONG);
                if let Attempt::Granted(grant) = store.try_acquire(&claim).await.unwrap() {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let fence = grant.fence.get();
                    assert!(last.swap(fence, Ordering::SeqCst) < fence, "a fence fell");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let gone = store.release(&Release::new(name("x"), claim.id)).await.unwrap();
                    assert_eq!(gone, Released::Done);
                    grants.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    };
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        tasks.spawn(work(older(&place.schema).await));
    }
    until("the older ones work", async || last.load(Ordering::SeqCst) > 0).await;
    // Several clients at once, one of which does it.
    let mut opening = JoinSet::new();
    for _ in 0..4 {
        let place = Arc::clone(&place);
        opening.spawn(async move { place.open().await });
    }
    for store in opening.join_all().await {
        tasks.spawn(work(store));
    }
    assert_eq!((revision(&place).as_str(), older_ones(&place).as_str()), ("5", "0"));
    let so_far = grants.load(Ordering::SeqCst);
    until("they go on", async || grants.load(Ordering::SeqCst) > so_far + 100).await;
    over.store(true, Ordering::Relaxed);
    in_time("all have ended", tasks.join_all()).await;
    assert_eq!(place.sql("SELECT count(*) FROM leasehold.leases"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_may_not_replace_older_functions_uses_them() {
    let server = Postgres::start();
    server.sql("CREATE ROLE app LOGIN");
    server.sql(&older_functions("granted"));
    server.sql(crate::setup::GRANTS);
    let store =
        Store::connect(&format!("{}?schema=granted", server.url_of("app", "postgres"))).await.unwrap();
    let held = claim("x", LONG);
    granted(&store, &held).await;
    assert_eq!(store.release(&Release::new(name("x"), held.id)).await.unwrap(), Released::Done);
    assert_eq!(
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"),
        "0"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_functions_are_left_alone() {
    let place = place();
    granted(&place.open().await, &claim("x", LONG)).await;
    place.sql("UPDATE leasehold.about SET revision = 99");
    let installed = || {
        place.sql(&format!(
            "SELECT string_agg(p.xmin::text, ' ' ORDER BY p.oid) FROM pg_proc AS p
             JOIN pg_namespace AS s ON s.oid = p.pronamespace WHERE s.nspname = '{}'",
            place.schema
        ))
    };
    let before = installed();
    let store = place.open().await;
    assert!(matches!(store.try_acquire(&claim("x", LONG)).await.unwrap(), Attempt::Busy(_)));
    assert_eq!((revision(&place), installed()), ("99".into(), before));
}
