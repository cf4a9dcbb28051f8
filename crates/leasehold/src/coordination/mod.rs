//! What programs build from locks: several names at once, the election of a leader, jobs that run once per tick, and what
//! refuses stale fences.
//!
//! Everything here is made of the locks in `client` and makes no calls to the store by itself. Before changing anything
//! here: `cargo test -p leasehold --all-features --test multi_lock --test election --test once --test schedule --test
//! schedule_nodes --test fencing`.

pub(crate) mod election;
pub(crate) mod fenced;
#[cfg(feature = "tower")]
pub(crate) mod fencing;
pub(crate) mod multi_lock;
#[cfg(feature = "schedule")]
pub(crate) mod schedule;
