//! Notes on a quorum: a write counts when a majority has it, and a read shows the latest of them.

use leasehold::backend::{Backend, NewNote, Note, Query, Release, Released, Renewal, Renewed};
use leasehold::{ErrorKind, GuardState, Result};
use testkit::faulty::{Act, Verb};

use crate::cluster::{Cluster, TTL, claim, granted, later, name, release};

async fn write(
    cluster: &Cluster,
    claim: &leasehold::backend::Claim,
    text: &str,
    revision: u64,
) -> Result<Renewed> {
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, TTL);
    renewal.note = Some(NewNote::new(text, revision).unwrap());
    cluster.quorum.renew(&[renewal]).await.remove(0)
}

async fn note(cluster: &Cluster) -> Option<Note> {
    let page = cluster.other().inspect(&Query::Name(name("x"))).await.unwrap();
    page.items.into_iter().next().unwrap().note
}

fn text(note: Option<Note>) -> Option<String> {
    note.map(|note| note.text.to_string())
}

#[tokio::test(start_paused = true)]
async fn the_later_of_two_notes_is_read_whichever_node_missed_it() {
    for missed in 0..3 {
        let cluster = Cluster::new(3);
        let held = claim("x");
        let fence = cluster.acquire(&held).await.unwrap().fence;
        assert!(matches!(write(&cluster, &held, "first", 1).await, Ok(Renewed::Held(_))));
        later().await;
        cluster.kill(missed);
        assert!(matches!(write(&cluster, &held, "second", 2).await, Ok(Renewed::Held(_))));
        cluster.revive(missed);
        // One node has the first, and one of the others is away: a majority answers all the same.
        for away in (0..3).filter(|node| *node != missed) {
            cluster.kill(away);
            assert_eq!(
                note(&cluster).await,
                Some(Note::new("second", fence, 2)),
                "{missed} missed it, {away} is away"
            );
            cluster.revive(away);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cleared_note_stays_cleared_though_a_node_has_the_old_one() {
    let cluster = Cluster::new(3);
    let held = claim("x");
    cluster.acquire(&held).await.unwrap();
    assert!(matches!(write(&cluster, &held, "old", 1).await, Ok(Renewed::Held(_))));
    later().await;
    cluster.kill(0);
    assert!(matches!(write(&cluster, &held, "", 2).await, Ok(Renewed::Held(_))));
    cluster.revive(0);
    cluster.kill(1);
    assert_eq!(text(note(&cluster).await).as_deref(), Some(""));
    assert_eq!(cluster.client().note("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_note_that_too_few_nodes_have_is_an_error() {
    let cluster = Cluster::new(3);
    let held = claim("x");
    let fence = cluster.acquire(&held).await.unwrap().fence;
    later().await;
    cluster.kill(1);
    cluster.kill(2);
    let failed = write(&cluster, &held, "lonely", 1).await.unwrap_err();
    assert!(failed.is_retryable(), "{failed}");
    cluster.revive(1);
    cluster.revive(2);
    assert!(matches!(write(&cluster, &held, "again", 2).await, Ok(Renewed::Held(_))));
    assert_eq!(note(&cluster).await, Some(Note::new("again", fence, 2)));
}

#[tokio::test(start_paused = true)]
async fn a_release_counts_only_if_a_majority_has_its_note() {
    let cluster = Cluster::new(3);
    let held = claim("x");
    let fence = cluster.acquire(&held).await.unwrap().fence;
    later().await;
    // The lease is gone from one node, and another does not answer: released, but the note may be on one node only.
    cluster.memory[1].revoke(&name("x"), true, None).await.unwrap();
    cluster.kill(2);
    let mut release = Release::new(held.name.clone(), held.id);
    release.fence = Some(fence);
    let mut noted = release.clone();
    noted.note = Some(NewNote::new("done", 1).unwrap());
    let error = cluster.quorum.release(&noted).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("stored the note"), "{error}");

    let cluster = Cluster::new(3);
    let held = claim("x");
    cluster.acquire(&held).await.unwrap();
    later().await;
    cluster.kill(2);
    let mut noted = Release::new(held.name.clone(), held.id);
    noted.note = Some(NewNote::new("done", 1).unwrap());
    assert_eq!(cluster.quorum.release(&noted).await.unwrap(), Released::Done);
    assert_eq!(text(note(&cluster).await).as_deref(), Some("done"));
}

#[tokio::test(start_paused = true)]
async fn a_guard_leaves_its_note_while_a_node_is_dead() {
    let cluster = Cluster::new(3);
    let locks = cluster.client();
    assert!(locks.info().notes);
    let guard = locks.mutex("x").lock().await.unwrap();
    cluster.kill(1);
    guard.write_note("at work").await.unwrap();
    cluster.nodes[0].plan(Verb::Release, [Act::LostAfter(ErrorKind::Unavailable)]);
    assert_eq!(guard.release_with_note("done").await.unwrap(), GuardState::Released);
    assert_eq!(text(cluster.client().note("x").await.unwrap()).as_deref(), Some("done"));
}

/// A node that missed the confirmation of a grant has the lease with a fence of its own, here a higher one.
#[tokio::test(start_paused = true)]
async fn no_note_is_written_under_a_fence_of_one_node_alone() {
    let cluster = Cluster::new(3);
    let held = claim("x");
    let fence = cluster.acquire(&held).await.unwrap().fence;
    later().await;
    cluster.memory[2].release(&release(&held)).await.unwrap();
    let stray = granted(cluster.memory[2].try_acquire(&held).await.unwrap()).fence;
    assert!(stray > fence);
    for (text, revision) in [("first", 1), ("second", 2)] {
        assert!(matches!(write(&cluster, &held, text, revision).await, Ok(Renewed::Held(_))));
        assert_eq!(note(&cluster).await, Some(Note::new(text, fence, revision)));
    }
    let mut noted = release(&held);
    noted.note = Some(NewNote::new("done", 3).unwrap());
    assert_eq!(cluster.quorum.release(&noted).await.unwrap(), Released::Done);
    assert_eq!(note(&cluster).await, Some(Note::new("done", fence, 3)));
}
