//! A name with more holders than a node shows.

use leasehold::backend::{Backend, Claim, Query, Released, Renewal, Renewed};
use leasehold::{ErrorKind, Mode};
use testkit::faulty::{Act, Verb};

use crate::cluster::{Cluster, TTL, claim, later, release};

const READERS: usize = 150;

/// Claims of that many readers of one name, all granted.
async fn readers(cluster: &Cluster) -> Vec<Claim> {
    let mut claims = Vec::new();
    for _ in 0..READERS {
        let mut reader = claim("x");
        reader.mode = Mode::Shared;
        cluster.acquire(&reader).await.unwrap();
        claims.push(reader);
    }
    claims
}

#[tokio::test(start_paused = true)]
async fn the_youngest_of_many_readers_is_found_shortened_and_released() {
    let cluster = Cluster::new(3);
    let readers = readers(&cluster).await;
    let last = readers.last().unwrap();

    let by_name = Query::Name(last.name.clone());
    let seen = cluster.quorum.inspect(&by_name).await.unwrap().items.remove(0);
    assert_eq!((seen.holders.len(), seen.holder_count), (100, READERS as u64));
    assert!(seen.holders.iter().zip(&readers).all(|(shown, reader)| shown.id == reader.id));
    assert!(seen.holders.iter().all(|shown| shown.grant.mode == Mode::Shared));

    let by_id = Query::LeaseId(last.id);
    let found = cluster.quorum.inspect(&by_id).await.unwrap().items.remove(0);
    assert_eq!((found.holders.len(), found.holder_count), (100, READERS as u64));
    assert_eq!(found.holders[99].id, last.id);

    let mut shorten = Renewal::new(last.name.clone(), last.id, TTL / 3);
    shorten.shorten = Some(found.holders[99].grant.renewals);
    let shorter = cluster.quorum.renew(&[shorten]).await.remove(0).unwrap();
    assert!(matches!(&shorter, Renewed::Held(grant) if grant.left <= Some(TTL / 3)), "{shorter:?}");

    assert_eq!(cluster.quorum.release(&release(last)).await.unwrap(), Released::Done);
    assert!(cluster.quorum.inspect(&by_id).await.unwrap().items.is_empty());
    let seen = cluster.quorum.inspect(&by_name).await.unwrap().items.remove(0);
    assert_eq!(seen.holder_count, READERS as u64 - 1);
}

/// A node looks for one vote among many.
#[tokio::test(start_paused = true)]
async fn a_lost_vote_among_many_readers_leaves_no_ghost() {
    let cluster = Cluster::new(3);
    readers(&cluster).await;
    let mut late = claim("x");
    late.mode = Mode::Shared;
    cluster.nodes[2].plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Unavailable)]);
    cluster.acquire(&late).await.unwrap();
    later().await;
    let left = cluster.memory[2].inspect(&Query::LeaseId(late.id)).await.unwrap().items;
    assert!(left.is_empty(), "a ghost");
}
