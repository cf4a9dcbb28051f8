//! Grants and renewals that replicas have to confirm (`wait_replicas`).

use leasehold::backend::{Backend as _, Claim, Mode, Release, Renewal, Renewed};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Locks};
use testkit::redis::{Server, with_replica};
use testkit::until::{in_time, until_async};

use crate::support::{HOUR, LONG, busy, claim, granted, granted_at_last, look, name, shared};

/// The URL of a store whose grants count only when a replica has them within this many milliseconds.
fn within(servers: &[Server], millis: u32) -> String {
    format!("{}?wait_replicas=1&wait_timeout_ms={millis}", servers[0].url())
}

/// The same claim in a new attempt, as from a client that starts over with the same lease id.
fn anew(claim: &Claim) -> Claim {
    let mut again = claim.clone();
    again.nonce ^= 1;
    again
}

/// The same attempt, after an answer that was lost.
fn repeated(claim: &Claim) -> Claim {
    let mut again = claim.clone();
    (again.repeat, again.first) = (true, false);
    again
}

async fn unconfirmed(store: &Redis, claim: &Claim) {
    let error = store.try_acquire(claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("replicas"), "{error}");
}

#[tokio::test]
async fn a_grant_counts_only_when_the_replicas_have_it_if_asked() {
    let servers = with_replica();
    let patient = Redis::connect(&within(&servers, 30_000)).await.unwrap();
    let held = claim("x", HOUR);
    granted(&patient, &held).await;
    assert!(servers[1].cli(&["GET", "leasehold:{/x}"]).contains(held.id.expose()));
    let store = Redis::connect(&within(&servers, 500)).await.unwrap();
    servers[1].freeze();
    unconfirmed(&store, &claim("y", LONG)).await;
    let renewal = Renewal::new(name("x"), held.id, LONG);
    assert!(store.renew(&[renewal]).await.remove(0).is_err(), "an unconfirmed renewal does not count");
    let locks = Locks::new(store.clone()).with_namespace("");
    let error = locks.mutex("z").try_lock().await.unwrap_err();
    assert!(error.message().contains("replicas"), "{error}");
    until_async("the failed lock is given back", async || look(&store, "z").await.holders.is_empty()).await;
    servers[1].go_on();
    granted_at_last(&store, &claim("z", LONG)).await;
}

#[tokio::test]
async fn an_unconfirmed_repeat_ends_no_granted_lease() {
    let servers = with_replica();
    let store = Redis::connect(&within(&servers, 500)).await.unwrap();
    let held = claim("x", HOUR);
    let first = granted_at_last(&store, &held).await;
    servers[1].freeze();
    for again in [anew(&held), repeated(&anew(&held))] {
        unconfirmed(&store, &again).await;
    }
    servers[1].go_on();
    busy(&store, &claim("x", LONG)).await;
    let again = granted_at_last(&store, &repeated(&anew(&held))).await;
    assert_eq!(again.fence, first.fence);
}

#[tokio::test]
async fn an_unconfirmed_grant_keeps_the_front_of_the_queue() {
    let servers = with_replica();
    let store = Redis::connect(&within(&servers, 500)).await.unwrap();
    let (held, front, next) =
        (claim("x", HOUR), claim("x", HOUR).queued(HOUR), claim("x", HOUR).queued(HOUR));
    granted_at_last(&store, &held).await;
    busy(&store, &front).await;
    busy(&store, &next).await;
    servers[1].freeze();
    store.release(&Release::new(name("x"), held.id)).await.unwrap();
    unconfirmed(&store, &front).await;
    servers[1].go_on();
    busy(&store, &next).await;
    granted_at_last(&store, &repeated(&front)).await;
}

/// Since Redis 7.2 a connection that has written nothing waits for nothing.
#[tokio::test]
async fn every_repeat_writes_something_to_wait_for() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let changes = || {
        let info = server.cli(&["INFO", "persistence"]);
        let changes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        changes.unwrap().trim().parse::<u64>().unwrap()
    };
    let permit = Claim::new(name("permit"), Mode::Permit { limit: 2 }, LONG, "test");
    for held in [claim("mutex", LONG), shared("shared"), permit] {
        granted(&store, &held).await;
        granted(&store, &repeated(&held)).await;
        let before = changes();
        granted(&store, &repeated(&held)).await;
        let after = changes();
        assert!(after > before, "{:?}", held.mode);
        let mut late = Renewal::new(held.name.clone(), held.id, LONG);
        late.shorten = Some(7);
        assert!(matches!(store.renew(&[late]).await.remove(0).unwrap(), Renewed::Held(_)));
        assert!(changes() > after, "{:?}", held.mode);
    }
}

/// Waits until a connection is inside `WAIT`.
async fn some_call_waits(server: &Server) {
    until_async("a call waits for the replica", async || {
        server.cli(&["CLIENT", "LIST"]).contains("cmd=wait")
    })
    .await;
}

#[tokio::test]
async fn an_acquire_that_waits_for_replicas_holds_up_no_renewal() {
    let servers = with_replica();
    let store = Redis::connect(&within(&servers, 3_600_000)).await.unwrap();
    let plain = Redis::connect(&servers[0].url()).await.unwrap();
    let held = claim("x", HOUR);
    granted(&store, &held).await;
    servers[1].freeze();
    let acquire = tokio::spawn({
        let store = store.clone();
        async move { granted(&store, &claim("y", HOUR)).await }
    });
    some_call_waits(&servers[0]).await;
    let renew = tokio::spawn(async move { store.renew(&[Renewal::new(held.name, held.id, HOUR)]).await });
    let renewals = async || look(&plain, "x").await.holders[0].grant.renewals;
    until_async("the primary has the renewal", async || renewals().await == 1).await;
    assert!(!acquire.is_finished() && !renew.is_finished(), "the replica has neither");
    servers[1].go_on();
    in_time("the acquire", acquire).await.unwrap();
    in_time("the renewal", renew).await.unwrap().remove(0).unwrap();
}

#[tokio::test]
async fn renewals_wait_for_replicas_together() {
    const MANY: usize = 40;
    let servers = with_replica();
    let store = Redis::connect(&within(&servers, 3_600_000)).await.unwrap();
    let held = claim("x", HOUR);
    granted(&store, &held).await;
    let renewal = Renewal::new(held.name, held.id, HOUR);
    servers[1].freeze();
    servers[0].cli(&["CONFIG", "RESETSTAT"]);
    let renew = || {
        let (store, renewal) = (store.clone(), renewal.clone());
        tokio::spawn(async move { store.renew(&[renewal]).await.remove(0) })
    };
    let mut all = vec![renew()];
    some_call_waits(&servers[0]).await;
    all.extend((1..MANY).map(|_| renew()));
    servers[1].go_on();
    for one in all {
        assert!(matches!(in_time("a renewal", one).await.unwrap().unwrap(), Renewed::Held(_)));
    }
    let stats = servers[0].cli(&["INFO", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    let calls: usize = calls.and_then(|calls| calls.split(',').next()).unwrap().parse().unwrap();
    assert!(calls < MANY / 2, "{calls} times");
}
