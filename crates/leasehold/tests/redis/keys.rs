//! What is in Redis: keys, slots, numbers, and what is left of an unused name.

use std::time::Duration;

use leasehold::backend::{
    Attempt, Backend, Claim, Mode, NewNote, Note, Query, Release, Released, Renewal, Renewed,
};
use leasehold::backends::redis::Redis;
use leasehold::{ErrorKind, Fence, Gone, LeaseId, Locks, Name};
use testkit::redis::{Cluster, Server};
use testkit::until::until_async;

use crate::support::{HOUR, LONG, TICKET, busy, claim, granted, granted_at_last, look, name, shared};

/// The keys of a server, sorted.
fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server.cli(&["--scan"]).lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn keys_of_an_awkward_name_share_a_slot_and_stay_distinct() {
    let cluster = Cluster::start();
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let awkward =
        ["}", "{", "{}", "{}x", "a}{b", "}{", "{a}", "%7D", "%", "%25", "a{b}c{d}", "é}\n", "*", "[a]"];
    for on in awkward {
        let readers: Vec<Claim> = (0..2).map(|_| shared(on)).collect();
        for reader in &readers {
            granted(&store, reader).await;
        }
        busy(&store, &claim(on, LONG).queued(TICKET)).await;
        let mut refused = Release::new(name(on), LeaseId::random());
        refused.unanswered = Some(LONG);
        store.release(&refused).await.unwrap();
    }
    let mut per_name: std::collections::HashMap<String, Vec<(String, usize)>> = Default::default();
    for (i, node) in cluster.nodes.iter().enumerate() {
        for key in node.cli(&["--scan"]).lines().filter(|key| key.starts_with("leasehold:{")) {
            let Some((base, _)) = key.rsplit_once('}') else { continue };
            let slot = node.cli(&["CLUSTER", "KEYSLOT", key]);
            per_name.entry(base.to_owned()).or_default().push((slot, i));
        }
    }
    // The name with a line break is printed on two lines; it was served all the same.
    assert!(per_name.len() >= awkward.len() - 1, "{per_name:?}");
    for (base, places) in &per_name {
        assert_eq!(places.len(), 7, "{base}: {places:?}");
        assert!(places.iter().all(|place| *place == places[0]), "{base}: {places:?}");
    }
    let all = Query::Prefix { stored: "/".into(), limit: 100, cursor: None };
    let found = store.inspect(&all).await.unwrap().items;
    assert_eq!(found.len(), awkward.len());
    assert!(found.iter().all(|info| info.holders.len() == 2 && info.waiters.len() == 1));
}

#[tokio::test]
async fn a_pattern_in_a_prefix_is_only_characters() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    for on in ["a*b", "a?b", "a[x]b", "axb", "a\\b", "a^b", "a}b", "a%b"] {
        granted(&store, &claim(on, LONG)).await;
    }
    for prefix in ["a*", "a?", "a[x]", "a\\", "a^", "a}", "a%"] {
        let query = Query::Prefix { stored: format!("/{prefix}"), limit: 100, cursor: None };
        let found = store.inspect(&query).await.unwrap().items;
        assert_eq!(found.len(), 1, "{prefix}");
        assert!(found[0].name.as_str().starts_with(prefix));
    }
}

/// The note outlives its lease, and each later use of the name prolongs it with the counter.
#[tokio::test]
async fn a_note_lasts_as_long_as_the_counter_of_its_name() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let (head, rows) = ("leasehold:{/noted}", "leasehold:{/noted}:rows");
    let held = claim("noted", LONG);
    let fence = granted(&store, &held).await.fence;
    let mut release = Release::new(name("noted"), held.id);
    release.note = Some(NewNote::new("done", 1).unwrap());
    store.release(&release).await.unwrap();
    assert_eq!(keys(&server), [head, rows], "nothing else is left");
    let day = Duration::from_secs(24 * 3600);
    let left = |key: &str| Duration::from_millis(server.cli(&["PTTL", key]).parse().unwrap());
    let (before, slack) = (left(head), Duration::from_secs(600));
    assert!(left(rows) <= before && left(rows) + slack > before);
    // A mutex with a longer ttl takes the short way, and prolongs both.
    let next = claim("noted", day);
    granted(&store, &next).await;
    assert!(left(head) > before + slack && left(rows) + slack > left(head));
    store.release(&Release::new(name("noted"), next.id)).await.unwrap();
    assert_eq!(look(&store, "noted").await.note, Some(Note::new("done", fence, 1)));
}

