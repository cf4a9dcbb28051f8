//! The promises of the contract as a test suite for any backend, including your own.
//!
//! The list is the same for every store. Each [`Check`] is named after the behaviour it shows, and says which promise
//! of [`Backend`] or which invariant it tests. It applies if the store claims the needed abilities in its [`Info`].
//! Some checks call the backend directly, others go through [`Locks`](crate::Locks) as a user would.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! use std::sync::Arc;
//! use leasehold::backend::Backend;
//! use leasehold::backends::memory::Memory;
//! use leasehold::conformance::{Harness, run_all};
//!
//! let store = Memory::new(); // or a store of your own
//! let connect = || async { Ok(Arc::new(store.clone()) as Arc<dyn Backend>) };
//! let report = run_all(&Harness::connect(connect).await?).await;
//! println!("{report}");
//! report.assert_passed();
//! # Ok(())
//! # }
//! ```
//!
//! The suite takes a few seconds of real time, because leases have to expire; do not run it in paused time. All names
//! are random, so it can run on a store that is in use, and several can run at once. Every check gives back what it
//! claimed, even when it fails. What stays are the fence counters of its names, one of them at the highest fence there
//! is, and for a minute or so the ids that promise 8 says must be refused.
//!
//! No check fails because a machine is slow. A check waits for what must happen, for as long as [`Harness::patience`]
//! says. It judges what must not happen too early by clock readings from before a request and after its answer. Where
//! it needs a live lease and the lease ran out first, it tries again with a longer ttl.

// What belongs here: checks that hold for every store. What is true of one store only is tested in `tests/`. Before
// changing anything here: `cargo test -p leasehold --all-features --test conformance --test conformance_sees`, which
// shows that each check fails on a store with the bug it looks for.

mod client;
mod harness;
mod raw;
mod report;
mod trial;

use std::fmt;
use std::panic::Location;
use std::pin::Pin;

use tokio::task::JoinSet;

use crate::backend::{Info, Liveness};
use crate::error::Error;

pub use harness::Harness;
pub use report::{Outcome, Report, run_all};
use trial::Trial;

#[cfg(doc)]
use crate::backend::Backend;

/// The level at which a check works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Level {
    /// It calls the backend directly.
    Raw,
    /// It goes through [`Locks`](crate::Locks), as a user would.
    Client,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Raw => "raw",
            Level::Client => "client",
        })
    }
}

type Run = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// A test of one promise.
#[derive(Clone, Copy)]
pub struct Check {
    name: &'static str,
    promise: &'static str,
    level: Level,
    needs: &'static [Need],
    run: fn(Trial) -> Run,
}

/// Every check of the suite.
pub fn checks() -> Vec<Check> {
    [raw::checks(), client::checks()].concat()
}

