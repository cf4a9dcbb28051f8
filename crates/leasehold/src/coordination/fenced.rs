//! State of one process that refuses writers who have lost their lock.

use std::fmt;

use parking_lot::Mutex;

use crate::fence::Fence;
use crate::marks::{StaleFence, WriteFence};

/// A value that remembers the highest fence with which it was written, and refuses any lower one.
///
/// The comparison and the write are one step, so a writer that was paused for longer than its lease cannot overwrite
/// what a later holder wrote. An equal fence passes: the same holder writes again. Only a [`WriteFence`] can write,
/// which readers and permit holders do not have.
///
/// The value lives in this process, and so does the mark. State that others can reach needs a mark of its own;
/// `docs/fencing.md` shows one for databases, Redis and object stores.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Fenced;
///
/// let locks = leasehold::Locks::connect("memory:").await?;
/// let balance = Fenced::new(100);
///
/// let paused = locks.mutex("account").lock().await?;
/// let old = paused.write_fence()?;
/// paused.release().await?; // in place of a pause that outlasts the lease
///
/// let writer = locks.mutex("account").lock().await?;
/// balance.write(writer.write_fence()?, |balance| *balance = 200).unwrap();
/// assert!(balance.write(old, |balance| *balance = 50).is_err());
/// assert_eq!(balance.read(|balance| *balance), 200);
/// # Ok(())
/// # }
/// ```
pub struct Fenced<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    value: T,
    highest: Fence,
}

impl<T> Fenced<T> {
    /// A value that was not written yet: any fence may write it.
    pub const fn new(value: T) -> Self {
        Fenced::restore(value, Fence::UNFENCED)
    }

    /// A value that was written with this fence, for example before a restart.
    pub const fn restore(value: T, highest: Fence) -> Self {
        Fenced { inner: Mutex::new(Inner { value, highest }) }
    }

    /// Writes, unless a higher fence has written before. Writes run one at a time, so keep `write` short. If it
    /// panics, the mark is raised, and the value is as `write` left it.
    ///
    /// # Errors
    /// [`StaleFence`] if a higher fence was seen; then `write` did not run.
    pub fn write<R>(&self, fence: WriteFence, write: impl FnOnce(&mut T) -> R) -> Result<R, StaleFence> {
        let mut inner = self.inner.lock();
        StaleFence::compare(fence, inner.highest)?;
        inner.highest = fence.get();
        Ok(write(&mut inner.value))
    }

    /// Reads. This needs no fence and raises no mark.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.inner.lock().value)
    }

    /// The highest fence that has written; [`Fence::UNFENCED`] if none has. Save it with the value.
    pub fn highest(&self) -> Fence {
        self.inner.lock().highest
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().value
    }
}

impl<T: Default> Default for Fenced<T> {
    fn default() -> Self {
        Fenced::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("Fenced").field("value", &inner.value).field("highest", &inner.highest).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(number: u64) -> WriteFence {
        WriteFence::received(Fence::new(number)).unwrap()
    }

    #[test]
    fn lower_fence_writes_nothing_and_equal_writes_again() {
        let value = Fenced::new(0);
        for (number, written) in [(5, true), (5, true), (4, false), (6, true), (5, false)] {
            assert_eq!(value.write(fence(number), |value| *value = number).is_ok(), written, "{number}");
        }
        assert_eq!((value.highest(), value.into_inner()), (Fence::new(6), 6));
    }

    #[test]
    fn restored_value_refuses_what_it_refused_before() {
        let value = Fenced::restore("x", Fence::new(9));
        assert_eq!(value.write(fence(8), |_| ()).unwrap_err().highest, Fence::new(9));
        assert!(value.write(fence(9), |_| ()).is_ok());
    }

    #[test]
    fn a_write_that_panics_leaves_the_value_usable() {
        let value = Fenced::new(0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = value.write(fence(7), |value| {
                *value = 1;
                panic!("on purpose");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!((value.read(|value| *value), value.highest()), (1, Fence::new(7)));
    }
}
