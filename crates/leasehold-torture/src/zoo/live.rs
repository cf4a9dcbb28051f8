//! Defects in the stores themselves, and in the tools of a run: caught by torture, on a real server with real
//! processes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::bugs::Bug;

use crate::check::Invariant;
use crate::floors::Floor;
use crate::report::{Outcome, Report};
use crate::store::{Profile, Store};
use crate::supervise::Order;

/// A defect in a store, the check that must see it, and the run that provokes it.
#[derive(Debug, Clone, Copy)]
pub struct LiveExhibit {
    /// The planted defect.
    pub bug: Bug,
    /// The invariant that must be found broken; `None`: none, but the run proves too little.
    pub caught_by: Option<Invariant>,
    /// On which store.
    pub store: Store,
    /// By which faults.
    pub profile: Profile,
    /// How long the workers work, in seconds.
    pub secs: u64,
    /// How many replicas must confirm a grant.
    pub wait_replicas: u32,
}

const fn live(bug: Bug, caught_by: Invariant, store: Store, profile: Profile, secs: u64) -> LiveExhibit {
    LiveExhibit { bug, caught_by: Some(caught_by), store, profile, secs, wait_replicas: 0 }
}

/// All of them.
pub const LIVE: &[LiveExhibit] = &[
    live(Bug::RedisReleasesWithoutId, Invariant::I5, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisRenewsExpired, Invariant::I6, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisDropsFence, Invariant::I3, Store::Redis, Profile::Clock, 6),
    live(Bug::RedisPublishesNothing, Invariant::J1, Store::Redis, Profile::Calm, 8),
    live(Bug::RedisRepeatsAnew, Invariant::I10, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisOnePermitTooMany, Invariant::I9, Store::Redis, Profile::Calm, 4),
    LiveExhibit {
        wait_replicas: 1,
        ..live(Bug::RedisWaitsForNoReplica, Invariant::I12, Store::Sentinel, Profile::Failover, 40)
    },
    live(Bug::RedisAsksSentinelsOnce, Invariant::J9, Store::Sentinel, Profile::Failover, 5),
    live(Bug::QuorumOfAMinority, Invariant::I1, Store::Quorum, Profile::Calm, 4),
    live(Bug::PostgresNotifiesNobody, Invariant::J1, Store::Postgres, Profile::Calm, 8),
    live(Bug::PostgresRenewsExpired, Invariant::I6, Store::Postgres, Profile::Calm, 4),
    live(Bug::PostgresReleasesWithoutId, Invariant::I5, Store::Postgres, Profile::Calm, 4),
    live(Bug::PostgresLocksNoRow, Invariant::I1, Store::Postgres, Profile::Calm, 4),
    live(Bug::PostgresFenceByClock, Invariant::I3, Store::Postgres, Profile::Clock, 6),
    live(Bug::SessionEndNotTold, Invariant::I1, Store::Advisory, Profile::Restart, 14),
    live(Bug::SqliteBelievesItsBook, Invariant::I1, Store::Sqlite, Profile::Calm, 4),
    live(Bug::SqliteTellsNobody, Invariant::J1, Store::Sqlite, Profile::Calm, 8),
    live(Bug::SqliteExpiresByWallClock, Invariant::I5, Store::Sqlite, Profile::Clock, 5),
    live(Bug::SqliteFenceInMemory, Invariant::I3, Store::Sqlite, Profile::Clock, 5),
    // A network that cuts sessions, and files that cannot be opened, must not hide two holders.
    live(Bug::AdvisoryLocksShared, Invariant::I1, Store::Advisory, Profile::Net, 6),
    live(Bug::FileLocksShared, Invariant::I1, Store::File, Profile::Resources, 6),
    live(Bug::FileCountsNothing, Invariant::I3, Store::File, Profile::Clock, 5),
    live(Bug::HttpRepeatsWithNewId, Invariant::I5, Store::Http, Profile::Calm, 4),
    // The simulation shows these too.
    live(Bug::PermitGrantedAsLock, Invariant::I11, Store::Sqlite, Profile::Calm, 4),
    live(Bug::DeadlineFromReceipt, Invariant::I7, Store::Redis, Profile::Net, 6),
    live(Bug::LostNotFinal, Invariant::I6, Store::Redis, Profile::Net, 6),
    live(Bug::DeadlineNotLookedAt, Invariant::J3, Store::Sqlite, Profile::Pause, 6),
    live(Bug::DropWithoutGiveBack, Invariant::J6, Store::Redis, Profile::Leak, 5),
    live(Bug::RedisIgnoresQueue, Invariant::J4, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisRevokesPolitely, Invariant::I14, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisRevokesAtOnce, Invariant::I2, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisRepeatsAsShared, Invariant::I10, Store::Redis, Profile::Calm, 4),
    live(Bug::RedisReleasesTwice, Invariant::I5, Store::Redis, Profile::Net, 6),
    live(Bug::RedisReadersShareTtl, Invariant::I8, Store::Redis, Profile::Kill, 14),
    live(Bug::WaitersLetInLate, Invariant::I13, Store::Redis, Profile::Calm, 4),
    live(Bug::DowngradeNotAsked, Invariant::I13, Store::Redis, Profile::Calm, 4),
    live(Bug::GoneAdopted, Invariant::I1, Store::Redis, Profile::Calm, 6),
    live(Bug::ShortenIgnored, Invariant::I7, Store::Redis, Profile::Leak, 5),
    live(Bug::ServerKeepsVanished, Invariant::J6, Store::Http, Profile::Calm, 8),
    live(Bug::ResourceTakesStale, Invariant::I4, Store::Redis, Profile::Pause, 6),
    LiveExhibit {
        bug: Bug::NoFaultIsMade,
        caught_by: None,
        store: Store::Sqlite,
        profile: Profile::Pause,
        secs: 4,
        wait_replicas: 0,
    },
];

/// The word for a run that proves too little.
const VACUOUS: &str = "vacuous";

impl LiveExhibit {
    /// The exhibit with this defect.
    pub fn of(name: &str) -> Option<Self> {
        LIVE.iter().find(|exhibit| exhibit.bug.as_str() == name).copied()
    }

    /// The word for what catches it.
    pub fn check(&self) -> String {
        self.caught_by.map_or_else(|| VACUOUS.into(), |invariant| format!("{invariant:?}"))
    }

    /// What a run of it shows, in such words.
    pub fn signs(report: &Report) -> BTreeSet<String> {
        let mut signs: BTreeSet<String> =
            report.violations.iter().map(|violation| format!("{:?}", violation.invariant)).collect();
        // A slow machine has few hand-overs; that is not a sign of the defect.
        let missing = |floor: &Floor| !floor.is_met() && floor.what != "hand-overs";
        if report.outcome == Outcome::Vacuous && report.floors.iter().any(missing) {
            signs.insert(VACUOUS.into());
        }
        signs
    }

    /// Runs it once in this directory. The variable `LEASEHOLD_BUG` plants the defect in all processes.
    ///
    /// # Errors
    /// Those of [`Order::run`].
    pub fn run(&self, seed: u64, directory: &Path) -> io::Result<Report> {
        let mut order = Order::new(self.store, self.profile, directory);
        (order.time, order.seed) = (Duration::from_secs(self.secs), seed);
        order.wait_replicas = self.wait_replicas;
        order.run()
    }
}
