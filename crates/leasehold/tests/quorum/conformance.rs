//! The promises of the contract, shown on a quorum.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Liveness, TimeAuthority};
use leasehold::backends::memory::Memory;
use leasehold::conformance::{Harness, run_all};
use leasehold::layers::quorum::{Node, Quorum};

async fn keeps_every_promise(nodes: usize) {
    let stores: Vec<Memory> = (0..nodes).map(|_| Memory::new()).collect();
    // Each client has a layer of its own, as in another process.
    let connect = || async {
        let nodes = stores.iter().map(|store| Node::new(Arc::new(store.clone())));
        Ok(Arc::new(Quorum::new(nodes)?) as Arc<dyn Backend>)
    };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_three_memory_stores_keeps_every_promise() {
    keeps_every_promise(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_four_memory_stores_keeps_every_promise() {
    keeps_every_promise(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_of_five_memory_stores_keeps_every_promise() {
    keeps_every_promise(5).await;
}

/// Field by field, so that an ability cannot vanish together with its checks.
#[test]
fn a_quorum_says_what_it_can_do() {
    let info = Quorum::new((0..3).map(|_| Node::new(Arc::new(Memory::new())))).unwrap().info();
    assert_eq!(info.scheme, "quorum");
    assert_eq!((info.liveness, info.time), (Liveness::Ttl, TimeAuthority::Store));
    assert!(info.fenced && info.shared && info.downgrade && info.find_by_id && info.revoke);
    assert!(info.detects_loss && info.namespaced && info.notes);
    assert!(!info.fifo && !info.push);
    assert_eq!((info.max_permits, info.min_validity_percent), (0, 90));
    assert_eq!((info.max_ttl, info.check_every), (Duration::from_secs(24 * 3600), None));
    assert!(leasehold::stores().iter().any(|store| store.info == info));
}
