//! A cluster whose nodes say little, disagree, or are wrong about which node serves what.

use leasehold::ErrorKind;
use leasehold::backend::Backend as _;
use leasehold::backends::redis::Redis;
use testkit::redis::{Cluster, Server};
use testkit::until::{until, until_async};

use crate::support::{LONG, claim, granted, granted_at_last};

fn id(node: &Server) -> String {
    node.cli(&["CLUSTER", "MYID"])
}

fn slot_of(cluster: &Cluster, on: &str) -> String {
    cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", &format!("leasehold:{{/{on}}}")])
}

/// The index of the node that serves a name.
fn serving(cluster: &Cluster, on: &str) -> usize {
    let port = cluster.serving(slot_of(cluster, on).parse().unwrap()).port();
    cluster.nodes.iter().position(|node| node.port() == port).unwrap()
}

/// A name that this node serves.
fn name_on(cluster: &Cluster, node: usize) -> String {
    (0..).map(|i| format!("n{i}")).find(|on| serving(cluster, on) == node).unwrap()
}

/// How often a node has redirected a call.
fn sent_on(node: &Server) -> u64 {
    let stats = node.cli(&["INFO", "errorstats"]);
    let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// The URL of some nodes.
fn url(nodes: &[&Server]) -> String {
    let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    format!("redis-cluster://{}", hosts.join(","))
}

#[tokio::test]
async fn a_node_without_a_host_is_where_the_answer_came_from() {
    let cluster = Cluster::start();
    let store = Redis::connect(&format!("{}?response_timeout_ms=20000", cluster.url())).await.unwrap();
    let on = name_on(&cluster, 0);
    let slot = slot_of(&cluster, &on);
    for node in &cluster.nodes {
        let set = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"];
        assert_eq!(node.cli(&set), "OK");
    }
    let to = id(&cluster.nodes[1]);
    for node in [1, 0, 2] {
        assert_eq!(cluster.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]), "OK");
    }
    let said = cluster.nodes[0].cli(&["GET", &format!("leasehold:{{/{on}}}")]);
    assert_eq!(said, format!("MOVED {slot} :{}", cluster.nodes[1].port()));
    granted(&store, &claim(&on, LONG)).await;
    assert!(sent_on(&cluster.nodes[0]) >= 2, "the old node was asked first");
    // ASK is answered in the same way.
    let on = name_on(&cluster, 2);
    let slot = slot_of(&cluster, &on);
    cluster.nodes[1].cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(&cluster.nodes[2])]);
    cluster.nodes[2].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    for node in [1, 2] {
        cluster.nodes[node].cli(&["CONFIG", "RESETSTAT"]);
    }
    let call = tokio::spawn({
        let store = store.clone();
        async move { store.try_acquire(&claim(&on, LONG)).await }
    });
    until_async("the call is sent on", async || {
        cluster.nodes[2].cli(&["INFO", "errorstats"]).contains("errorstat_ASK")
    })
    .await;
    for node in [1, 2, 0] {
        cluster.nodes[node].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]);
    }
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn nodes_that_disagree_are_not_asked_in_a_tight_loop() {
    let cluster = Cluster::start();
    let store = Redis::connect(&cluster.url()).await.unwrap();
    let on = name_on(&cluster, 0);
    let slot = slot_of(&cluster, &on);
    let (one, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    // The first believes that the slot is the other's; the other, and the third, that it is the first one's.
    assert_eq!(one.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(other)]), "OK");
    let key = format!("leasehold:{{/{on}}}");
    assert_eq!(one.cli(&["GET", &key]), format!("MOVED {slot} 127.0.0.1:{}", other.port()));
    assert_eq!(other.cli(&["GET", &key]), format!("MOVED {slot} 127.0.0.1:{}", one.port()));
    let before = sent_on(one) + sent_on(other);
    let error = store.try_acquire(&claim(&on, LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let asked = sent_on(one) + sent_on(other) - before;
    assert!((3..50).contains(&asked), "{asked} calls in 2 s");
    assert!(error.message().contains("do not agree"), "{error:?}");
    for node in [other, one, &cluster.nodes[2]] {
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(other)]), "OK");
    }
    granted_at_last(&store, &claim(&on, LONG)).await;
}

