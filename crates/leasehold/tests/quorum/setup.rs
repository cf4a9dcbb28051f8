//! Which stores can form a quorum, and which cannot.

use std::sync::Arc;

use leasehold::backend::{Backend, Claim, Liveness, TimeAuthority};
use leasehold::backends::memory::Memory;
use leasehold::layers::quorum::{Node, Quorum};
use leasehold::{ErrorKind, Locks, Mode};
use testkit::faulty::Faulty;

use crate::cluster::{Cluster, TTL, name};

fn memory() -> Arc<dyn Backend> {
    Arc::new(Memory::new())
}

#[test]
fn fewer_than_three_nodes_or_one_twice_are_refused() {
    for nodes in 0..3 {
        let error = Quorum::new((0..nodes).map(|_| Node::new(memory()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let same = memory();
    let nodes = [memory(), same.clone(), memory(), same].map(Node::new);
    assert_eq!(Quorum::new(nodes).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let nodes = ["a", "b", "c", "b"].map(|identity| Node::new(memory()).identity(identity));
    let error = Quorum::new(nodes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("node 4"), "{error}");
}

#[tokio::test]
async fn stores_without_a_ttl_fences_or_their_own_clock_are_refused() {
    let changes: [fn(&mut leasehold::Info); 3] = [
        |info| info.liveness = Liveness::Session,
        |info| info.fenced = false,
        |info| info.time = TimeAuthority::Client,
    ];
    for change in changes {
        let odd = Faulty::new(Memory::new(), Arc::new(leasehold::clock::SystemClock)).with_info(change);
        let nodes = [memory(), Arc::new(odd), memory()].map(Node::new);
        assert_eq!(Quorum::new(nodes).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test(start_paused = true)]
async fn permits_are_unsupported() {
    let cluster = Cluster::new(3);
    let claim = Claim::new(name("x"), Mode::Permit { limit: 2 }, TTL, "test");
    assert_eq!(cluster.quorum.try_acquire(&claim).await.unwrap_err().kind(), ErrorKind::Unsupported);
    let error = cluster.client().semaphore("x", 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(cluster.held(&claim.name).await, 0);
}

#[tokio::test]
async fn a_url_without_three_stores_is_refused_and_not_repeated() {
    for url in ["quorum:", "quorum:redis://u:secret@a,redis://b", "quorum:x://secret,y://b,z://c"] {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn three_urls_are_a_quorum_and_one_twice_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let url = |n: u32| format!("sqlite://{}/{n}.db", directory.path().display());
    let locks = Locks::connect(&format!("quorum:{},{},{}", url(1), url(2), url(3))).await.unwrap();
    assert_eq!(locks.info().scheme, "quorum");
    let guard = locks.mutex("x").lock().await.unwrap();
    let mut held = 0;
    for n in 1..=3 {
        let alone = Locks::connect(&url(n)).await.unwrap();
        held += u32::from(alone.is_locked("x").await.unwrap());
    }
    assert!(held >= 2, "{held} of three nodes have it");
    guard.release().await.unwrap();
    let error = Locks::connect(&format!("quorum:{},{},{}", url(1), url(2), url(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