#[tokio::test]
async fn numbers_are_exact_and_only_expiring_counters_stay_at_rest() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let held = claim("numbers", Duration::from_secs(24 * 3600));
    let grant = granted(&store, &held).await;
    assert!(grant.fence > Fence::new(400_000_000_000_000));
    let waiting = claim("numbers", LONG).queued(TICKET);
    busy(&store, &waiting).await;
    let mut refused = Release::new(name("numbers"), LeaseId::random());
    refused.unanswered = Some(Duration::MAX);
    store.release(&refused).await.unwrap();
    // The fence is the first number of the head.
    let first = "return string.format('%.0f', struct.unpack('>d', redis.call('GET', KEYS[1]), 5))";
    assert_eq!(server.cli(&["EVAL", first, "1", "leasehold:{/numbers}"]), grant.fence.get().to_string());
    for set in ["leases", "queue", "places", "spent"] {
        let scores =
            server.cli(&["ZRANGE", &format!("leasehold:{{/numbers}}:{set}"), "0", "-1", "WITHSCORES"]);
        assert!(!scores.contains("e+") && !scores.contains('.'), "{scores}");
    }
    assert_eq!(look(&store, "numbers").await.last_fence, grant.fence);
    for key in keys(&server) {
        assert!(server.cli(&["PTTL", &key]).parse::<i64>().unwrap() > 0, "{key} does not expire");
    }

    store.release(&Release::new(name("numbers"), waiting.id)).await.unwrap();
    store.release(&Release::new(name("numbers"), held.id)).await.unwrap();
    for on in ["a", "b"] {
        let one = claim(on, LONG);
        granted(&store, &one).await;
        let next = shared(on).queued(TICKET);
        busy(&store, &next).await;
        store.release(&Release::new(name(on), one.id)).await.unwrap();
        granted(&store, &next).await;
        store.release(&Release::new(name(on), next.id)).await.unwrap();
    }
    let left = keys(&server);
    // The refused id is remembered for a day, because that was its ttl.
    assert_eq!(
        left,
        [
            "leasehold:{/a}",
            "leasehold:{/b}",
            "leasehold:{/numbers}",
            "leasehold:{/numbers}:rows",
            "leasehold:{/numbers}:spent"
        ]
    );
    let week: i64 = 7 * 24 * 3600 * 1000;
    for on in ["leasehold:{/a}", "leasehold:{/b}"] {
        let ttl: i64 = server.cli(&["PTTL", on]).parse().unwrap();
        assert!((week..week + 3_700_000).contains(&ttl), "{ttl}");
        assert!(server.cli(&["STRLEN", on]).parse::<u32>().unwrap() < 80, "nothing but counters");
    }
    // A claim that was never granted leaves nothing.
    store.release(&Release::new(name("never"), LeaseId::random())).await.unwrap();
    let renewal = Renewal::new(name("never"), LeaseId::random(), LONG);
    assert_eq!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Gone(Gone::NotFound));
    store.revoke(&name("never"), true, None).await.unwrap();
    look(&store, "never").await;
    assert_eq!(server.cli(&["EXISTS", "leasehold:{/never}"]), "0");
}

