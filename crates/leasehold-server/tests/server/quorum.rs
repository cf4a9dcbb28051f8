//! A quorum whose nodes are leasehold servers, alone and mixed with other stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::backend::{
    Attempt, Backend, Claim, Grant, HolderInfo, Info, Query, Release, Renewal, Renewed,
};
use leasehold::backends::http::Http;
use leasehold::backends::memory::Memory;
use leasehold::backends::redis::Redis;
use leasehold::backends::sqlite::Sqlite;
use leasehold::clock::SystemClock;
use leasehold::layers::quorum::{Node, Quorum};
use leasehold::{ErrorKind, Fence, Locks, Mode, Name, PollPolicy};
use leasehold_server::Settings;
use testkit::faulty::{Act, Faulty, Verb};
use testkit::until::{in_time, until_async};

use crate::support::{Server, answered, locks};

/// So long that no leftover vote expires within a test.
const TTL: Duration = Duration::from_secs(300);

/// Settings under which a name is the same at the server as in the store behind it.
fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.namespace = String::new();
    settings
}

/// A server, and the store behind it.
struct Remote {
    memory: Memory,
    /// The store as the server sees it.
    store: Faulty,
    server: Server,
}

impl Remote {
    async fn start() -> Self {
        let memory = Memory::new();
        let store = Faulty::new(memory.clone(), Arc::new(SystemClock));
        let server = Server::on(locks(&store), settings()).await;
        Remote { memory, store, server }
    }

    async fn three() -> [Self; 3] {
        [Remote::start().await, Remote::start().await, Remote::start().await]
    }

    /// Connects a client to it.
    async fn node(&self) -> Arc<dyn Backend> {
        Arc::new(Http::connect(&format!("http://{}", self.server.address)).await.unwrap())
    }

    async fn holders(&self, name: &Name) -> Vec<HolderInfo> {
        holders(&self.memory, name).await
    }
}

async fn nothing_is_left(remotes: &[Remote]) {
    let name = claim().name;
    for remote in remotes {
        until_async("nothing is left", async || remote.holders(&name).await.is_empty()).await;
    }
}

async fn holders(store: &dyn Backend, name: &Name) -> Vec<HolderInfo> {
    let page = store.inspect(&Query::Name(name.clone())).await.unwrap();
    page.items.into_iter().flat_map(|info| info.holders).collect()
}

/// A quorum whose node timeout is long enough for a busy machine.
fn quorum(nodes: Vec<Arc<dyn Backend>>) -> Quorum {
    Quorum::new(nodes.into_iter().map(Node::new)).unwrap().node_timeout(Duration::from_secs(10))
}

async fn quorum_of(remotes: &[Remote]) -> Quorum {
    let mut nodes = Vec::new();
    for remote in remotes {
        nodes.push(remote.node().await);
    }
    quorum(nodes)
}

fn claim() -> Claim {
    Claim::new(Name::new("x").unwrap(), Mode::Exclusive, TTL, "test")
}

#[track_caller]
fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Halves the time of a lease.
async fn shorten(quorum: &Quorum, claim: &Claim, grant: &Grant) {
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, TTL / 2);
    renewal.shorten = Some(grant.renewals);
    let renewed = quorum.renew(&[renewal]).await.pop().unwrap().unwrap();
    assert!(matches!(&renewed, Renewed::Held(grant) if grant.left <= Some(TTL / 2)), "{renewed:?}");
}

/// Two of three nodes have the lease for no longer than that; the third may have been late.
async fn is_short_on_most(stores: impl IntoIterator<Item = &Memory>, claim: &Claim) {
    let mut short = 0;
    for store in stores {
        let holders = holders(store, &claim.name).await;
        short += holders.iter().filter(|one| one.id == claim.id && one.grant.left <= Some(TTL / 2)).count();
    }
    assert!(short >= 2, "it is shorter on {short} of three nodes");
}

