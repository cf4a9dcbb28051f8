//! What bext expects of a `LockingPlugin`, as a test suite for any implementation, including your own.
//!
//! Each [`Check`] is named after the behaviour it shows. It works on two plugins, as two nodes would have them.
//!
//! ```
//! use std::sync::Arc;
//! use bext_plugin_api::locking::LockingPlugin;
//! use leasehold::{Locks, backends::memory::Memory};
//! use leasehold_bext::conformance::{Harness, run_all};
//! use leasehold_bext::{LeaseholdPlugin, PluginOptions, fence_of};
//!
//! let store = Memory::new();
//! // Each call makes one more plugin on the same store: put yours here.
//! let connect = move || {
//!     let client = Locks::new(store.clone());
//!     let plugin = LeaseholdPlugin::new(client, PluginOptions::default()).map_err(|e| e.to_string())?;
//!     Ok(Arc::new(plugin) as Arc<dyn LockingPlugin>)
//! };
//! let report = run_all(Harness::new(connect).fences(|handle| fence_of(handle).map(u64::from)));
//! println!("{report}");
//! report.assert_passed();
//! ```
//!
//! It takes some seconds of real time, because locks have to expire. All keys are random, so it can run on a store that
//! is in use. Every check releases what it locked.
//!
//! No check fails because a machine is slow. A check waits for what must happen, for as long as [`Harness::patience`]
//! says, and judges what must not happen too early by clock readings from before a call. Where it needs a live lock and
//! the lock ran out first, it tries again with a longer ttl.

// What belongs here: checks that hold for every plugin. Before changing anything here:
// `cargo test -p leasehold-bext --features full --test conformance --test conformance_sees`, which shows that each
// check fails on a plugin with the defect it looks for.

mod expiry;
mod handles;
mod harness;
mod hosts;
mod locking;
mod report;
mod trial;

pub use harness::Harness;
pub use report::{Outcome, Report, run_all};
use trial::Trial;

/// What a check saw and should not have seen.
type Shown = Result<(), String>;

/// A test of one behaviour.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    name: &'static str,
    needs: Need,
    run: fn(&Trial<'_>) -> Shown,
}

/// What a check needs besides plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    Fences,
    Breaking,
}

impl Check {
    const fn new(name: &'static str, run: fn(&Trial<'_>) -> Shown) -> Self {
        Check { name, needs: Need::Nothing, run }
    }

    const fn needing(name: &'static str, needs: Need, run: fn(&Trial<'_>) -> Shown) -> Self {
        Check { name, needs, run }
    }

    /// Its name: a sentence about behaviour.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// Every check of the suite. The last one breaks the store.
pub fn checks() -> Vec<Check> {
    [locking::CHECKS, handles::CHECKS, expiry::CHECKS, hosts::CHECKS].concat()
}

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;