impl Check {
    /// Its name: a sentence about behaviour.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it shows: numbers are promises of [`Backend`]; `I` and `J` with a number are the invariants of safety and
    /// liveness. `docs/adding-a-backend.md` lists them.
    pub fn promise(&self) -> &'static str {
        self.promise
    }

    /// Whether it calls the backend or goes through the client.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Whether the store claims the abilities that this check needs.
    pub fn applies_to(&self, info: &Info) -> bool {
        self.why_not(info).is_none()
    }

    /// Why the check does not apply to a store; `None` if it does.
    pub fn why_not(&self, info: &Info) -> Option<String> {
        self.needs.iter().find_map(|need| need.unmet(info))
    }

    /// Runs the check, whether or not it applies, and gives back everything it claimed.
    ///
    /// # Cancel safety
    /// If dropped, the check stops where it is, and what it claimed stays until its ttl passes.
    ///
    /// # Errors
    /// What the check saw and should not have seen. A panic counts as a failure, and so does a check that does not
    /// end.
    pub async fn run(&self, harness: &Harness) -> Result<(), Failure> {
        self.run_and_tell(harness).await.0
    }

    /// As `run`; also returns the parts that it did not judge because the store lacks an ability.
    async fn run_and_tell(&self, harness: &Harness) -> (Result<(), Failure>, Vec<&'static str>) {
        let trial = Trial::new(harness);
        let limit = harness.check_limit();
        let mut task = JoinSet::new();
        task.spawn((self.run)(trial.clone()));
        let outcome = match tokio::time::timeout(limit, task.join_next()).await {
            Ok(Some(Ok(outcome))) => outcome,
            Ok(Some(Err(error))) => Err(Failure::from_panic(error)),
            Ok(None) => Err(Failure::nowhere("the check did not run".into())),
            Err(_) => Err(Failure::nowhere(format!("it did not end within {limit:?}"))),
        };
        task.shutdown().await;
        trial.clean_up().await;
        (outcome, trial.not_judged())
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("name", &self.name)
            .field("promise", &self.promise)
            .field("level", &self.level)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// An ability that a check needs.
#[derive(Debug, Clone, Copy)]
enum Need {
    Ttl,
    Fenced,
    Fifo,
    Push,
    KeepsPlaces,
    Shared,
    Permits(u32),
    Downgrade,
    FindById,
    Revoke,
    DetectsLoss,
    Notes,
    NoNotes,
    TellsLoss,
    Namespaced,
    /// The check is about what the store says it cannot do.
    Lack,
}

impl Need {
    /// The missing ability, if the store lacks it.
    fn unmet(self, info: &Info) -> Option<String> {
        let (met, otherwise) = match self {
            Need::Ttl => (info.liveness == Liveness::Ttl, "leases do not expire"),
            Need::Fenced => (info.fenced, "there are no fences"),
            Need::Fifo => (info.fifo, "there is no queue"),
            Need::Push => (info.push, "wait is not woken"),
            Need::KeepsPlaces => (info.keeps_places, "waiters keep their places themselves"),
            Need::Shared => (info.shared, "there are no shared leases"),
            Need::Permits(least) => {
                let found = info.max_permits;
                let otherwise = format!("needs {least} permits, and a name can have {found}");
                return (found < least).then_some(otherwise);
            }
            Need::Downgrade => (info.downgrade, "leases cannot be downgraded"),
            Need::FindById => (info.find_by_id, "a lease cannot be found by its id"),
            Need::Revoke => (info.revoke, "leases cannot be revoked"),
            Need::DetectsLoss => (info.detects_loss, "a loss cannot be noticed"),
            Need::Notes => (info.notes, "names keep no notes"),
            Need::NoNotes => (!info.notes, "names keep notes"),
            Need::TellsLoss => (info.tells_loss, "a loss is found out by asking"),
            Need::Namespaced => (info.namespaced, "names have no namespace"),
            Need::Lack => {
                let able = info.shared && info.max_permits > 0 && info.downgrade;
                let all = able && info.find_by_id && info.revoke && info.fenced && info.notes;
                (!all, "the store lacks nothing")
            }
        };
        (!met).then(|| otherwise.to_owned())
    }
}

/// What a check saw and should not have seen.
#[derive(Debug, Clone)]
pub struct Failure {
    message: String,
    at: Option<&'static Location<'static>>,
}

impl Failure {
    #[track_caller]
    fn new(message: String) -> Self {
        Failure::at(Location::caller(), message)
    }

    fn at(at: &'static Location<'static>, message: String) -> Self {
        Failure { message, at: Some(at) }
    }

    fn nowhere(message: String) -> Self {
        Failure { message, at: None }
    }

    fn from_panic(error: tokio::task::JoinError) -> Self {
        let Ok(payload) = error.try_into_panic() else {
            return Failure::nowhere("a task of the check was cancelled".into());
        };
        let text = match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => payload.downcast::<&str>().map_or("no message".into(), |text| text.to_string()),
        };
        Failure::nowhere(format!("it panicked: {text}"))
    }

    /// What was seen.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The line of the check that saw it.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.at
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{}:{}: {}", at.file(), at.line(), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Failure {}

/// An error where none was expected.
impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        use std::error::Error as _;
        let cause = error.source().map(|source| format!(" ({source})")).unwrap_or_default();
        Failure::new(format!("unexpected error: {error}{cause}"))
    }
}

/// Returns a [`Failure`] that says where, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure::new(format!($($message)+)));
        }
    };
}
use ensure;

/// Makes the list of a file's checks from its functions: `name => "what it shows", What, It, Needs;`.
macro_rules! checks {
    ($level:ident: $($name:ident => $promise:literal $(, $need:ident $(($least:literal))?)*;)+) => {
        pub(in crate::conformance) const CHECKS: &[$crate::conformance::Check] = &[$(
            $crate::conformance::Check {
                name: stringify!($name),
                promise: $promise,
                level: $crate::conformance::Level::$level,
                needs: &[$($crate::conformance::Need::$need $(($least))?),*],
                run: |trial| Box::pin($name(trial)),
            }
        ),+];
    };
}
use checks as check_list;

/// The page for authors of a backend: its code is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/adding-a-backend.md")]
struct AddingABackend;
