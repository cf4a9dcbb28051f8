#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(unix, feature = "sqlite", not(target_os = "linux")))]
compile_error!(
    "the feature `sqlite` of leasehold works on Linux only; leave it away, and instead of `full` name the features \
     you need, for example `file,http,postgres,redis`"
);

#[cfg(not(unix))]
compile_error!(
    "leasehold builds on Unix only (Linux; macOS without the store `sqlite:`). On Windows, use a leasehold server over HTTP"
);

pub mod backend;
pub mod backends;
pub mod blocking;
#[cfg(feature = "__bugs")]
#[doc(hidden)]
pub mod bugs;
#[cfg(not(feature = "__bugs"))]
mod bugs;
mod cancel;
mod chance;
mod client;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod coordination;
pub mod doctor;
#[doc(hidden)]
pub mod engine;
mod error;
mod fence;
pub mod interop;
pub mod layers;
mod lease;
mod lease_id;
mod marks;
mod name;
mod options;
mod span;
pub mod state;
mod stores;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls;
#[cfg(feature = "wire")]
pub mod wire;

pub use backend::{Backend, Gone, Info, MAX_NOTE_BYTES, Mode, Note};
pub use cancel::Cancel;
#[cfg(feature = "__simulation")]
#[doc(hidden)]
pub use chance::seed as seed_chance;
pub use client::diagnostics::LeaseInfo;
pub use client::guard::{Guard, LostSignal};
pub use client::leasing::Leasing;
pub use client::locks::{DEFAULT_NAMESPACE, Locks, LocksBuilder};
pub use client::mutex::Mutex;
pub use client::rwlock::RwLock;
pub use client::semaphore::Semaphore;
pub use coordination::election::{Election, Leader, Term};
pub use coordination::fenced::Fenced;
#[cfg(feature = "tower")]
pub use coordination::fencing::{FENCING_TOKEN, Fencing, FencingLayer};
pub use coordination::multi_lock::{AnyLost, MultiGuard, MultiLock};
#[cfg(feature = "schedule")]
pub use coordination::schedule::{
    LockingHint, Missed, Schedule, TickPolicy,
    job::{ScheduledJob, Ticks},
    once::{Begun, Once, Ran},
    record::{RecordedSchedule, TickEnd, TickRecord, TickResult, TickRun},
    take::TickGuard,
    tick::Tick,
};
pub use engine::held::{GuardState, LostReason};
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use lease::Lease;
pub use lease_id::LeaseId;
pub use marks::{Checked, Marks, StaleFence, WriteFence};
pub use name::{Name, digest_name};
pub use options::{
    Backoff, Jitter, MAX_METADATA_BYTES, MAX_OWNER_BYTES, MIN_GUARD_TTL, MIN_TTL, OnReleaseError, Options,
    PollPolicy, ReleaseFailure, ReleaseSource,
};
pub use stores::{StoreInfo, stores};

/// Compiles and runs the recipes.
#[cfg(all(doctest, feature = "schedule"))]
#[doc = include_str!("../docs/recipes.md")]
struct Recipes;

/// Compiles and runs the page about fencing.
#[cfg(doctest)]
#[doc = include_str!("../docs/fencing.md")]
struct FencingPage;

/// Compiles and runs the first program of the start page.
#[cfg(doctest)]
#[doc = include_str!("../docs/start.md")]
struct Start;
