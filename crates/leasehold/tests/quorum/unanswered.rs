//! Answers that are lost, requests that come late, callers that go away: nothing is left on any node.

use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Gone, Released, Renewed};
use leasehold::{ErrorKind, Fence};
use testkit::faulty::{Act, Verb};
use testkit::paused::poll_at_most;

use crate::cluster::{Cluster, TTL, claim, granted, later, release, renew};
use crate::fences::raise;

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_late_never_becomes_a_ghost() {
    // Before the node's timeout, just after it, and long after it.
    for late in [100, 1_005, 3_000, 20_000] {
        for holder in [false, true] {
            let cluster = Cluster::new(3);
            let claim = claim("x");
            if holder {
                cluster.acquire(&crate::cluster::claim("x")).await.unwrap();
                // The third node is free, and would let a ghost in.
                let info = cluster.holders(2, &claim.name).await;
                let free = leasehold::backend::Release::new(claim.name.clone(), info[0].id);
                cluster.memory[2].release(&free).await.unwrap();
            }
            cluster.nodes[2].plan(Verb::TryAcquire, [Act::Late(Duration::from_millis(late))]);
            let attempt = cluster.quorum.try_acquire(&claim).await.unwrap();
            assert_eq!(matches!(attempt, Attempt::Granted(_)), !holder, "{late}: {attempt:?}");
            tokio::time::sleep(Duration::from_millis(late) + Duration::from_secs(5)).await;
            assert!(cluster.holders(2, &claim.name).await.is_empty(), "{late} {holder}: a ghost");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_vote_ends_though_the_claim_was_granted() {
    for error in [ErrorKind::Unavailable, ErrorKind::NetworkTimeout, ErrorKind::Internal] {
        let cluster = Cluster::new(3);
        let claim = claim("x");
        cluster.nodes[2].plan(Verb::TryAcquire, [Act::LostAfter(error)]);
        cluster.acquire(&claim).await.unwrap();
        later().await;
        assert!(cluster.holders(2, &claim.name).await.is_empty(), "{error:?}: a ghost");
        assert!(matches!(renew(&cluster.quorum, &claim).await.unwrap(), Renewed::Held(_)), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_a_lost_vote_on_a_slow_node_too() {
    let cluster = Cluster::new(3);
    let claim = claim("x");
    cluster.nodes[2].plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Unavailable)]);
    // Ending the vote fails at first; the node answers the release of the lease only after the others have decided it.
    let slow = Act::SlowBefore(Duration::from_millis(200));
    cluster.nodes[2].plan(Verb::Release, [Act::Fail(ErrorKind::Unavailable), slow]);
    let grant = cluster.acquire(&claim).await.unwrap();
    later().await;
    assert_eq!(cluster.holders(2, &claim.name).await.len(), 1, "the vote is still there");
    let mut release = release(&claim);
    release.fence = Some(grant.fence);
    assert_eq!(cluster.quorum.release(&release).await.unwrap(), Released::Done);
    later().await;
    assert_eq!(cluster.held(&claim.name).await, 0);
}

/// A left-over vote has its own fence, and may end at any moment: it holds nothing up.
#[tokio::test(start_paused = true)]
async fn a_renewal_counts_no_vote_that_was_left_over() {
    let cluster = Cluster::new(3);
    let claim = claim("x");
    cluster.nodes[2].plan(Verb::TryAcquire, [Act::LostAfter(ErrorKind::Unavailable)]);
    cluster.nodes[2].plan(Verb::Release, [Act::Fail(ErrorKind::Unavailable)]);
    let grant = cluster.acquire(&claim).await.unwrap();
    later().await;
    assert_eq!(cluster.holders(2, &claim.name).await.len(), 1, "the vote is still there");
    // It is the first to answer.
    for node in [0, 1] {
        cluster.nodes[node].always(Verb::Renew, Act::Slow(Duration::from_millis(50 << node)));
    }
    let renewed = renew(&cluster.quorum, &claim).await.unwrap();
    assert!(matches!(&renewed, Renewed::Held(held) if held.fence == grant.fence), "{renewed:?}");
    // Only one of the grants that count is left, which is no majority.
    cluster.memory[0].release(&release(&claim)).await.unwrap();
    assert!(matches!(renew(&cluster.quorum, &claim).await.unwrap(), Renewed::Gone(_)));
}

#[tokio::test(start_paused = true)]
async fn giving_back_never_hits_a_later_attempt_of_the_same_id() {
    // The attempt is refused, and what it got is given back by releases that come much later. Meanwhile the
    // same claim is granted: it stays granted on all nodes.
    let cluster = Cluster::new(3);
    let (holder, waiter) = (claim("x"), claim("x"));
    cluster.acquire(&holder).await.unwrap();
    cluster.memory[2].release(&release(&holder)).await.unwrap();
    // What the third gives is the highest fence of both attempts.
    let ahead = Fence::new(cluster.holders(0, &holder.name).await[0].grant.fence.get() + 1_000_000);
    raise(&cluster.memory[2], "x", ahead).await;
    let late = Act::Late(Duration::from_secs(5));
    cluster.nodes[2].plan(Verb::Release, [late]);
    assert!(matches!(cluster.quorum.try_acquire(&waiter).await.unwrap(), Attempt::Busy(_)));
    assert_eq!(cluster.holders(2, &waiter.name).await.len(), 1, "its release is on its way");
    cluster.quorum.release(&release(&holder)).await.unwrap();
    let grant = cluster.acquire(&waiter).await.unwrap();
    later().await;
    for node in 0..3 {
        let holders = cluster.holders(node, &waiter.name).await;
        assert_eq!(holders.first().map(|holder| holder.grant.fence), Some(grant.fence), "node {node}");
    }
    assert!(matches!(renew(&cluster.quorum, &waiter).await.unwrap(), Renewed::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_is_the_same_grant_after_any_lost_answers() {
    for verb in [Verb::TryAcquire, Verb::Renew] {
        let cluster = Cluster::new(5);
        let mut claim = claim("x");
        // The caller gives up while all calls are in flight, after they had their effect.
        (0..5).for_each(|node| cluster.nodes[node].plan(verb, [Act::NeverAfter]));
        let attempt = tokio::time::timeout(Duration::from_millis(100), cluster.acquire(&claim)).await;
        assert!(attempt.is_err(), "{verb:?}: it was answered");
        claim.repeat = true;
        let one = cluster.acquire(&claim).await.unwrap();
        let two = cluster.acquire(&claim).await.unwrap();
        assert_eq!((one.fence, one.renewals), (two.fence, two.renewals), "{verb:?}");
        assert_eq!(cluster.quorum.release(&release(&claim)).await.unwrap(), Released::Done);
        later().await;
        assert_eq!(cluster.held(&claim.name).await, 0, "{verb:?}");
        // Promise 8: a repeated id is spent.
        assert!(matches!(cluster.quorum.try_acquire(&claim).await.unwrap(), Attempt::Gone(_)), "{verb:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_is_the_same_grant_with_slow_confirmers() {
    let cluster = Cluster::new(5);
    let claim = claim("x");
    // Two are behind, and what they grant too late is given back.
    let slow = |nodes: [usize; 2]| {
        (0..5).for_each(|node| {
            let late = if nodes.contains(&node) { 200 } else { 1 };
            cluster.nodes[node].always(Verb::TryAcquire, Act::Slow(Duration::from_millis(late)));
        });
    };
    slow([3, 4]);
    let first = cluster.acquire(&claim).await.unwrap();
    later().await;
    assert_eq!(cluster.held(&claim.name).await, 3);
    // Now two of the nodes that have it are behind, and the others would grant it anew.
    slow([1, 2]);
    let again = cluster.acquire(&claim).await.unwrap();
    assert_eq!((again.fence, again.renewals), (first.fence, first.renewals));
    assert!(matches!(renew(&cluster.quorum, &claim).await.unwrap(), Renewed::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn the_nodes_that_had_a_lease_say_why_it_is_gone() {
    let cluster = Cluster::new(5);
    let claim = claim("x");
    for node in [3, 4] {
        cluster.nodes[node].always(Verb::TryAcquire, Act::Slow(Duration::from_millis(200)));
    }
    cluster.acquire(&claim).await.unwrap();
    later().await;
    assert_eq!(cluster.held(&claim.name).await, 3);
    cluster.quorum.revoke(&claim.name, true, None).await.unwrap();
    // Those that never had it answer first.
    for node in [1, 2] {
        for verb in [Verb::Renew, Verb::Release] {
            cluster.nodes[node].always(verb, Act::Slow(Duration::from_millis(200)));
        }
    }
    assert!(matches!(renew(&cluster.quorum, &claim).await.unwrap(), Renewed::Gone(Gone::Revoked)));
    let released = cluster.quorum.release(&release(&claim)).await.unwrap();
    assert_eq!(released, Released::Gone(Gone::Revoked));
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_at_any_point_leaves_nothing_on_any_node() {
    for polls in 1..60 {
        let cluster = Cluster::new(5);
        // Slow enough that every step is a poll of its own, and one node dead.
        for node in 0..5_u64 {
            let act = Act::Slow(Duration::from_millis(3 + node));
            [Verb::TryAcquire, Verb::Renew, Verb::Release]
                .iter()
                .for_each(|verb| cluster.nodes[node as usize].always(*verb, act));
        }
        cluster.set(4, Act::Never);
        let locks = cluster.client();
        let mutex = locks.mutex("x").ttl(TTL);
        let done = poll_at_most(polls, mutex.lock()).await;
        let over = done.is_some();
        drop(done);
        later().await;
        let name = locks.name("x").unwrap();
        for node in 0..4 {
            assert!(cluster.holders(node, &name).await.is_empty(), "after {polls} polls node {node} holds");
        }
        if over {
            return;
        }
    }
    panic!("it never ends");
}

#[tokio::test(start_paused = true)]
async fn answers_lost_in_either_phase_do_not_prevent_a_lock() {
    for verb in [Verb::TryAcquire, Verb::Renew] {
        for act in
            [Act::LostAfter(ErrorKind::NetworkTimeout), Act::NeverAfter, Act::Fail(ErrorKind::Unavailable)]
        {
            let cluster = Cluster::new(5);
            (0..3).for_each(|node| cluster.nodes[node].plan(verb, [act, act]));
            let locks = cluster.client();
            let guard = locks.mutex("x").ttl(TTL).lock().await.unwrap();
            assert!(guard.valid_for().unwrap() >= TTL * 9 / 10, "{verb:?} {act:?}");
            guard.release().await.unwrap();
            later().await;
            assert_eq!(cluster.held(&locks.name("x").unwrap()).await, 0, "{verb:?} {act:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_revocation_counts_what_a_majority_has_or_may_have() {
    let cluster = Cluster::new(5);
    let claim = claim("x");
    // Left behind on one node, as on one that has not heard of a release yet.
    granted(cluster.memory[0].try_acquire(&claim).await.unwrap());
    assert_eq!(cluster.quorum.revoke(&claim.name, false, None).await.unwrap().leases, 0);
    for node in [1, 2] {
        granted(cluster.memory[node].try_acquire(&claim).await.unwrap());
    }
    assert_eq!(cluster.quorum.revoke(&claim.name, false, None).await.unwrap().leases, 1);
    // Two of the nodes that have it are away: one is enough to show that a majority may have it.
    cluster.kill(1);
    cluster.kill(2);
    assert_eq!(cluster.quorum.revoke(&claim.name, false, None).await.unwrap().leases, 1);
}

/// One node never heard of the lease, and one that says it is over is slow.
#[tokio::test(start_paused = true)]
async fn a_majority_refuses_a_repeat_after_its_end() {
    let cluster = Cluster::new(3);
    let (old, new) = (claim("x"), claim("x"));
    cluster.kill(2);
    cluster.acquire(&old).await.unwrap();
    later().await;
    cluster.revive(2);
    cluster.quorum.revoke(&old.name, true, None).await.unwrap();
    granted(cluster.other().try_acquire(&new).await.unwrap());
    later().await;
    cluster.nodes[1].plan(Verb::TryAcquire, [Act::Slow(Duration::from_millis(5))]);
    let again = cluster.quorum.try_acquire(&old).await.unwrap();
    assert!(matches!(again, Attempt::Gone(Gone::Superseded)), "{again:?}");
}