#[tokio::test]
async fn nine_thousand_expired_entries_do_not_break_the_next_call() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    const CROWD: usize = 9_000;
    let on = name("crowd");
    // Some are repeated: their ids are refused afterwards.
    let reader = |i: usize| {
        let mut reader = Claim::new(on.clone(), Mode::Shared, HOUR, "reader");
        reader.repeat = i.is_multiple_of(4);
        reader
    };
    let readers: Vec<Claim> = (0..CROWD).map(reader).collect();
    for some in readers.chunks(500) {
        let calls = some.iter().map(|reader| store.try_acquire(reader));
        for answer in futures_util::future::join_all(calls).await {
            assert!(matches!(answer.unwrap(), Attempt::Granted(_)));
        }
    }
    let waiting: Vec<Claim> = (0..CROWD).map(|_| claim("crowd", LONG).queued(HOUR)).collect();
    for some in waiting.chunks(500) {
        let calls = some.iter().map(|waiting| store.try_acquire(waiting));
        for answer in futures_util::future::join_all(calls).await {
            assert!(matches!(answer.unwrap(), Attempt::Busy(_)));
        }
    }
    assert_eq!(look(&store, "crowd").await.queue_length, CROWD as u64);
    // They end all at once: the test moves their ends into the past.
    let past = "local k = KEYS[1] for _, z in ipairs({':leases', ':places'}) do \
                local all = redis.call('ZRANGE', k .. z, 0, -1) \
                for _, m in ipairs(all) do redis.call('ZADD', k .. z, 5, m) end end \
                local h = redis.call('GET', k) \
                redis.call('SET', k, string.sub(h, 1, 28) .. struct.pack('>d', 5) .. string.sub(h, 37), 'KEEPTTL')";
    server.cli(&["EVAL", past, "1", "leasehold:{/crowd}"]);
    let next = claim("crowd", LONG);
    granted(&store, &next).await;
    let refused = &readers[0];
    assert!(matches!(store.try_acquire(refused).await.unwrap(), Attempt::Gone(Gone::Superseded)));
    let seen = look(&store, "crowd").await;
    assert_eq!((seen.holders.len(), seen.queue_length), (1, 0));
    assert_eq!(server.cli(&["ZCARD", "leasehold:{/crowd}:spent"]), (CROWD / 4).to_string());
    // And many live ones are revoked in one call.
    let permits: Vec<Claim> =
        (0..CROWD / 2).map(|_| Claim::new(name("many"), Mode::Permit { limit: 20_000 }, LONG, "x")).collect();
    for some in permits.chunks(500) {
        futures_util::future::join_all(some.iter().map(|permit| store.try_acquire(permit))).await;
    }
    assert_eq!(store.revoke(&name("many"), false, None).await.unwrap().leases, CROWD as u64 / 2);
    assert_eq!(store.revoke(&name("many"), true, None).await.unwrap().leases, CROWD as u64 / 2);
    assert_eq!(look(&store, "many").await.holders.len(), 0);
}

#[tokio::test]
async fn the_work_of_a_hand_over_does_not_depend_on_how_many_wait() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    // So that all scripts are known.
    granted(&store, &claim("warm", LONG)).await;
    store.release(&Release::new(name("warm"), LeaseId::random())).await.unwrap();
    let mut costs = Vec::new();
    for (on, crowd) in [("few", 10), ("many", 2000)] {
        let first = claim(on, HOUR);
        granted(&store, &first).await;
        let waiting: Vec<Claim> = (0..crowd).map(|_| claim(on, LONG).queued(HOUR)).collect();
        for one in &waiting {
            busy(&store, one).await;
        }
        // Calls that the scripts make count as commands; those of the connection for wake-ups do not belong to it.
        server.cli(&["CONFIG", "RESETSTAT"]);
        store.release(&Release::new(name(on), first.id)).await.unwrap();
        granted(&store, &waiting[0]).await;
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls: u64 = stats
            .lines()
            .filter(|line| {
                !["config", "info", "ping", "client", "subscribe"].iter().any(|no| line.contains(no))
            })
            .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
            .sum();
        costs.push(calls);
    }
    assert_eq!(costs[0], costs[1]);
    assert!(costs[1] < 30, "{costs:?}");
}

