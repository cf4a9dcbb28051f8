//! What a lock protects: a resource that accepts a write only if its fence is at least the highest seen. It also
//! records what the lock promised, so that a breach is seen even where the fence would have stopped the damage.

use std::time::{Duration, Instant};

use leasehold::Fence;
use parking_lot::Mutex;

/// One protected resource.
#[derive(Debug, Default)]
pub(super) struct Resource(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    mark: Fence,
    accepted: u64,
    rejected: u64,
    /// The highest fence of all answered grants.
    granted: Fence,
    /// The holder by its own belief, and until when.
    holder: Option<(Fence, Instant)>,
    /// Two clients that believed to hold the lock at once, or a fence not above one granted before the acquire began.
    violations: u64,
    /// When the last holder was about to release.
    left: Option<Instant>,
}

impl Resource {
    /// The fence of an acquire that begins now must be above this.
    pub(super) fn floor(&self) -> Fence {
        self.0.lock().granted
    }

    /// A grant was answered; its holder relies on it until then. Returns how long the lock was free before, if known.
    pub(super) fn granted(&self, fence: Fence, floor: Fence, believed_until: Instant) -> Option<Duration> {
        let mut seen = self.0.lock();
        let now = Instant::now();
        let together = seen.holder.is_some_and(|(_, until)| now < until) && now < believed_until;
        seen.violations += u64::from(together) + u64::from(fence <= floor);
        seen.granted = seen.granted.max(fence);
        seen.holder = Some((fence, believed_until));
        seen.left.take().map(|left| now.duration_since(left))
    }

    /// A renewal was answered.
    pub(super) fn renewed(&self, fence: Fence, believed_until: Instant) {
        let mut seen = self.0.lock();
        let now = Instant::now();
        match seen.holder {
            Some((held, _)) if held == fence => seen.holder = Some((fence, believed_until)),
            Some((_, until)) => seen.violations += u64::from(now < until && now < believed_until),
            None => {}
        }
    }

    /// The holder knows that it lost the lock.
    pub(super) fn lost(&self, fence: Fence) {
        let mut seen = self.0.lock();
        if seen.holder.is_some_and(|(held, _)| held == fence) {
            seen.holder = None;
        }
    }

    /// A write. Returns whether it is accepted.
    pub(super) fn write(&self, fence: Fence) -> bool {
        let mut seen = self.0.lock();
        let taken = fence >= seen.mark;
        if taken {
            seen.mark = fence;
            seen.accepted += 1;
        } else {
            seen.rejected += 1;
        }
        taken
    }

    /// The holder is about to release.
    pub(super) fn leave(&self, fence: Fence) {
        let mut seen = self.0.lock();
        if seen.holder.is_some_and(|(held, _)| held == fence) {
            (seen.left, seen.holder) = (Some(Instant::now()), None);
        }
    }

    pub(super) fn accepted(&self) -> u64 {
        self.0.lock().accepted
    }

    pub(super) fn rejected(&self) -> u64 {
        self.0.lock().rejected
    }

    pub(super) fn violations(&self) -> u64 {
        self.0.lock().violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_at_once_and_fences_that_do_not_rise_are_seen() {
        let (resource, soon) = (Resource::default(), Instant::now() + Duration::from_secs(60));
        resource.granted(Fence::new(5), resource.floor(), soon);
        assert_eq!(resource.violations(), 0);
        resource.leave(Fence::new(5));
        resource.granted(Fence::new(6), Fence::new(5), soon);
        assert_eq!(resource.violations(), 0);
        resource.granted(Fence::new(7), Fence::new(6), soon);
        assert_eq!(resource.violations(), 1, "two at once");
        resource.leave(Fence::new(7));
        resource.granted(Fence::new(7), Fence::new(7), soon);
        assert_eq!(resource.violations(), 2, "a fence twice");
        assert!(resource.write(Fence::new(7)) && !resource.write(Fence::new(6)));
        resource.renewed(Fence::new(6), soon);
        assert_eq!(resource.violations(), 3, "renewed while another has it");
        resource.renewed(Fence::new(6), Instant::now());
        assert_eq!(resource.violations(), 3, "who hears of it too late does not believe it");
        resource.lost(Fence::new(7));
        resource.granted(Fence::new(8), Fence::new(7), soon);
        assert_eq!(resource.violations(), 3, "who knows that it is lost is no holder");
    }
}
