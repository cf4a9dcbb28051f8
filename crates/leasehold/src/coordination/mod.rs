//! What programs build from locks: several names at once.
//!
//! Everything here is made of the locks in `client` and makes no calls to the store by itself.
//! Before changing anything here: `cargo test -p leasehold --all-features --test multi_lock`.

pub(crate) mod multi_lock;
