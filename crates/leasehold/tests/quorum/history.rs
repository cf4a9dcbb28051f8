//! Random histories on nodes that fail at random, in paused time: no two clients believe that they hold the name at
//! once, and fences increase.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Grant, Renewal, Renewed};
use leasehold::{ErrorKind, Fence, Mode};
use testkit::faulty::Act;
use tokio::time::Instant;

use crate::cluster::{Cluster, VERBS, name, release};

/// A random generator that repeats with the same seed.
#[derive(Clone)]
struct Dice(Rc<Cell<u64>>);

impl Dice {
    fn new(seed: u64) -> Self {
        Dice(Rc::new(Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)))
    }

    fn below(&self, most: u64) -> u64 {
        self.0.set(next(self.0.get()));
        (self.0.get() >> 33) % most
    }
}

fn next(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

#[derive(Debug)]
struct Belief {
    mode: Mode,
    fence: Fence,
    called: Instant,
    from: Instant,
    until: Instant,
}

fn deadline(sent: Instant, grant: &Grant) -> Instant {
    let span = grant.waited + grant.left.unwrap();
    sent + (span - span / 100).saturating_sub(Duration::from_millis(2))
}

async fn come_and_go(cluster: Rc<Cluster>, dice: Dice, end: Instant) -> Vec<Belief> {
    let quorum = cluster.other();
    let mut beliefs = Vec::new();
    while Instant::now() < end {
        let mode = if dice.below(3) == 0 { Mode::Shared } else { Mode::Exclusive };
        let mut claim = Claim::new(name("x"), mode, Duration::from_millis(300 + dice.below(700)), "test");
        // The same id again, as the wait loop does, also after errors. A later attempt may bring the grant of
        // an earlier one, so the claim begins with the first.
        let called = Instant::now();
        for _ in 0..1 + dice.below(6) {
            let sent = Instant::now();
            let patience = Duration::from_millis(50 + dice.below(4000));
            let attempt = tokio::time::timeout(patience, quorum.try_acquire(&claim)).await;
            match attempt {
                Ok(Ok(Attempt::Granted(grant))) => {
                    let (from, mut until) = (Instant::now(), deadline(sent, &grant));
                    for _ in 0..dice.below(4) {
                        tokio::time::sleep(claim.ttl / 4).await;
                        let sent = Instant::now();
                        let mut renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
                        renewal.fence = Some(grant.fence);
                        let answer = tokio::time::timeout(claim.ttl / 6, quorum.renew(&[renewal])).await;
                        match answer.ok().and_then(|mut answers| answers.pop()) {
                            Some(Ok(Renewed::Held(grant))) if Instant::now() < until => {
                                until = until.max(deadline(sent, &grant));
                            }
                            Some(Ok(Renewed::Gone(_))) => {
                                until = until.min(Instant::now());
                            }
                            _ => {}
                        }
                    }
                    if dice.below(3) == 0 {
                        tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
                    }
                    until = until.min(Instant::now());
                    beliefs.push(Belief { mode, fence: grant.fence, called, from, until });
                    break;
                }
                Ok(Ok(Attempt::Gone(_))) => break,
                Ok(Ok(_)) => claim.first = false,
                Ok(Err(_)) | Err(_) => claim.repeat = true,
            }
            tokio::time::sleep(Duration::from_millis(dice.below(30))).await;
        }
        let mut release = release(&claim);
        release.unanswered = (claim.repeat || dice.below(4) == 0).then_some(claim.ttl);
        if dice.below(5) > 0 {
            let _ = tokio::time::timeout(Duration::from_secs(5), quorum.release(&release)).await;
        }
        tokio::time::sleep(Duration::from_millis(dice.below(50))).await;
    }
    beliefs
}

/// What happens to a call while a node is in this mood.
fn act(mood: u64, random: u64) -> Act {
    let time = Duration::from_millis(random % 1500);
    match (mood, random % 10) {
        (0, _) | (1, 2..) => Act::SlowBefore(Duration::from_micros(random % 3000)),
        (1, _) => Act::LostAfter(ErrorKind::NetworkTimeout),
        (2, 0..3) => Act::Late(time * 2),
        (2, 3..6) => Act::Slow(time),
        (2, 6..8) => Act::SlowBefore(time),
        (2, _) => Act::NeverAfter,
        (3, _) => Act::Fail(ErrorKind::Unavailable),
        _ => Act::Never,
    }
}

async fn history(seed: u64) -> (usize, usize) {
    let dice = Dice::new(seed);
    let cluster = Rc::new(Cluster::new(3 + (seed % 3) as usize));
    let end = Instant::now() + Duration::from_secs(40);
    let tasks: Vec<_> = (0..6)
        .map(|task| {
            let dice = Dice::new(seed * 100 + task);
            tokio::task::spawn_local(come_and_go(Rc::clone(&cluster), dice, end))
        })
        .collect();
    while Instant::now() < end {
        // Now and then some nodes change their mood; two of five are well most of the time.
        for (node, faulty) in cluster.nodes.iter().enumerate() {
            let mood = if dice.below(3) > 0 { 0 } else { 1 + dice.below(4) };
            for verb in VERBS {
                let mut state = dice.below(1 << 30) + node as u64;
                faulty.script(verb, move |_| {
                    state = next(state);
                    act(mood, state >> 33)
                });
            }
        }
        tokio::time::sleep(Duration::from_millis(100 + dice.below(2000))).await;
    }
    let mut beliefs = Vec::new();
    for task in tasks {
        beliefs.extend(task.await.unwrap());
    }
    judge(seed, &mut beliefs)
}

/// How many grants there were, and how many followed the grant of another.
fn judge(seed: u64, beliefs: &mut [Belief]) -> (usize, usize) {
    beliefs.sort_unstable_by_key(|belief| belief.from);
    let mut followed = 0;
    for (place, one) in beliefs.iter().enumerate() {
        for other in &beliefs[place + 1..] {
            let excluded = one.mode == Mode::Exclusive || other.mode == Mode::Exclusive;
            let together = other.from < one.until && other.until > other.from;
            assert!(!(excluded && together), "seed {seed}: two believe: {one:?} {other:?}");
            if one.from < other.called {
                followed += 1;
                assert!(other.fence > one.fence, "seed {seed}: fences fall: {one:?} {other:?}");
            }
        }
    }
    (beliefs.len(), followed)
}

#[test]
fn nobody_believes_beside_another_whatever_the_nodes_do() {
    let (mut grants, mut followed) = (0, 0);
    for seed in 1..=10 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let local = tokio::task::LocalSet::new();
        let (more, pairs) = runtime.block_on(local.run_until(history(seed)));
        (grants, followed) = (grants + more, followed + pairs);
    }
    println!("{grants} grants, {followed} pairs in order");
    assert!(grants > 1000 && followed > 50_000, "{grants} grants, {followed} pairs show little");
}