/// Each contender has its own layer and client, and holds the lock for a moment.
async fn all_get_their_turn(contenders: Vec<Quorum>) {
    let inside = Arc::new(AtomicU32::new(0));
    let count = contenders.len();
    let tasks: Vec<_> = contenders
        .into_iter()
        .map(|quorum| {
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                let poll = PollPolicy::new(Duration::from_millis(5), Duration::from_millis(100));
                let guard = Locks::new(quorum).mutex("x").ttl(TTL).poll(poll).lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::time::sleep(Duration::from_millis(2)).await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two are inside");
                let fence = guard.fence();
                guard.release().await.unwrap();
                fence
            })
        })
        .collect();
    let mut fences: Vec<Fence> = Vec::new();
    for task in tasks {
        fences.push(in_time("everybody gets a turn", task).await.unwrap());
    }
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), count, "each has a fence of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_vote_of_a_server_is_given_back() {
    let remotes = Remote::three().await;
    let quorum = quorum_of(&remotes).await;
    let (other, loser) = (claim(), claim());
    // Nodes one and two belong to another holder; only the third votes for the loser.
    for remote in &remotes[..2] {
        granted(remote.memory.try_acquire(&other).await.unwrap());
    }
    let attempt = quorum.try_acquire(&loser).await.unwrap();
    assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    // At once, or in the background if the vote came after the others had decided.
    answered(&remotes[2].store, Verb::Release, 1).await;
    assert!(remotes[2].holders(&loser.name).await.is_empty(), "the vote was not given back");
    for remote in &remotes[..2] {
        remote.memory.release(&Release::new(other.name.clone(), other.id)).await.unwrap();
    }
    // Repeat the claim, as a waiter does.
    granted(quorum.try_acquire(&loser).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_a_server_leaves_no_vote() {
    let remotes = Remote::three().await;
    let quorum = quorum_of(&remotes).await;
    let winner = claim();
    remotes[2].store.plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Unavailable)]);
    granted(quorum.try_acquire(&winner).await.unwrap());
    answered(&remotes[2].store, Verb::TryAcquire, 1).await;
    until_async("the vote has ended", async || remotes[2].holders(&winner.name).await.is_empty()).await;
    let renewal = Renewal::new(winner.name.clone(), winner.id, TTL);
    let renewed = quorum.renew(&[renewal]).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewed::Held(_)), "{renewed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_on_a_quorum_of_servers_can_be_shortened() {
    let remotes = Remote::three().await;
    let quorum = quorum_of(&remotes).await;
    let claim = claim();
    let grant = granted(quorum.try_acquire(&claim).await.unwrap());
    shorten(&quorum, &claim, &grant).await;
    is_short_on_most(remotes.iter().map(|remote| &remote.memory), &claim).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_on_a_quorum_of_servers_all_get_their_turn() {
    let remotes = Remote::three().await;
    let mut contenders = Vec::new();
    for _ in 0..20 {
        contenders.push(quorum_of(&remotes).await);
    }
    all_get_their_turn(contenders).await;
    nothing_is_left(&remotes).await;
}

/// Both live nodes must vote for the same contender, and split votes are common.
#[tokio::test(flavor = "multi_thread")]
async fn contenders_get_their_turn_while_a_server_is_dead() {
    let mut remotes = Remote::three().await;
    let mut contenders = Vec::new();
    for _ in 0..10 {
        contenders.push(quorum_of(&remotes).await);
    }
    remotes[1].server.stop();
    remotes[1].server.ended().await;
    all_get_their_turn(contenders).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_on_mixed_stores_all_get_their_turn() {
    let (remotes, redis) = (Remote::three().await, testkit::redis::Server::start());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.db");
    let mixed = async || {
        let sqlite: Arc<dyn Backend> = Arc::new(Sqlite::open(&file).await.unwrap());
        let redis: Arc<dyn Backend> = Arc::new(Redis::connect(&redis.url()).await.unwrap());
        let mut nodes = vec![sqlite, redis];
        for remote in &remotes {
            nodes.push(remote.node().await);
        }
        quorum(nodes)
    };
    let mut contenders = Vec::new();
    for _ in 0..10 {
        contenders.push(mixed().await);
    }
    all_get_their_turn(contenders).await;
    nothing_is_left(&remotes).await;
}

/// One node shows lease ids and the others digests: it is still one lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_mixed_stores_shows_one_holder() {
    let remotes = [Remote::start().await, Remote::start().await];
    let memory = Memory::new();
    let nodes: Vec<Arc<dyn Backend>> =
        vec![Arc::new(memory.clone()), remotes[0].node().await, remotes[1].node().await];
    let quorum = quorum(nodes);
    let claim = claim();
    assert!(!quorum.info().shows_ids && Info::new("quorum").shows_ids);
    let grant = granted(quorum.try_acquire(&claim).await.unwrap());
    let ids = |holders: Vec<HolderInfo>| holders.into_iter().map(|holder| holder.id).collect::<Vec<_>>();
    assert_eq!(ids(holders(&quorum, &claim.name).await), [claim.id.digest()]);
    let found = quorum.inspect(&Query::LeaseId(claim.id)).await.unwrap();
    assert_eq!(ids(found.items.into_iter().flat_map(|info| info.holders).collect()), [claim.id]);
    shorten(&quorum, &claim, &grant).await;
    is_short_on_most([&memory, &remotes[0].memory, &remotes[1].memory], &claim).await;
    // A server in front of such a quorum shows the same digest.
    let server = Server::on(Locks::new(quorum), settings()).await;
    let seen = server.get("/v1/locks/x").await.body;
    assert_eq!(seen["holders"][0]["lease_digest"], claim.id.digest().expose());
    let found = server.post("/v1/leases/lookup", &format!(r#"{{"lease_id":"{}"}}"#, claim.id.expose())).await;
    assert_eq!(found.body["lock"]["holders"][0]["lease_digest"], claim.id.digest().expose());
    assert_eq!(found.body["state"], "held");
}
