//! The tables of answers, for every combination of what nodes can answer.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::backend::{Attempt, Backend, Gone, Released, Renewed};
use testkit::faulty::{Act, Verb};

use crate::cluster::{Cluster, claim, later, release, renew};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Yes,
    Gone,
    Error,
    Nothing,
}

impl Says {
    fn act(self) -> Act {
        match self {
            Says::Yes => Act::Pass,
            Says::Gone => Act::Gone(Gone::NotFound),
            Says::Error => Act::Fail(ErrorKind::Unavailable),
            Says::Nothing => Act::Never,
        }
    }
}

/// Every combination for this many nodes.
fn combinations(nodes: u32) -> impl Iterator<Item = Vec<Says>> {
    let all = [Says::Yes, Says::Gone, Says::Error, Says::Nothing];
    (0..4_usize.pow(nodes))
        .map(move |number| (0..nodes).map(|node| all[number / 4_usize.pow(node) % 4]).collect())
}

fn count(says: &[Says], what: Says) -> usize {
    says.iter().filter(|said| **said == what).count()
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_held_gone_or_unknown_as_the_table_says() {
    for nodes in [3, 4, 5] {
        let majority = nodes as usize / 2 + 1;
        for says in combinations(nodes) {
            let cluster = Cluster::new(nodes as usize);
            let lease = claim("x");
            cluster.acquire(&lease).await.unwrap();
            for (node, says) in cluster.nodes.iter().zip(&says) {
                node.always(Verb::Renew, says.act());
            }
            let answer = renew(&cluster.quorum, &lease).await;
            let (yes, gone) = (count(&says, Says::Yes), count(&says, Says::Gone));
            let unknown = nodes as usize - yes - gone;
            let right = match &answer {
                Ok(Renewed::Held(_)) => yes >= majority,
                Ok(Renewed::Gone(Gone::NotFound)) => yes + unknown < majority,
                Ok(_) => false,
                Err(error) => {
                    let timeout = count(&says, Says::Nothing) > 0;
                    let kind = if timeout { ErrorKind::NetworkTimeout } else { ErrorKind::Unavailable };
                    error.kind() == kind && yes < majority && yes + unknown >= majority
                }
            };
            assert!(right, "{says:?}: {answer:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_done_gone_or_unknown_as_the_table_says() {
    for nodes in [3, 4, 5] {
        let majority = nodes as usize / 2 + 1;
        for says in combinations(nodes) {
            let cluster = Cluster::new(nodes as usize);
            let lease = claim("x");
            cluster.acquire(&lease).await.unwrap();
            for (node, says) in cluster.nodes.iter().zip(&says) {
                node.always(Verb::Release, says.act());
            }
            let answer = cluster.quorum.release(&release(&lease)).await;
            let (yes, gone) = (count(&says, Says::Yes), count(&says, Says::Gone));
            let unknown = nodes as usize - yes - gone;
            let expected =
                if yes >= majority || (yes > 0 && yes + gone >= majority && yes + unknown >= majority) {
                    Some(Released::Done)
                } else if yes + unknown < majority {
                    Some(Released::Gone(Gone::NotFound))
                } else {
                    None
                };
            assert_eq!(answer.as_ref().ok(), expected.as_ref(), "{says:?}: {answer:?}");
            if expected.is_none() {
                assert!(answer.unwrap_err().is_retryable(), "{says:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_majority_refused_is_released() {
    let cluster = Cluster::new(5);
    let lease = claim("x");
    cluster.acquire(&lease).await.unwrap();
    for node in 0..3 {
        cluster.nodes[node].plan(Verb::Renew, [Act::Gone(Gone::Expired)]);
    }
    let answer = renew(&cluster.quorum, &lease).await.unwrap();
    assert_eq!(answer, Renewed::Gone(Gone::Expired));
    later().await;
    assert_eq!(cluster.held(&lease.name).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_broken_majority_is_an_error_and_never_contention() {
    let cluster = Cluster::new(5);
    let holder = claim("x");
    cluster.acquire(&holder).await.unwrap();
    let try_it = async || cluster.quorum.try_acquire(&claim("x")).await;
    cluster.kill(0);
    cluster.set(1, Act::Never);
    assert!(matches!(try_it().await.unwrap(), Attempt::Busy(busy) if busy.owner.as_deref() == Some("test")));
    cluster.kill(2);
    let error = try_it().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // If all nodes give the same error, that is the error.
    (0..5).for_each(|node| cluster.set(node, Act::Fail(ErrorKind::AuthFailed)));
    assert_eq!(try_it().await.unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(renew(&cluster.quorum, &holder).await.unwrap_err().kind(), ErrorKind::AuthFailed);
    // A claim whose own confirmed lease may exist does not get the answer that another client is in the way.
    (0..5).for_each(|node| cluster.revive(node));
    (0..3).for_each(|node| cluster.kill(node));
    assert_eq!(cluster.quorum.try_acquire(&holder).await.unwrap_err().kind(), ErrorKind::Unavailable);
    (0..3).for_each(|node| cluster.revive(node));
    assert!(matches!(renew(&cluster.quorum, &holder).await.unwrap(), Renewed::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn one_undecided_lease_does_not_delay_the_rest_of_its_batch() {
    let cluster = Cluster::new(3);
    let (mut good, bad) = (claim("good"), claim("bad"));
    good.ttl = Duration::from_millis(400);
    cluster.acquire(&good).await.unwrap();
    cluster.acquire(&bad).await.unwrap();
    cluster.memory[0].release(&release(&bad)).await.unwrap();
    cluster.set(2, Act::Never);
    let started = tokio::time::Instant::now();
    let batch =
        [&good, &bad].map(|claim| leasehold::backend::Renewal::new(claim.name.clone(), claim.id, claim.ttl));
    let answers = cluster.quorum.renew(&batch).await;
    assert!(matches!(answers[0], Ok(Renewed::Held(_))), "{answers:?}");
    assert!(answers[1].as_ref().is_err_and(|error| error.is_retryable()), "{answers:?}");
    assert!(started.elapsed() <= good.ttl / 6, "{:?}", started.elapsed());
}
