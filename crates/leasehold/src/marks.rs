//! Marks: the highest fence that a protected resource has seen, and which fences may raise it.

// What belongs here: the words for enforcing fences. Who keeps marks: `coordination/fenced.rs`,
// `coordination/fencing.rs`, and a file `marks.rs` in the folder of each store that can.
// Before changing anything here: `cargo test -p leasehold --all-features --test fencing`.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;

use crate::backend::Mode;
use crate::client::guard::Guard;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::name::Name;

/// The fence of an **exclusive** holder: the only kind of fence that may raise a mark.
///
/// Readers and permit holders are inside together. If each of them raised the mark, the one with the lower fence would
/// be refused although it rightfully holds the lock. So a guard or a lease gives this only while it is exclusive, and
/// only if its store has fences.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("memory:").await?;
/// let writer = locks.mutex("report").lock().await?;
/// assert_eq!(writer.write_fence()?.get(), writer.fence());
/// writer.release().await?;
///
/// let reader = locks.rwlock("report").read().await?;
/// assert!(reader.write_fence().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteFence(Fence);

impl WriteFence {
    /// A fence that came from elsewhere, such as a header or a message. Its sender vouches that it holds the lock
    /// exclusively; a number does not show that.
    ///
    /// # Errors
    /// `InvalidArgument` for the fence of a store without fences, and above [`Fence::MAX`].
    pub fn received(fence: Fence) -> Result<Self> {
        if fence.is_unfenced() {
            return Err(Error::invalid(
                "fence 0 comes from a store without fences and protects nothing; use a store with fences",
            ));
        }
        if fence > Fence::MAX {
            return Err(Error::invalid(format!("no store gives a fence above {}", Fence::MAX)));
        }
        Ok(WriteFence(fence))
    }

    /// The fence itself.
    pub const fn get(self) -> Fence {
        self.0
    }

    fn held(fence: Fence, mode: Mode) -> Result<Self> {
        if mode != Mode::Exclusive {
            return Err(Error::invalid(format!(
                "only an exclusive holder may raise a mark, and this lease is held as {mode}; write under a mutex or \
                 the write side of a reader-writer lock"
            )));
        }
        WriteFence::received(fence)
    }
}

impl fmt::Display for WriteFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads any form of a fence: a plain number, or 15 digits as [`Fence`] prints.
impl FromStr for WriteFence {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        WriteFence::received(text.parse()?)
    }
}

impl Guard {
    /// The fence to send with a write.
    ///
    /// # Errors
    /// `InvalidArgument` unless this guard is exclusive now and its store has fences.
    pub fn write_fence(&self) -> Result<WriteFence> {
        WriteFence::held(self.fence(), self.mode())
    }
}

impl Lease {
    /// The fence to send with a write.
    ///
    /// # Errors
    /// `InvalidArgument` unless the lease is exclusive and its store has fences.
    pub fn write_fence(&self) -> Result<WriteFence> {
        WriteFence::held(self.fence, self.mode)
    }
}

/// A write came too late: the resource has seen a higher fence, so the writer has lost its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StaleFence {
    /// The fence of the refused writer.
    pub fence: Fence,
    /// The highest fence that the resource has seen.
    pub highest: Fence,
}

impl StaleFence {
    /// The comparison itself: below the highest is stale, equal is the same holder again.
    pub(crate) fn compare(fence: WriteFence, highest: Fence) -> Result<(), StaleFence> {
        let fence = fence.get();
        if fence < highest { Err(StaleFence { fence, highest }) } else { Ok(()) }
    }
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StaleFence { fence, highest } = self;
        write!(f, "fence {fence} is stale: the resource has seen {highest}; the writer has lost its lock")
    }
}

impl std::error::Error for StaleFence {}

/// The answer to a check of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Checked {
    /// No higher fence was seen. The mark is at this fence now.
    Current,
    /// A higher fence was seen. Nothing changed.
    Stale(StaleFence),
}

impl Checked {
    pub(crate) fn against(fence: WriteFence, highest: Fence) -> Self {
        match StaleFence::compare(fence, highest) {
            Ok(()) => Checked::Current,
            Err(stale) => Checked::Stale(stale),
        }
    }
}

/// Keeps the highest fence of each resource.
///
/// A check apart from the write leaves a gap: a writer may be paused between the two. See `docs/fencing.md` for what
/// that can and cannot protect.
#[async_trait]
pub trait Marks: fmt::Debug + Send + Sync + 'static {
    /// Compares the fence with the resource's mark and raises the mark to it, in one atomic step. An equal fence
    /// passes: the same holder writes again. The answer is kept as durably as a lease of the store.
    ///
    /// # Cancel safety
    /// If dropped, the mark may be raised or not. Checking again is harmless.
    ///
    /// # Errors
    /// Faults of the store; a stale fence is an answer.
    async fn check(&self, resource: &Name, fence: WriteFence) -> Result<Checked>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fences_that_a_store_can_give_are_received() {
        for bad in [0, Fence::MAX.get() + 1, u64::MAX] {
            assert!(WriteFence::received(Fence::new(bad)).is_err(), "{bad}");
        }
        for good in [1, Fence::MAX.get()] {
            assert_eq!(WriteFence::received(Fence::new(good)).unwrap().get().get(), good);
        }
    }

    #[test]
    fn shared_and_permit_leases_have_no_write_fence() {
        for mode in [Mode::Shared, Mode::Permit { limit: 3 }] {
            let error = WriteFence::held(Fence::new(7), mode).unwrap_err();
            assert!(error.message().contains(&mode.to_string()), "{error}");
        }
        assert!(WriteFence::held(Fence::new(7), Mode::Exclusive).is_ok());
        assert!(WriteFence::held(Fence::UNFENCED, Mode::Exclusive).is_err());
    }

    #[test]
    fn equal_fence_is_current_and_lower_is_stale() {
        let fence = |number| WriteFence::received(Fence::new(number)).unwrap();
        assert_eq!(Checked::against(fence(7), Fence::new(7)), Checked::Current);
        let Checked::Stale(stale) = Checked::against(fence(6), Fence::new(7)) else { panic!("not stale") };
        assert_eq!((stale.fence, stale.highest), (Fence::new(6), Fence::new(7)));
        assert!(stale.to_string().contains("000000000000006 is stale"), "{stale}");
    }
}
