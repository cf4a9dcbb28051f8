//! The notes that a guard writes: with a renewal, or with its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Guard;
use crate::backend::{Grant, NewNote, Note, Query, Released};
use crate::engine::held::GuardState;
use crate::engine::telemetry;
use crate::error::{Error, ErrorKind, Result};

/// The notes that one guard writes, as far as it matters if another process adopts its lease: the revisions of that
/// one's notes begin above, at a multiple of this. Every adoption renews the lease, so each one has its own multiple.
const NOTES_OF_A_GUARD: u64 = 1 << 20;

/// The revision before the first note of a guard with this grant.
pub(super) fn first_revision(grant: &Grant) -> u64 {
    grant.renewals.saturating_mul(NOTES_OF_A_GUARD)
}

impl Guard {
    /// Renews the lease and writes the note of the name in the same step. Returns when the store has both.
    ///
    /// A name keeps one note, of at most 1 KiB, until its fence counter is forgotten: also after the release, for
    /// [`Locks::note`](crate::Locks::note) and for everything that shows the name. An empty text clears it. A later
    /// note replaces an earlier one; that of a holder with a higher fence stays, which matters only for locks with
    /// several holders: this call then renews the lease, and the note of the other holder counts as the later one.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not have renewed and written. A later note replaces this one all the same, even if
    /// this one arrives late.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 1 KiB or a NUL character; `Unsupported` where the store keeps no notes; both
    /// before anything is sent. `Lost` if the lease is gone: nothing was written, unless the answer came too late. Faults
    /// of the store, which leave the guard `AtRisk`; the note may be written or not, and calling again is harmless.
    pub async fn write_note(&self, text: impl Into<Arc<str>>) -> Result<()> {
        let note = self.new_note(text)?;
        let (mut renewal, sent) = self.cell.renewal(self.cell.ttl(), self.clock());
        renewal.note = Some(note);
        self.ask(renewal, sent).await.map(drop)
    }

    /// Makes the next note to write.
    fn new_note(&self, text: impl Into<Arc<str>>) -> Result<NewNote> {
        self.client.info.require_notes()?;
        let note = NewNote::new(text, 0)?;
        self.check()?;
        let revision = self.noted.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(NewNote { revision, ..note })
    }

    /// The note that the name has now.
    async fn stored_note(&self) -> Result<Option<Note>> {
        let query = Query::Name(self.cell.name.clone());
        let look = self.client.backend.inspect(&query);
        let page = tokio::time::timeout(self.options.request_timeout, look).await.map_err(|_| {
            Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time when asked for the note")
        })??;
        Ok(page.items.into_iter().next().and_then(|info| info.note))
    }

    /// Writes the note of the name and releases the lease in the same step, as [`write_note`](Guard::write_note) and
    /// [`release`](Guard::release) do. `Released`: the store has both. `Lost`: the store no longer had the lease, and no
    /// note was found that this guard has written.
    ///
    /// # Cancel safety
    /// If dropped, the lease is released in the background, without the note; the note may be written or not.
    ///
    /// # Errors
    /// As [`write_note`](Guard::write_note) and [`release`](Guard::release). After `InvalidArgument` or `Unsupported`
    /// the lease is released in the background, without a note, as if the guard had been dropped.
    pub async fn release_with_note(mut self, text: impl Into<Arc<str>>) -> Result<GuardState> {
        let note = match self.new_note(text) {
            Ok(note) => note,
            // The release acts only on this very lease, so it does no harm.
            Err(error) if error.kind() == ErrorKind::Lost => {
                return self.release().await.map(|_| GuardState::Lost);
            }
            Err(error) => return Err(error),
        };
        let revision = note.revision;
        let (_, held_for) = self.end();
        let mut job = self.release_job();
        job.release.note = Some(note);
        // Not held: after a try without an answer, a lease that is gone was released, with the note, or has expired.
        job.held = false;
        let tries = AtomicU64::new(0);
        let answer = job.send_counted(&*self.client.backend, self.clock(), &tries).await;
        self.done = true;
        telemetry::released(&job.release.name, &answer, Some(held_for));
        match answer? {
            Released::Done => Ok(GuardState::Released),
            Released::Gone(_) if tries.into_inner() <= 1 => Ok(GuardState::Lost),
            Released::Gone(_) => {
                let wrote = |note: Note| note.fence == self.cell.fence && note.revision == revision;
                let released = self.stored_note().await?.is_some_and(wrote);
                Ok(if released { GuardState::Released } else { GuardState::Lost })
            }
        }
    }
}
