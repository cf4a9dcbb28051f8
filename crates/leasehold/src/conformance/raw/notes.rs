//! Checks of the note of a name: promise 11.

use crate::backend::{
    Backend as _, Claim, Gone, Liveness, MAX_NOTE_BYTES, MAX_NOTE_REVISION, Mode, NewNote, Note, Query,
    Release, Renewal,
};
use crate::conformance::trial::{
    EXPIRED, NOT_FOUND, Shown, Side, Trial, busy, done, fails, granted, held, not_done, not_held,
};
use crate::conformance::{Failure, check_list, ensure};
use crate::error::ErrorKind;
use crate::fence::Fence;
use crate::name::Name;

use super::exclusion::permit;
use super::inspection::list_all;

check_list! { Raw:
    a_note_is_written_with_a_renewal_and_everybody_sees_it => "11", Notes;
    a_note_is_written_with_a_release_and_stays => "11", Notes;
    a_refused_renewal_or_release_writes_no_note => "4 11 I5", Notes;
    a_lease_that_is_over_writes_no_note => "3 11 I6", Notes, Ttl;
    a_late_duplicate_of_a_note_does_not_replace_a_later_one => "11 I10", Notes;
    a_note_of_a_lower_fence_does_not_replace_one_of_a_higher => "11", Notes, Shared;
    a_permit_writes_a_note_like_any_lease => "11", Notes, Permits(2);
    an_empty_text_clears_a_note => "11", Notes;
    a_note_keeps_its_text_exactly => "11", Notes;
    a_note_in_a_batch_goes_to_its_own_name => "4 11", Notes;
    the_lists_show_notes_too => "11", Notes, Ttl;
    a_place_in_the_queue_writes_no_note => "11", Notes, Fifo, Ttl;
    a_store_without_notes_refuses_them_and_does_nothing => "11", NoNotes;
}

fn new(text: &str, revision: u64) -> Result<NewNote, Failure> {
    Ok(NewNote::new(text, revision)?)
}

fn writing(claim: &Claim, text: &str, revision: u64) -> Result<Renewal, Failure> {
    let mut renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
    renewal.note = Some(new(text, revision)?);
    Ok(renewal)
}

fn leaving(claim: &Claim, text: &str, revision: u64) -> Result<Release, Failure> {
    let mut release = Release::new(claim.name.clone(), claim.id);
    release.note = Some(new(text, revision)?);
    Ok(release)
}

async fn seen(side: &Side, name: &Name) -> Result<Option<Note>, Failure> {
    Ok(side.view(name).await?.note)
}

/// Checks that both clients see this note.
async fn is_note(t: &Trial, name: &Name, text: &str, fence: Fence, revision: u64) -> Shown {
    let expected = Note::new(text, fence, revision);
    for side in [&t.a, &t.b] {
        let note = seen(side, name).await?;
        ensure!(note.as_ref() == Some(&expected), "the note is {note:?}, and not {expected:?}");
    }
    Ok(())
}

async fn a_note_is_written_with_a_renewal_and_everybody_sees_it(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    ensure!(seen(&t.b, &claim.name).await?.is_none(), "a name that was never used has a note");
    let grant = granted(t.a.try_acquire(&claim).await)?;
    ensure!(seen(&t.b, &claim.name).await?.is_none(), "a grant has written a note");
    let renewed = held(t.a.renew_one(&writing(&claim, "one", 1)?).await)?;
    ensure!(renewed.renewals == grant.renewals + 1, "writing a note must renew, once: {renewed:?}");
    is_note(&t, &claim.name, "one", grant.fence, 1).await?;
    // The same write again, and an ordinary renewal, leave it as it is.
    held(t.a.renew_one(&writing(&claim, "one", 1)?).await)?;
    held(t.a.keep(&claim).await)?;
    is_note(&t, &claim.name, "one", grant.fence, 1).await?;
    held(t.a.renew_one(&writing(&claim, "two", 2)?).await)?;
    is_note(&t, &claim.name, "two", grant.fence, 2).await
}

async fn a_note_is_written_with_a_release_and_stays(t: Trial) -> Shown {
    let name = t.name();
    let claim = t.claim(&name, Mode::Exclusive);
    let fence = granted(t.a.try_acquire(&claim).await)?.fence;
    held(t.a.renew_one(&writing(&claim, "at work", 1)?).await)?;
    done(t.a.release(&leaving(&claim, "all done", 2)?).await)?;
    is_note(&t, &name, "all done", fence, 2).await?;
    // A repeat finds no lease, and writes nothing.
    not_done(t.a.release(&leaving(&claim, "again", 3)?).await, NOT_FOUND)?;
    is_note(&t, &name, "all done", fence, 2).await?;
    // The next holder sees it, and it stays while that one writes none.
    let next = t.claim(&name, Mode::Exclusive);
    let later = granted(t.b.try_acquire(&next).await)?.fence;
    held(t.b.keep(&next).await)?;
    is_note(&t, &name, "all done", fence, 2).await?;
    // A revision counts only among the notes of one lease.
    held(t.b.renew_one(&writing(&next, "mine", 1)?).await)?;
    is_note(&t, &name, "mine", later, 1).await?;
    done(t.b.end(&next).await)?;
    is_note(&t, &name, "mine", later, 1).await
}