#[tokio::test]
async fn foreign_data_under_our_keys_is_an_error_and_stays() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    server.cli(&["SET", "leasehold:{/string}", "mine"]);
    server.cli(&["HSET", "leasehold:{/hash}", "field", "mine"]);
    server.cli(&["SET", "leasehold:{/long}", &"LH1".repeat(50)]);
    server.cli(&["RPUSH", "leasehold:{/list}:queue", "mine"]);
    server.cli(&["HSET", "leasehold:{/rows}:rows", "field", "mine"]);
    let before = server.cli(&["DEBUG", "DIGEST"]);
    for on in ["string", "hash", "long", "list", "rows"] {
        for attempt in [claim(on, LONG), claim(on, LONG).queued(TICKET)] {
            let error = store.try_acquire(&attempt).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "{on}: {error}");
            assert!(error.message().contains("did not write"), "{error}");
        }
        let renewal = Renewal::new(name(on), LeaseId::random(), LONG);
        assert_eq!(store.renew(&[renewal]).await.remove(0).unwrap_err().kind(), ErrorKind::Internal);
        assert!(store.release(&Release::new(name(on), LeaseId::random())).await.is_err());
        assert!(store.revoke(&name(on), true, None).await.is_err());
    }
    assert_eq!(server.cli(&["DEBUG", "DIGEST"]), before, "nothing was overwritten");
    // A sweep skips them, and then reports it.
    granted_at_last(&store, &claim("ended", Duration::from_millis(1))).await;
    let expired = async || store.sweep().await.is_ok_and(|swept| swept.expired == 1);
    until_async("the other name is swept", expired).await;
    assert_eq!(store.sweep().await.unwrap_err().kind(), ErrorKind::Internal);
    // Listing and sweeping skip what is not a name.
    server.cli(&["DEL", "leasehold:{/string}", "leasehold:{/hash}", "leasehold:{/long}"]);
    server.cli(&["SET", "leasehold:{no-slash}", "mine"]);
    granted(&store, &claim("good", LONG)).await;
    store.sweep().await.unwrap();
    let all = Query::Prefix { stored: String::new(), limit: 10, cursor: None };
    assert_eq!(store.inspect(&all).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_lease_is_found_by_its_id_until_it_ends() {
    let server = Server::start();
    let locks = Locks::connect(&server.url()).await.unwrap();
    let lease = locks.leasing("find}me").try_acquire().await.unwrap().unwrap();
    assert!(matches!(locks.renew_by_id(lease.id, LONG).await.unwrap(), Renewed::Held(_)));
    assert_eq!(locks.release_by_id(lease.id).await.unwrap(), Released::Done);
    assert_eq!(locks.release_by_id(lease.id).await.unwrap(), Released::Gone(Gone::NotFound));
    assert_eq!(server.cli(&["--scan", "--pattern", "leasehold-id:*"]), "");
    let store = Redis::connect(&server.url()).await.unwrap();
    let short = Claim::new(Name::new("short").unwrap(), Mode::Exclusive, Duration::from_millis(50), "x");
    granted(&store, &short).await;
    testkit::until::until("the way to it expires by itself", || {
        server.cli(&["--scan", "--pattern", "leasehold-id:*"]).is_empty()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_names_are_listed_once_each_and_in_order() {
    let server = Server::start();
    let store = Redis::connect(&server.url()).await.unwrap();
    let all: Vec<String> = (0..100_000).map(|i| format!("many/{i:06}")).collect();
    // Copies of one lease: to be granted so many would take longer.
    granted(&store, &claim("seed", Duration::from_secs(3600))).await;
    let copy = "for i = 0, 99999 do \
                redis.call('COPY', KEYS[1], string.format('leasehold:{/many/%06d}', i)) end";
    server.cli(&["EVAL", copy, "1", "leasehold:{/seed}"]);
    // A page may be short, even empty, on a busy machine; the list then goes on with the next one.
    let list = async |prefix: &str, limit, mut cursor: Option<String>| {
        let mut seen = Vec::new();
        loop {
            let query = Query::Prefix { stored: format!("/{prefix}"), limit, cursor };
            let page = store.inspect(&query).await.unwrap();
            assert!(page.items.len() <= limit);
            seen.extend(page.items.into_iter().map(|info| info.name.as_str().to_owned()));
            cursor = page.next;
            if cursor.is_none() {
                return seen;
            }
        }
    };
    let seen = list("many/", 30_000, None).await;
    assert_eq!(seen.len(), all.len());
    assert!(seen == all);
    assert!(list("many/0420", 1000, None).await == all[42_000..42_100]);
    let few = list("", 3, Some("/many/099997".into())).await;
    assert_eq!(few, ["many/099998", "many/099999", "seed"]);
}
