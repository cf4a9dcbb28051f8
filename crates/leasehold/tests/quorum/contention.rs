//! Many clients that want one name, while nodes are slow or dead.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::backends::memory::Memory;
use leasehold::layers::quorum::{Node, Quorum};
use leasehold::{Fence, Locks, PollPolicy};
use testkit::faulty::{Act, Verb};
use testkit::until::in_time;
use tokio::time::Instant;

use crate::cluster::{Cluster, claim, later, release, renew};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_contenders_all_get_their_turn() {
    let stores: Vec<Memory> = (0..5).map(|_| Memory::new()).collect();
    let inside = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            // Each with a layer and a client of its own.
            let quorum = Quorum::new(stores.iter().map(|store| Node::new(Arc::new(store.clone())))).unwrap();
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                let poll = PollPolicy::new(Duration::from_millis(5), Duration::from_millis(100));
                let mutex = Locks::new(quorum).mutex("x").poll(poll);
                let guard = mutex.lock().await.unwrap();
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
    assert_eq!(fences.len(), 50, "each has a fence of its own");
}

/// The same with answers that take a while and arrive in any order, where votes do split.
#[tokio::test(start_paused = true)]
async fn fifty_contenders_on_slow_nodes_all_get_their_turn() {
    let cluster = Cluster::new(5);
    for (node, faulty) in cluster.nodes.iter().enumerate() {
        for verb in [Verb::TryAcquire, Verb::Renew, Verb::Release] {
            let mut calls = node as u64;
            faulty.script(verb, move |_| {
                calls += 1;
                Act::SlowBefore(Duration::from_micros(500 + calls * 7919 % 3000))
            });
        }
    }
    let started = Instant::now();
    let (inside, fences) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let mutex = cluster.client().mutex("x");
            let (inside, fences) = (Arc::clone(&inside), Arc::clone(&fences));
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                fences.lock().unwrap().push(guard.fence());
                tokio::time::sleep(Duration::from_millis(2)).await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two are inside");
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    println!("50 turns in {:?} of paused time", started.elapsed());
    let fences = fences.lock().unwrap();
    assert!(fences.len() == 50 && fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn bad_nodes_cost_nothing_beside_a_healthy_majority() {
    // Every healthy answer takes 10 ms; a turn then takes as long as with any minority.
    let healthy = Act::SlowBefore(Duration::from_millis(10));
    let bad = [
        Act::Never,
        Act::NeverAfter,
        Act::SlowBefore(Duration::from_secs(20)),
        Act::Late(Duration::from_secs(2)),
    ];
    for act in bad {
        let cluster = Cluster::new(5);
        (0..5).for_each(|node| cluster.set(node, healthy));
        let turn = async || {
            let claim = claim("x");
            let started = Instant::now();
            cluster.acquire(&claim).await.unwrap();
            renew(&cluster.quorum, &claim).await.unwrap();
            cluster.quorum.release(&release(&claim)).await.unwrap();
            started.elapsed()
        };
        let before = turn().await;
        later().await;
        cluster.set(1, act);
        cluster.set(3, act);
        // The first call that meets them waits as long again as the majority took; then the client knows them.
        let first = turn().await;
        assert!(first <= before * 2, "{act:?}: {first:?} instead of {before:?}");
        for _ in 0..5 {
            let with = turn().await;
            assert!(with <= before + Duration::from_millis(1), "{act:?}: {with:?} instead of {before:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn background_work_ends() {
    let cluster = Cluster::new(3);
    cluster.set(2, Act::Never);
    let before = testkit::paused::tasks();
    for _ in 0..20 {
        let claim = claim("x");
        cluster.acquire(&claim).await.unwrap();
        assert!(cluster.quorum.try_acquire(&crate::cluster::claim("x")).await.is_ok());
        cluster.quorum.release(&release(&claim)).await.unwrap();
    }
    assert!(testkit::paused::tasks() > before, "the silent node keeps nobody busy");
    later().await;
    assert_eq!(testkit::paused::tasks(), before);
    assert!(cluster.quorum.sweep().await.is_ok());
}