async fn a_refused_renewal_or_release_writes_no_note(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let fence = granted(t.a.try_acquire(&claim).await)?.fence;
    held(t.a.renew_one(&writing(&claim, "kept", 1)?).await)?;
    let wrong = Some(Fence::new(fence.get() + 1));
    let (mut renewal, mut release) = (writing(&claim, "wrong", 9)?, leaving(&claim, "wrong", 9)?);
    (renewal.fence, release.fence) = (wrong, wrong);
    not_held(t.a.renew_one(&renewal).await, NOT_FOUND)?;
    not_done(t.a.release(&release).await, NOT_FOUND)?;
    let other = t.claim(&claim.name, Mode::Exclusive);
    not_held(t.b.renew_one(&writing(&other, "wrong", 9)?).await, NOT_FOUND)?;
    not_done(t.b.release(&leaving(&other, "wrong", 9)?).await, NOT_FOUND)?;
    // A shortening that does nothing writes nothing either.
    if t.judges("shortening", t.info.liveness == Liveness::Ttl) {
        let mut late = writing(&claim, "wrong", 9)?;
        late.shorten = Some(77);
        held(t.a.renew_one(&late).await)?;
    }
    is_note(&t, &claim.name, "kept", fence, 1).await?;
    // The same requests with the right fence write.
    (renewal.fence, release.fence) = (Some(fence), Some(fence));
    held(t.a.renew_one(&renewal).await)?;
    is_note(&t, &claim.name, "wrong", fence, 9).await?;
    done(t.a.release(&release).await)
}

async fn a_lease_that_is_over_writes_no_note(t: Trial) -> Shown {
    let name = t.name();
    let old = t.brief(&name, Mode::Exclusive);
    granted(t.a.try_acquire(&old).await)?;
    let next = t.claim(&name, Mode::Exclusive);
    let (later, _) = t.take_over(&t.b, &next).await?;
    held(t.b.renew_one(&writing(&next, "new", 1)?).await)?;
    not_held(t.a.renew_one(&writing(&old, "old", 9)?).await, EXPIRED)?;
    not_done(t.a.release(&leaving(&old, "old", 9)?).await, EXPIRED)?;
    is_note(&t, &name, "new", later.fence, 1).await?;
    done(t.b.end(&next).await)?;
    // Nor does one that was taken away.
    if t.judges("revocation", t.info.revoke) {
        let claim = t.claim(&name, Mode::Exclusive);
        granted(t.a.try_acquire(&claim).await)?;
        t.b.revoke(&name, true, None).await?;
        not_held(t.a.renew_one(&writing(&claim, "old", 9)?).await, &[Gone::Revoked])?;
        not_done(t.a.release(&leaving(&claim, "old", 9)?).await, &[Gone::Revoked])?;
        is_note(&t, &name, "new", later.fence, 1).await?;
    }
    Ok(())
}

async fn a_late_duplicate_of_a_note_does_not_replace_a_later_one(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let fence = granted(t.a.try_acquire(&claim).await)?.fence;
    held(t.a.renew_one(&writing(&claim, "early", 1)?).await)?;
    held(t.a.renew_one(&writing(&claim, "late", 2)?).await)?;
    held(t.b.renew_one(&writing(&claim, "early", 1)?).await)?;
    is_note(&t, &claim.name, "late", fence, 2).await?;
    done(t.b.release(&leaving(&claim, "early", 1)?).await)?;
    is_note(&t, &claim.name, "late", fence, 2).await
}

async fn a_note_of_a_lower_fence_does_not_replace_one_of_a_higher(t: Trial) -> Shown {
    let name = t.name();
    let (old, new) = (t.claim(&name, Mode::Shared), t.claim(&name, Mode::Shared));
    let low = granted(t.a.try_acquire(&old).await)?.fence;
    let high = granted(t.b.try_acquire(&new).await)?.fence;
    held(t.a.renew_one(&writing(&old, "of the older", 5)?).await)?;
    is_note(&t, &name, "of the older", low, 5).await?;
    held(t.b.renew_one(&writing(&new, "of the younger", 1)?).await)?;
    is_note(&t, &name, "of the younger", high, 1).await?;
    // The older one is renewed and released all the same.
    let before = held(t.a.keep(&old).await)?;
    let after = held(t.a.renew_one(&writing(&old, "too late", 6)?).await)?;
    ensure!(after.renewals == before.renewals + 1, "it was not renewed: {before:?}, then {after:?}");
    is_note(&t, &name, "of the younger", high, 1).await?;
    done(t.a.release(&leaving(&old, "too late", 7)?).await)?;
    done(t.b.end(&new).await)?;
    is_note(&t, &name, "of the younger", high, 1).await
}

