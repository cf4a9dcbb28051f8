//! Leases as plain data, for blocking callers.

use std::time::Duration;

use crate::backend::Mode;
use crate::error::Result;
use crate::lease::Lease;
use crate::options::{Options, option_setters};

/// Acquires [`Lease`]s on a name, as [`leasehold::Leasing`](crate::Leasing). Made by
/// [`Locks::leasing`](super::Locks::leasing).
///
/// Nothing renews a plain lease: call [`Locks::renew`](super::Locks::renew) before its ttl passes, and
/// [`Locks::release`](super::Locks::release) at the end.
///
/// # Examples
///
/// A scheduler on many nodes, of which one runs the job of each tick. The lease is named after
/// the tick and left to expire, so that a node whose clock is a little late finds it taken:
///
/// ```
/// use std::time::Duration;
/// use leasehold::blocking::Locks;
///
/// fn tick(locks: &Locks, job: &str, tick: u64, run: impl FnOnce()) -> bool {
///     let leasing = locks.leasing(format!("{job}/{tick}")).ttl(Duration::from_secs(60));
///     match leasing.try_acquire() {
///         Ok(Some(_lease)) => {
///             run();
///             true
///         }
///         Ok(None) => false, // another node runs it
///         Err(error) => {
///             eprintln!("skipping tick {tick} of {job}: {error}");
///             false
///         }
///     }
/// }
///
/// let locks = Locks::connect("memory:")?;
/// let mut runs = 0;
/// for _node in 0..3 {
///     tick(&locks, "nightly-report", 42, || runs += 1);
/// }
/// assert_eq!(runs, 1);
/// assert!(tick(&locks, "nightly-report", 43, || runs += 1));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Leasing(pub(super) crate::Leasing);

impl Leasing {
    /// As [`leasehold::Leasing::mode`](crate::Leasing::mode).
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Leasing(self.0.mode(mode))
    }

    /// As [`leasehold::Leasing::name`](crate::Leasing::name).
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// As [`leasehold::Leasing::acquire`](crate::Leasing::acquire), blocking.
    pub fn acquire(&self) -> Result<Lease> {
        self.block_on(self.0.acquire())
    }

    /// As [`leasehold::Leasing::try_acquire`](crate::Leasing::try_acquire), blocking.
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        self.block_on(self.0.try_acquire())
    }

    /// As [`leasehold::Leasing::try_acquire_for`](crate::Leasing::try_acquire_for), blocking.
    pub fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Lease>> {
        self.block_on(self.0.try_acquire_for(timeout))
    }

    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.lock.client().block_on(future)
    }

    option_setters!();

    fn options_mut(&mut self) -> &mut Options {
        self.0.lock.options_mut()
    }
}
