//! What happened in simulations, counted: a kind of trouble that never came was not tried, and proves nothing.

macro_rules! counted {
    ($($(#[doc = $doc:literal])* $name:ident $text:literal,)+) => {
        /// Something that must happen somewhere in all the seeds of a run.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Count { $($(#[doc = $doc])* $name,)+ }

        impl Count {
            /// All of them, each in the place of its number.
            pub const ALL: &[Count] = &[$(Count::$name),+];

            /// In words.
            pub const fn as_str(self) -> &'static str {
                match self { $(Count::$name => $text,)+ }
            }
        }
    };
}

counted! {
    /// An acquire was granted.
    Grants "grants",
    /// One who waited was granted.
    WaitedGrants "grants after waiting",
    /// An acquire found somebody else.
    Busy "busy",
    /// An acquire failed.
    AcquireFailed "acquires of unknown outcome",
    /// An acquire was dropped.
    AcquireDropped "acquires dropped",
    /// A release took back what a dropped or failed acquire had got.
    GivenBack "grants given back",
    /// A bare claim was repeated and got its grant again.
    Repeated "claims repeated",
    /// A claim was refused because its id was given up.
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
    /// A renewal met no lease.
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
    /// A store said that it failed.
    Error "errors",
    /// A wake-up never arrived.
    WakeLost "wake-ups lost",
    /// A wake-up arrived.
    Woken "wake-ups",
    /// The store itself granted a lease to one who waited.
    WokenGranted "grants by long poll",
    /// A process was killed.
    Kill "kills",
    /// A process was killed that held a lock.
    KillHeld "kills of a holder",
    /// A process was paused.
    Pause "pauses",
    /// A process was paused that held a lock.
    PauseHeld "pauses of a holder",
    /// Nothing came through to or from a process.
    Blackhole "blackholes",
    /// The store stood still.
    StorePause "pauses of the store",
    /// The store was restarted.
    StoreRestart "restarts of the store",
    /// The wall clock of a process stepped.
    ClockProcess "clock steps of a process",
    /// The wall clock of the store stepped.
    ClockStore "clock steps of the store",
    /// The wall clock of a store stepped by which leases expire.
    ClockMoved "clock steps that move expiries",
    /// A session ended, and what it held with it.
    SessionEnded "sessions ended",
    /// A holder was told that its session had ended.
    SessionLost "leases lost with their session",
    /// Leases were revoked.
    Revoked "revocations",
    /// A lease was granted through the server.
    Served "grants by the server",
    /// A client of the server went away before the answer.
    Vanished "clients of the server vanished",
    /// One id was used for two calls at a time.
    IdTwice "ids used twice",
    /// The server ended.
    ServerEnded "servers ended",
    /// A stale write was rejected by its fence.
    WriteRejected "stale writes rejected",
    /// A write was taken.
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