async fn a_permit_writes_a_note_like_any_lease(t: Trial) -> Shown {
    let name = t.name();
    let (one, other) = (t.claim(&name, permit(2)), t.claim(&name, permit(2)));
    let low = granted(t.a.try_acquire(&one).await)?.fence;
    let high = granted(t.b.try_acquire(&other).await)?.fence;
    held(t.a.renew_one(&writing(&one, "one", 1)?).await)?;
    is_note(&t, &name, "one", low, 1).await?;
    done(t.b.release(&leaving(&other, "other", 1)?).await)?;
    is_note(&t, &name, "other", high, 1).await
}

async fn an_empty_text_clears_a_note(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let fence = granted(t.a.try_acquire(&claim).await)?.fence;
    held(t.a.renew_one(&writing(&claim, "soon gone", 1)?).await)?;
    held(t.a.renew_one(&writing(&claim, "", 2)?).await)?;
    is_note(&t, &claim.name, "", fence, 2).await?;
    // What was cleared does not come back late.
    held(t.a.renew_one(&writing(&claim, "soon gone", 1)?).await)?;
    is_note(&t, &claim.name, "", fence, 2).await?;
    done(t.a.end(&claim).await)
}

async fn a_note_keeps_its_text_exactly(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let fence = granted(t.a.try_acquire(&claim).await)?.fence;
    let texts = [
        "x".repeat(MAX_NOTE_BYTES),
        "\u{1F600}".repeat(MAX_NOTE_BYTES / 4),
        "1:2:3 '\"\\%;$1 {}\r\n\t\u{1}\u{7f} \u{feff}e\u{301}".to_owned(),
        "  ".to_owned(),
        "0".to_owned(),
    ];
    let mut revision = 0;
    for text in &texts {
        revision += 1;
        held(t.a.renew_one(&writing(&claim, text, revision)?).await)?;
        is_note(&t, &claim.name, text, fence, revision).await?;
    }
    done(t.a.release(&leaving(&claim, "the highest revision", MAX_NOTE_REVISION)?).await)?;
    is_note(&t, &claim.name, "the highest revision", fence, MAX_NOTE_REVISION).await
}

async fn a_note_in_a_batch_goes_to_its_own_name(t: Trial) -> Shown {
    let mut batch = Vec::new();
    for n in 0..8 {
        let claim = t.claim(&t.name(), Mode::Exclusive);
        let fence = granted(t.a.try_acquire(&claim).await)?.fence;
        let mut renewal = writing(&claim, &format!("note {n}"), n)?;
        renewal.note = renewal.note.filter(|_| n % 2 == 0);
        batch.push((renewal, fence));
    }
    let renewals: Vec<Renewal> = batch.iter().map(|(renewal, _)| renewal.clone()).collect();
    for answer in t.a.renew(&renewals).await {
        held(answer)?;
    }
    for (renewal, fence) in batch {
        match renewal.note {
            Some(note) => is_note(&t, &renewal.name, &note.text, fence, note.revision).await?,
            None => {
                let note = seen(&t.b, &renewal.name).await?;
                ensure!(note.is_none(), "the note of another name: {note:?}");
            }
        }
    }
    Ok(())
}

async fn the_lists_show_notes_too(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    let fence = granted(t.a.try_acquire(&claim).await)?.fence;
    held(t.a.renew_one(&writing(&claim, "listed", 1)?).await)?;
    let expected = Some(Note::new("listed", fence, 1));
    let mut found = list_all(&t, claim.name.as_str(), 10).await?;
    if t.judges("finding a lease by its id", t.info.find_by_id) {
        found.extend(t.b.inspect(&Query::LeaseId(claim.id)).await?.items);
    }
    ensure!(!found.is_empty(), "the name is held, and not listed");
    for info in found {
        ensure!(info.note == expected, "a list shows the note {:?}, and not {expected:?}", info.note);
    }
    done(t.a.end(&claim).await)
}

async fn a_place_in_the_queue_writes_no_note(t: Trial) -> Shown {
    let name = t.name();
    let (holder, waiter) = (t.claim(&name, Mode::Exclusive), t.queued(&name, Mode::Exclusive));
    granted(t.a.try_acquire(&holder).await)?;
    busy(t.b.try_acquire(&waiter).await)?;
    not_held(t.b.renew_one(&writing(&waiter, "waiting", 1)?).await, NOT_FOUND)?;
    done(t.b.release(&leaving(&waiter, "gone home", 1)?).await)?;
    let note = seen(&t.a, &name).await?;
    ensure!(note.is_none(), "a waiter has written {note:?}");
    done(t.a.end(&holder).await)
}

async fn a_store_without_notes_refuses_them_and_does_nothing(t: Trial) -> Shown {
    let claim = t.claim(&t.name(), Mode::Exclusive);
    granted(t.a.try_acquire(&claim).await)?;
    fails(t.a.renew_one(&writing(&claim, "one", 1)?).await, ErrorKind::Unsupported)?;
    fails(t.a.release(&leaving(&claim, "two", 2)?).await, ErrorKind::Unsupported)?;
    held(t.a.keep(&claim).await)?;
    let note = seen(&t.b, &claim.name).await?;
    ensure!(note.is_none(), "a store without notes shows {note:?}");
    done(t.a.end(&claim).await)
}