#[tokio::test]
async fn after_clusterdown_the_client_asks_which_nodes_serve() {
    let cluster = Cluster::start();
    // The node that is taken out is the first to be asked, too.
    let store = Redis::connect(&url(&[&cluster.nodes[0], &cluster.nodes[1]])).await.unwrap();
    let on = name_on(&cluster, 0);
    let (first, last) = ("0", (16384 / 3 - 1).to_string());
    let out = id(&cluster.nodes[0]);
    // It is taken out while its clients are idle, as `redis-cli --cluster del-node` does.
    assert_eq!(cluster.nodes[0].cli(&["CLUSTER", "RESET", "SOFT"]), "OK");
    for node in &cluster.nodes[1..] {
        assert_eq!(node.cli(&["CLUSTER", "DELSLOTSRANGE", first, &last]), "OK");
    }
    assert_eq!(cluster.nodes[1].cli(&["CLUSTER", "ADDSLOTSRANGE", first, &last]), "OK");
    for node in &cluster.nodes[1..] {
        assert_eq!(node.cli(&["CLUSTER", "FORGET", &out]), "OK");
    }
    until("the others serve everything", || {
        cluster.nodes[1..].iter().all(|node| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
    });
    // A node may have redirected the connect from here.
    assert_eq!(cluster.nodes[0].cli(&["CONFIG", "RESETSTAT"]), "OK");
    let error = store.try_acquire(&claim(&on, LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("cluster is down"), "{error:?}");
    granted_at_last(&store, &claim(&on, LONG)).await;
    let errors = cluster.nodes[0].cli(&["INFO", "errorstats"]);
    assert!(errors.contains("errorstat_CLUSTERDOWN") && !errors.contains("errorstat_MOVED"), "{errors}");
}

#[tokio::test]
async fn a_node_that_is_cut_off_is_not_believed() {
    let cluster = Cluster::with_replica_of(0);
    // The node that is cut off is the first to be asked.
    let stores = [
        Redis::connect(&url(&[&cluster.nodes[0]])).await.unwrap(),
        Redis::connect(&url(&[&cluster.nodes[0], &cluster.nodes[1]])).await.unwrap(),
    ];
    let names = [0, 1, 2].map(|node| name_on(&cluster, node));
    let ids: Vec<String> = cluster.nodes.iter().map(id).collect();
    // It hears from no other node any more, and still answers every client.
    for other in &ids[1..] {
        assert_eq!(cluster.nodes[0].cli(&["CLUSTER", "FORGET", other]), "OK");
    }
    assert_eq!(cluster.nodes[3].cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
    until("the cut off node knows that it is", || {
        cluster.nodes[0].cli(&["CLUSTER", "INFO"]).contains("cluster_state:fail")
    });
    until("the others know the next primary", || {
        cluster.nodes[1..3].iter().all(|node| {
            let nodes = node.cli(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.starts_with(&ids[3]) && line.contains("0-5460"))
                && node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        })
    });
    for (number, store) in stores.iter().enumerate() {
        for on in &names {
            let other = format!("{on}-{number}");
            until_async("all names are served", async || {
                store.try_acquire(&claim(on, LONG)).await.is_ok()
                    && store.try_acquire(&claim(&other, LONG)).await.is_ok()
            })
            .await;
        }
    }
    let fresh = Redis::connect(&url(&[&cluster.nodes[0], &cluster.nodes[1]])).await.unwrap();
    for i in 0..20 {
        granted(&fresh, &claim(&format!("fresh{i}"), LONG)).await;
    }
}
