//! Planted defects, which prove that the checks can fail. They exist only in builds made for that, one at a time,
//! chosen when the program runs.
//!
//! This list has all of them. `leasehold-torture/src/defects` plants most of them around the library. Only a defect
//! that no wrapper can show asks [`on`] in the library's own code, or edits a script. Without the feature `__bugs` the
//! compiler answers each question with `false`, and nothing is left in the program.

#[cfg(all(feature = "__bugs", not(debug_assertions)))]
compile_error!("the feature `__bugs` plants defects: it must never be in a release build");

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A defect that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(not(feature = "__bugs"), allow(dead_code, unreachable_pub))]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Bug { $($(#[doc = $doc])+ $name,)+ }

        #[cfg(feature = "__bugs")]
        impl Bug {
            /// All of them, each in the place of its number.
            pub const ALL: &[Bug] = &[$(Bug::$name),+];

            /// Its name, as the variable `LEASEHOLD_BUG` has it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Bug::$name => stringify!($name),)+ }
            }

            /// What is wrong.
            pub const fn what(self) -> &'static str {
                match self { $(Bug::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

bugs! {
    /// state: a release ends whatever lease is there, not only its own.
    ReleaseWithoutId,
    /// state: a renewal renews whatever lease is there, not only its own.
    RenewWithoutId,
    /// state: a renewal sets the expiry even if that is sooner.
    RenewShortens,
    /// state: a lease is over when a quarter of its ttl is still left.
    TakeoverBeforeExpiry,
    /// state: a claim that comes within milliseconds of a grant does not see it, as after a check that is not atomic.
    TwoWinners,
    /// state: a writer is let in among readers.
    WriterAmongReaders,
    /// state: one permit more than the limit is given.
    OnePermitTooMany,
    /// client: a permit is claimed as a lock.
    PermitGrantedAsLock,
    /// state: the release of a permit that has expired frees one more.
    ExpiredPermitFreed,
    /// state: the renewal of one reader prolongs all.
    ReadersShareTtl,
    /// state: the fence counter is dropped when nobody holds the name.
    FenceDroppedOnRelease,
    /// state: the fence counter is not kept in the rows.
    FenceInMemoryOnly,
    /// state: leases are not kept in the rows.
    LeasesInMemoryOnly,
    /// state: a repeated claim begins its ttl anew.
    RepeatBeginsAnew,
    /// state: a repeated claim gets a new fence.
    RepeatGrantsAgain,
    /// state: places in the queue never lapse.
    TicketsNeverLapse,
    /// state: a new claim is let in past the queue.
    QueueIgnored,
    /// state: no waiter is woken.
    NobodyWoken,
    /// state: an id that was given up is granted when its attempt arrives late.
    SpentIdsGranted,
    /// wait loop: a `Busy` answer is taken for a grant.
    BusyTakenForHeld,
    /// wait loop: a store that fails is reported as contention.
    ErrorReportedAsBusy,
    /// wait loop: an attempt whose answer was lost is repeated with a new id.
    RetryWithNewId,
    /// wait loop: what a dropped acquire may have got is not given back.
    DropWithoutGiveBack,
    /// wait loop: a give-back does not say that an attempt is still unanswered.
    UnansweredNotSaid,
    /// guard: the deadline counts from when the answer came.
    DeadlineFromReceipt,
    /// guard: nothing is taken off a deadline for clocks that run at different rates.
    DeadlineWithoutMargin,
    /// guard: a deadline that has passed is noticed by the loop only, when it comes to it.
    DeadlineNotLookedAt,
    /// guard: a late confirmation makes a lost lease held again.
    LostNotFinal,
    /// renewal loop: a failed renewal counts as a confirmed one.
    FailureTakenForRenewal,
    /// the simulated store's client: interest in a wake-up is registered after the attempt.
    InterestAfterAttempt,
    /// client: deadlines go by the wall clock.
    DeadlineByWallClock,
    /// guard: what the store says is left is believed, however much longer that is than what was asked for.
    LeftNotCapped,
    /// state: a lease that was revoked is renewed all the same.
    RevokedRenewed,
    /// renewal loop: that its session has ended is not told to its holder.
    SessionEndNotTold,
    /// guard: a lease is not shortened, only renewed.
    ShortenIgnored,
    /// guard: a guard that is downgraded says so, and does not ask the store.
    DowngradeNotAsked,
    /// client: a lease that is gone is adopted all the same.
    GoneAdopted,
    /// client: a waiter gets a free lock only when it has waited for more than half a second.
    WaitersLetInLate,
    /// several names: when one is missing, the others are kept, and renewed.
    MultiPartsKept,
    /// several names: they are taken in the order in which they are listed.
    MultiUnordered,
    /// several names: only the loss of the first ends work that runs under all.
    MultiLossIgnored,
    /// redis: a release ends whatever mutex is there, not only its own.
    RedisReleasesWithoutId,
    /// redis: a renewal does not look whether the lease has expired.
    RedisRenewsExpired,
    /// redis: the name is deleted when it is released, and its fence counter with it.
    RedisDropsFence,
    /// redis: no waiter is woken.
    RedisPublishesNothing,
    /// redis: the answer to a repeated claim says that its ttl begins anew.
    RedisRepeatsAnew,
    /// redis: one permit more than the limit is given.
    RedisOnePermitTooMany,
    /// redis: a grant or renewal counts before the replicas have it.
    RedisWaitsForNoReplica,
    /// redis: the sentinels are asked for the primary once, and not after a fail-over.
    RedisAsksSentinelsOnce,
    /// redis: a new claim is let in past the queue.
    RedisIgnoresQueue,
    /// redis: a revoke at once only refuses renewals.
    RedisRevokesPolitely,
    /// redis: a revoke that is to refuse renewals frees the lock at once.
    RedisRevokesAtOnce,
    /// redis: the answer to a repeated claim says that it is shared.
    RedisRepeatsAsShared,
    /// redis: a release says that it has ended a lease that is gone.
    RedisReleasesTwice,
    /// redis: the renewal of one reader prolongs all.
    RedisReadersShareTtl,
    /// quorum: one node less than a majority is enough.
    QuorumOfAMinority,
    /// postgres: nobody is notified that they may go in.
    PostgresNotifiesNobody,
    /// postgres: a renewal does not look whether the lease has expired.
    PostgresRenewsExpired,
    /// postgres: a release ends whatever lease is there, not only its own.
    PostgresReleasesWithoutId,
    /// postgres: an attempt does not lock the row of the name.
    PostgresLocksNoRow,
    /// postgres: a fence is the clock's, whatever was given before.
    PostgresFenceByClock,
    /// sqlite: what other processes have written is not looked for.
    SqliteBelievesItsBook,
    /// sqlite: other processes are not told that one of theirs may go in.
    SqliteTellsNobody,
    /// sqlite: expiry goes by the wall clock.
    SqliteExpiresByWallClock,
    /// sqlite: the fence counter is not in the file.
    SqliteFenceInMemory,
    /// postgres+advisory: a lock that one client wants alone is taken shared.
    AdvisoryLocksShared,
    /// file: a lock that one client wants alone is taken shared.
    FileLocksShared,
    /// file: the fence counter is not written.
    FileCountsNothing,
    /// client of a server: an attempt that is made again has a new lease id.
    HttpRepeatsWithNewId,
    /// client: memory of every grant is never given back.
    MemoryKept,
    /// client: a descriptor of every grant is never closed.
    DescriptorsKept,
    /// client: every release leaves its id behind, as if its attempt were unanswered.
    ReleasesLeaveIds,
    /// server: a client that has gone keeps its place in the queue.
    ServerKeepsVanished,
    /// the resource of a torture run: a stale write is taken.
    ResourceTakesStale,
    /// the supervisor of a torture run: no fault is made.
    NoFaultIsMade,
}

/// Whether this defect is planted.
#[cfg(not(feature = "__bugs"))]
#[inline(always)]
pub(crate) const fn on(_: Bug) -> bool {
    false
}

/// The script or SQL to run: `text`, unless a defect in `which` is planted.
#[cfg(all(not(feature = "__bugs"), any(feature = "redis", feature = "postgres")))]
#[inline(always)]
pub(crate) fn edited(
    _: &str,
    text: impl Into<std::borrow::Cow<'static, str>>,
) -> std::borrow::Cow<'static, str> {
    text.into()
}

#[cfg(all(feature = "__bugs", any(feature = "redis", feature = "postgres")))]
mod edits;

#[cfg(all(test, feature = "__bugs", any(feature = "redis", feature = "postgres")))]
pub(crate) use edits::can_be_planted;
#[cfg(all(feature = "__bugs", any(feature = "redis", feature = "postgres")))]
pub(crate) use edits::edited;
#[cfg(feature = "__bugs")]
pub use planted::{on, plant};

#[cfg(feature = "__bugs")]
mod planted {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Bug;

    const NONE: u8 = u8::MAX;

    /// The defect that the variable `LEASEHOLD_BUG` names, until a test sets another.
    static PLANTED: LazyLock<AtomicU8> = LazyLock::new(|| {
        let named = std::env::var("LEASEHOLD_BUG").unwrap_or_default();
        let bug = Bug::ALL.iter().find(|bug| bug.as_str() == named);
        AtomicU8::new(bug.map_or(NONE, |bug| *bug as u8))
    });

    /// Whether this defect is planted.
    pub fn on(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) == bug as u8
    }

    /// Plants this defect, and no other, in the whole process.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(NONE, |bug| bug as u8), Ordering::Relaxed);
    }
}
