#![doc = include_str!("../../../README.md")]

mod acquire;
pub mod backend;
pub mod backends;
pub mod blocking;
#[cfg(feature = "bugs")]
#[doc(hidden)]
pub mod bugs;
#[cfg(not(feature = "bugs"))]
mod bugs;
mod cancel;
mod cell;
mod chance;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod diagnostics;
pub mod doctor;
mod error;
mod fence;
mod guard;
pub mod interop;
pub mod layers;
mod lease;
mod lease_id;
mod locks;
mod mutex;
mod name;
mod options;
mod plain;
mod renew;
mod reporter;
mod rwlock;
mod semaphore;
mod span;
pub mod state;
mod stores;
mod telemetry;
#[cfg(feature = "wire")]
pub mod wire;

pub use backend::{Backend, Gone, Info, Mode};
pub use cancel::Cancel;
pub use cell::{GuardState, LostReason};
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub use chance::seed as seed_chance;
pub use diagnostics::LeaseInfo;
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use guard::{Guard, LostSignal};
pub use lease::Lease;
pub use lease_id::LeaseId;
pub use locks::{DEFAULT_NAMESPACE, Locks, LocksBuilder};
pub use mutex::Mutex;
pub use name::{Name, digest_name};
pub use options::{
    Backoff, Jitter, MAX_METADATA_BYTES, MAX_OWNER_BYTES, MIN_GUARD_TTL, MIN_TTL, OnReleaseError, Options,
    Poll, ReleaseFailure, ReleaseSource,
};
pub use plain::Leasing;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use stores::{StoreInfo, stores};

/// Compiles and runs the recipes.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/recipes.md")]
struct Recipes;
