//! The library's only loops: they wait for a grant, renew held leases and give leases back. The client and the server
//! drive them; every store is a [`Backend`](crate::Backend) that makes single attempts.
//!
//! - [`wait`]: one claim, from its first attempt until it is granted, refused, stopped or out of time.
//! - [`give_back`]: a release that is retried until the store has answered.
//! - `renew`: the leases of a client, renewed in batches before they are due.
//! - `held`: what a guard believes about its lease, and until when.
//! - [`limits`]: every time limit of these loops.
//! - `telemetry`, `reporter`: what they log and count, without blocking the thread that renews.
//!
//! Before changing anything here: `make sim` and `make zoo` (planted bugs), and the torture profiles of a store.

pub mod give_back;
pub(crate) mod held;
pub mod limits;
pub(crate) mod renew;
pub(crate) mod reporter;
pub(crate) mod telemetry;
pub mod wait;
