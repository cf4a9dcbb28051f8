//! The fence, when counters differ wildly and nodes die or forget at the worst moment.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Gone, HolderInfo, Release, Renewal, Renewed};
use leasehold::backends::memory::Memory;
use leasehold::{ErrorKind, Fence, Mode};
use testkit::faulty::{Act, Verb};

use crate::cluster::{Cluster, claim, granted, later, release, renew};

/// Drives a node's counter of a name far above the clock, and leaves it free.
pub(crate) async fn raise(store: &Memory, on: &str, fence: Fence) {
    let claim = claim(on);
    let own = granted(store.try_acquire(&claim).await.unwrap()).fence;
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
    renewal.raise_fence = Some(fence.max(own));
    assert!(matches!(store.renew(&[renewal]).await.pop().unwrap().unwrap(), Renewed::Held(_)));
    store.release(&release(&claim)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn fences_rise_on_a_majority_that_never_saw_the_highest_one() {
    for nodes in [3, 4, 5] {
        let cluster = Cluster::new(nodes);
        let high = Fence::new(Fence::at(cluster.clock.wall_micros()).get() + 1_000_000_000);
        raise(&cluster.memory[0], "x", high).await;
        let first = claim("x");
        let one = cluster.acquire(&first).await.unwrap();
        assert!(one.fence > high, "{} came after {high}", one.fence);
        cluster.quorum.release(&release(&first)).await.unwrap();
        later().await;
        // The next majority does not include the node that had it.
        cluster.kill(0);
        let two = cluster.acquire(&claim("x")).await.unwrap();
        assert!(two.fence > one.fence, "{} came after {}", two.fence, one.fence);
    }
}

#[tokio::test(start_paused = true)]
async fn fences_rise_whichever_majority_grants() {
    let cluster = Cluster::new(5);
    let mut last = Fence::UNFENCED;
    for round in 0..40_u64 {
        // Two other nodes are away in each round, and one counter is driven ahead.
        let away = [(round % 5) as usize, (round * 3 % 5) as usize];
        away.iter().for_each(|node| cluster.kill(*node));
        let ahead = (round * 2 + 1) % 5;
        raise(&cluster.memory[ahead as usize], "x", Fence::new(last.get().max(1) + 1_000_000 * (round % 3)))
            .await;
        let claim = claim("x");
        let grant = cluster.acquire(&claim).await.unwrap();
        assert!(grant.fence > last, "{} came after {last}", grant.fence);
        last = grant.fence;
        cluster.quorum.release(&release(&claim)).await.unwrap();
        later().await;
        away.iter().for_each(|node| cluster.revive(*node));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_clock_is_days_ahead_stops_nobody() {
    for ahead in [vec![0, 0, 3], vec![3, 0, 0, 0, 700], vec![0, 2, 4, 2, 2]] {
        let (cluster, _) = Cluster::with_clocks(ahead.clone());
        let mut last = Fence::UNFENCED;
        for _ in 0..3 {
            let claim = claim("x");
            let grant = cluster.acquire(&claim).await.unwrap();
            assert!(grant.fence > last, "{ahead:?}: {} came after {last}", grant.fence);
            last = grant.fence;
            let day = Fence::at(cluster.clock.wall_micros() + 3 * 86_400_000_000);
            assert!(last < day, "{ahead:?}: the fence follows the clock that is wrong");
            later().await;
            let same = |holders: Vec<HolderInfo>| holders.iter().all(|holder| holder.grant.fence == last);
            for node in 0..ahead.len() {
                assert!(same(cluster.holders(node, &claim.name).await), "{ahead:?}: left on node {node}");
            }
            assert!(matches!(renew(&cluster.quorum, &claim).await.unwrap(), Renewed::Held(_)));
            cluster.quorum.release(&release(&claim)).await.unwrap();
            later().await;
            assert_eq!(cluster.held(&claim.name).await, 0, "{ahead:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_days_apart_say_so_and_keep_nothing() {
    let (cluster, _) = Cluster::with_clocks(vec![0, 0, 3]);
    cluster.kill(1);
    let first = claim("x");
    let error = cluster.acquire(&first).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("more than a day apart"), "{error}");
    assert_eq!(cluster.held(&first.name).await, 0);
    // The same claim is granted once there is a majority that agrees.
    cluster.revive(1);
    cluster.acquire(&first).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn counters_far_ahead_of_all_clocks_still_rise() {
    let (cluster, clocks) = Cluster::with_clocks(vec![300; 3]);
    let first = claim("x");
    let mut last = cluster.acquire(&first).await.unwrap().fence;
    cluster.quorum.release(&release(&first)).await.unwrap();
    later().await;
    clocks.iter().for_each(|clock| clock.set(0));
    for _ in 0..3 {
        let claim = claim("x");
        let grant = cluster.acquire(&claim).await.unwrap();
        assert!(grant.fence > last, "{} came after {last}", grant.fence);
        last = grant.fence;
        cluster.quorum.release(&release(&claim)).await.unwrap();
        later().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_majority_dying_between_phases_grants_and_leaves_nothing() {
    for act in [
        Act::Fail(ErrorKind::Unavailable),
        Act::LostAfter(ErrorKind::NetworkTimeout),
        Act::Never,
        Act::NeverAfter,
        Act::Late(Duration::from_secs(3)),
    ] {
        let cluster = Cluster::new(5);
        (0..3).for_each(|node| cluster.nodes[node].always(Verb::Renew, act));
        let first = claim("x");
        let error = cluster.acquire(&first).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkTimeout, "{act:?}");
        later().await;
        assert_eq!(cluster.held(&first.name).await, 0, "{act:?}");
        // The id was given back by force: it is never granted again, and the next fence is above the one it used.
        assert!(matches!(cluster.quorum.try_acquire(&first).await.unwrap(), Attempt::Gone(_)), "{act:?}");
        let burnt = cluster.nodes[3].calls(Verb::Renew)[0].renewals()[0].raise_fence.unwrap();
        (0..3).for_each(|node| cluster.revive(node));
        let grant = cluster.acquire(&claim("x")).await.unwrap();
        assert!(grant.fence > burnt, "{act:?}: {} came after {burnt}", grant.fence);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_ended_between_the_phases_grants_and_leaves_nothing() {
    let cluster = Cluster::new(5);
    (0..3).for_each(|node| cluster.nodes[node].plan(Verb::Renew, [Act::Gone(Gone::Expired)]));
    let first = claim("x");
    // These nodes refuse the id from then on, so another is needed.
    assert!(matches!(cluster.quorum.try_acquire(&first).await.unwrap(), Attempt::Gone(_)));
    later().await;
    assert_eq!(cluster.held(&first.name).await, 0);
    cluster.acquire(&claim("x")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_claim_is_refused_while_its_give_back_is_pending() {
    let cluster = Cluster::new(3);
    for node in &cluster.nodes {
        node.always(Verb::Renew, Act::LostAfter(ErrorKind::NetworkTimeout));
        node.always(Verb::Release, Act::Late(Duration::from_secs(5)));
    }
    let mut first = claim("x");
    assert!(cluster.acquire(&first).await.is_err());
    // All nodes have it, with one fence, as if it were confirmed; it soon expires.
    assert_eq!(cluster.held(&first.name).await, 3);
    first.repeat = true;
    assert!(matches!(cluster.quorum.try_acquire(&first).await.unwrap(), Attempt::Gone(_)));
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_dies_between_the_phases_is_not_missed() {
    let cluster = Cluster::new(5);
    cluster.nodes[1].always(Verb::Renew, Act::Never);
    cluster.nodes[4].always(Verb::Renew, Act::Fail(ErrorKind::Unavailable));
    let first = claim("x");
    let grant = cluster.acquire(&first).await.unwrap();
    assert_eq!(grant.left, Some(crate::cluster::TTL));
    let held = cluster.holders(0, &first.name).await;
    assert_eq!(held[0].grant.fence, grant.fence);
    // Its release, which names the fence, also ends the leases of those two, which have another fence.
    [1, 4].iter().for_each(|node| cluster.revive(*node));
    let mut release = Release::new(first.name.clone(), first.id);
    release.fence = Some(grant.fence);
    cluster.quorum.release(&release).await.unwrap();
    later().await;
    assert_eq!(cluster.held(&first.name).await, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_majority_lost_data_the_lease_is_gone_and_fences_rise() {
    let cluster = Cluster::new(3);
    let first = claim("x");
    let one = cluster.acquire(&first).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    // Two nodes restart empty: new stores replace theirs.
    let mut nodes = cluster.nodes.clone();
    for node in &mut nodes[1..] {
        *node =
            testkit::faulty::Faulty::new(Memory::with_clock(cluster.clock.clone()), cluster.clock.clone());
    }
    let quorum = leasehold::layers::quorum::Quorum::new(
        nodes.iter().map(|node| leasehold::layers::quorum::Node::new(std::sync::Arc::new(node.clone()))),
    )
    .unwrap();
    // Nothing can keep the second out: that is documented. Its fence stops the first.
    let two = granted(quorum.try_acquire(&claim("x")).await.unwrap());
    assert!(two.fence > one.fence, "{} came after {}", two.fence, one.fence);
    assert_eq!(renew(&quorum, &first).await.unwrap(), Renewed::Gone(Gone::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_lease_lives_while_a_majority_of_its_nodes_does() {
    let cluster = Cluster::new(5);
    let first = claim("x");
    cluster.acquire(&first).await.unwrap();
    cluster.kill(0);
    cluster.set(1, Act::Never);
    for _ in 0..10 {
        tokio::time::sleep(crate::cluster::TTL / 2).await;
        assert!(matches!(renew(&cluster.quorum, &first).await.unwrap(), Renewed::Held(_)));
    }
    // Those two have lost it meanwhile and do not get it again.
    cluster.revive(0);
    cluster.revive(1);
    cluster.kill(2);
    assert_eq!(renew(&cluster.quorum, &first).await.unwrap_err().kind(), ErrorKind::Unavailable);
    cluster.revive(2);
    assert!(matches!(renew(&cluster.quorum, &first).await.unwrap(), Renewed::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn a_grant_lasts_as_long_as_a_majority_of_nodes_has_it() {
    let cluster = Cluster::new(3);
    let first = claim("x");
    // One node answers its renewal late: the client does not wait for it.
    cluster.nodes[2].always(Verb::Renew, Act::Slow(Duration::from_millis(500)));
    let started = tokio::time::Instant::now();
    let grant = cluster.acquire(&first).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!((grant.left, grant.waited), (Some(crate::cluster::TTL), Duration::ZERO));
    // Phase 1 takes a while: the time left counts from after it.
    let second = claim("y");
    (0..3).for_each(|node| {
        cluster.nodes[node].always(Verb::TryAcquire, Act::Slow(Duration::from_millis(300)));
    });
    let grant = cluster.acquire(&second).await.unwrap();
    assert_eq!((grant.left, grant.waited), (Some(crate::cluster::TTL), Duration::from_millis(300)));
    // Cut one node's lease short: the other two carry it. Then another's: it ends with that.
    for (node, left) in [(0, 30), (1, 10)] {
        let shown = cluster.holders(node, &second.name).await;
        let mut short = Renewal::new(second.name.clone(), second.id, Duration::from_secs(10));
        short.shorten = Some(shown[0].grant.renewals);
        cluster.memory[node].renew(&[short]).await.pop().unwrap().unwrap();
        let again = cluster.acquire(&second).await.unwrap();
        let least = Duration::from_secs(left) - Duration::from_secs(1);
        assert!(again.left > Some(least) && again.left <= Some(Duration::from_secs(left)), "{again:?}");
        assert_eq!(again.fence, grant.fence);
    }
    assert_eq!(grant.mode, Mode::Exclusive);
}

/// One node has not confirmed the grant yet, and another is slow to say how often the lease was renewed there.
#[tokio::test(start_paused = true)]
async fn a_shortening_reaches_a_majority_though_one_node_is_behind() {
    let cluster = Cluster::new(3);
    let lease = claim("x");
    cluster.nodes[2].plan(Verb::Renew, [Act::SlowBefore(Duration::from_millis(20))]);
    let grant = cluster.acquire(&lease).await.unwrap();
    cluster.nodes[1].plan(Verb::Other, [Act::Slow(Duration::from_millis(5))]);
    let short = crate::cluster::TTL / 3;
    let mut shorten = Renewal::new(lease.name.clone(), lease.id, short);
    shorten.shorten = Some(grant.renewals);
    assert!(matches!(cluster.quorum.renew(&[shorten]).await.remove(0).unwrap(), Renewed::Held(_)));
    // The late confirmation has come by then.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut shortened = 0;
    for node in 0..3 {
        shortened += usize::from(cluster.holders(node, &lease.name).await[0].grant.left <= Some(short));
    }
    assert!(shortened >= 2, "{shortened} of three nodes have shortened it");
}
