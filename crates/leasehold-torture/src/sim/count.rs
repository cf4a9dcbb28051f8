//! Counts what happened in simulations: a kind of trouble that never came was not tried, and proves nothing.

macro_rules! counted {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)+) => {
        /// Something that must happen somewhere in all the seeds of a run.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Count { $($(#[doc = $doc])* $name,)+ }

        impl Count {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Count] = &[$(Count::$name),+];

            /// A description in words.
            pub const fn as_str(self) -> &'static str {
                match self { $(Count::$name => $text,)+ }
            }
        }
    };
}

counted! {
    /// An acquire was granted.
    Grants "grants",
    /// A waiter was granted the lock.
    WaitedGrants "grants after waiting",
    /// An acquire found the lock held.
    Busy "busy",
    /// An acquire failed.
    AcquireFailed "acquires of unknown outcome",
    /// An acquire was dropped.
    AcquireDropped "acquires dropped",
    /// A release gave back what a dropped or failed acquire had got.
    GivenBack "grants given back",
    /// A bare claim was repeated and got its grant again.
    Repeated "claims repeated",
    /// A claim was refused because its id is spent.
    Refused "late claims refused",
    /// A lease expired in the store.
    Expired "expiries",
    /// A place in a queue lapsed.
    Lapsed "places lapsed",
    /// A name was granted after its lease had expired.
    Takeover "takeovers",
    /// A holder saw its deadline pass.
    LostDeadline "lost by deadline",
    /// A holder was refused.
    LostRefused "lost by refusal",
    /// A renewal was confirmed.
    Renewed "renewals",
    /// A renewal found no lease.
    RenewGone "renewals refused",
    /// A release ended a lease.
    Released "releases",
    /// A release found nothing.
    ReleasedNothing "releases of nothing",
    /// A release failed.
    ReleaseFailed "releases of unknown outcome",
    /// A release was dropped.
    ReleaseDropped "releases dropped",
    /// A guard was dropped.
    GuardDropped "guards dropped",
    /// A request never arrived.
    RequestLost "requests lost",
    /// An answer never arrived.
    AnswerLost "answers lost",
    /// A request arrived much later.
    RequestHeld "requests delivered late",
    /// An answer arrived much later.
    AnswerLate "answers delivered late",
    /// The store answered with an error.
    Error "errors",
    /// A wake-up never arrived.
    WakeLost "wake-ups lost",
    /// A wake-up arrived.
    Woken "wake-ups",
    /// The store itself granted a lease to a waiter.
    WokenGranted "grants by long poll",
    /// A process was killed.
    Kill "kills",
    /// A process that held a lock was killed.
    KillHeld "kills of a holder",
    /// A process was paused.
    Pause "pauses",
    /// A process that held a lock was paused.
    PauseHeld "pauses of a holder",
    /// Nothing got through to or from a process.
    Blackhole "blackholes",
    /// The store was paused.
    StorePause "pauses of the store",
    /// The store was restarted.
    StoreRestart "restarts of the store",
    /// The wall clock of a process stepped.
    ClockProcess "clock steps of a process",
    /// The wall clock of the store stepped.
    ClockStore "clock steps of the store",
    /// The wall clock stepped of a store whose leases expire by it.
    ClockMoved "clock steps that move expiries",
    /// A session ended, and its leases with it.
    SessionEnded "sessions ended",
    /// A holder learned that its session had ended.
    SessionLost "leases lost with their session",
    /// Leases were revoked.
    Revoked "revocations",
    /// Several names were granted at once.
    MultiGranted "grants of several names",
    /// One of several names was missing.
    MultiMissing "several names, of which one was missing",
    /// One of several names was lost, and the others with it.
    MultiLost "several names lost together",
    /// A lease was granted through the server.
    Served "grants by the server",
    /// A client of the server vanished before the answer.
    Vanished "clients of the server vanished",
    /// One id was used for two simultaneous calls.
    IdTwice "ids used twice",
    /// The server ended.
    ServerEnded "servers ended",
    /// A stale write was rejected by its fence.
    WriteRejected "stale writes rejected",
    /// A write was accepted.
    WriteTaken "writes taken",
}

/// How often each happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts([u64; Count::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Counts([0; Count::ALL.len()])
    }
}

impl Counts {
    /// How often this happened.
    pub fn of(&self, what: Count) -> u64 {
        self.0[what as usize]
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<Count> {
        Count::ALL.iter().copied().filter(|what| self.of(*what) == 0).collect()
    }

    pub(crate) fn add(&mut self, what: Count, times: u64) {
        self.0[what as usize] += times;
    }

    pub(crate) fn add_all(&mut self, other: &Counts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}
