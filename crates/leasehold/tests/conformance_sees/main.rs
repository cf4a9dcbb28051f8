//! The suite sees: stores with one planted bug each, and the checks that have to fail on them.
//!
//! A check that cannot fail is worth nothing, so every check of the list is named here at least once.

#![allow(clippy::unwrap_used)] // also in helpers of tests

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use leasehold::backend::{
    Attempt, Backend, Busy, Claim, Gone, Grant, Info, Mode, NameInfo, Page, Query, Release, Released,
    Renewal, Renewed, Revoked, Swept, Wake,
};
use leasehold::backends::memory::Memory;
use leasehold::conformance::{Check, Harness, checks, run_all};
use leasehold::{ErrorKind, Fence, LeaseId, Name, Result};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Declares the bugs, and for each the checks that must see it.
macro_rules! bugs {
    ($($bug:ident: $($check:ident),+;)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Bug {
            /// The wrapper itself changes nothing.
            None,
            Panics,
            Hangs,
            $($bug),+
        }

        const BUGS: &[(Bug, &[&str])] = &[$((Bug::$bug, &[$(stringify!($check)),+])),+];
    };
}

bugs! {
    InfoChanges: info_is_constant_and_alike_for_both_clients;
    ExclusiveIsShared: one_exclusive_lease_excludes_another, a_writer_excludes_readers_and_readers_a_writer,
        try_lock_is_one_attempt_and_none_while_held, a_mutex_is_the_write_side_of_the_rwlock_of_its_name,
        readers_never_meet_a_writer_under_stress, an_unprotected_counter_is_never_miscounted_under_stress,
        normal_forms_of_one_name_are_one_name;
    SharedIsExclusive: readers_hold_together_and_a_writer_waits_for_the_last,
        readers_that_stand_together_enter_together, readers_share_and_a_writer_waits_for_all_of_them;
    OnePermitTooMany: no_more_permits_than_the_limit_and_a_released_one_comes_back,
        racing_permits_never_exceed_the_limit, a_semaphore_lets_in_as_many_as_there_are_free_permits,
        a_semaphore_never_has_more_holders_than_permits;
    LooksThenGrants: of_many_who_race_for_a_new_name_exactly_one_wins, racing_permits_never_exceed_the_limit,
        of_many_who_race_for_an_expired_lease_exactly_one_wins,
        holders_that_exclude_each_other_never_believe_at_the_same_time;
    GrantsAreNotStored: what_was_granted_is_stored, what_is_held_is_seen_and_nothing_secret_is_shown;
    QueueingNeverEntersAtOnce: a_claim_that_queues_for_a_free_name_is_granted_at_once;
    MismatchIsBusy: kinds_do_not_mix_while_in_use_and_may_change_at_rest,
        limits_do_not_mix_while_in_use_and_may_change_at_rest, those_who_wait_keep_their_kind,
        another_kind_or_limit_is_a_mismatch;
    ReleaseIsAlwaysDone: concurrent_releases_end_a_lease_exactly_once,
        releasing_what_was_revoked_at_once_says_lost, a_plain_lease_is_renewed_and_released_as_data,
        a_wrong_id_renews_and_releases_nothing;
    ReleaseDoesNothing: at_rest_nothing_is_left_but_the_fence, dropping_a_guard_releases_it,
        release_says_released_and_the_next_gets_in, with_lock_keeps_the_error_of_the_work_and_releases,
        close_aborts_who_waits_and_sends_what_is_outstanding;
    ReleaseTakesWhoeverHolds: a_wrong_id_renews_and_releases_nothing,
        a_late_renewal_or_release_does_not_touch_the_next_holder,
        a_release_after_expiry_is_gone_and_leaves_the_new_holder_alone;
    KnowsOnlyItsOwn: a_lease_can_be_renewed_and_released_through_another_client,
        a_guard_becomes_a_lease_and_another_client_adopts_it;

    RepeatIsANewGrant: a_repeat_gives_the_same_grant;
    RepeatRearms: a_repeat_does_not_rearm_the_lease;
    RepeatTakesAnotherPermit: a_repeat_is_no_second_grant;
    RepeatStandsInLine: a_repeat_is_not_held_up_by_those_who_wait;
    WaitersMayChangeTheirMode: a_claim_that_waits_for_one_mode_cannot_wait_for_another;
    UnansweredIsForgotten: a_release_that_comes_before_its_unanswered_attempt_refuses_it,
        an_unanswered_release_of_a_held_lease_spends_its_id,
        an_unanswered_release_of_a_place_in_the_queue_spends_its_id;
    SpentOnlyForTheTtl: a_spent_id_is_refused_for_longer_than_its_ttl;
    RepeatIsForgotten: the_id_of_a_repeated_claim_is_refused_after_its_release,
        the_id_of_a_repeated_claim_is_refused_after_it_expired, a_repeat_in_the_queue_is_remembered_by_the_lease;
    NonceIsForgotten: a_release_with_an_old_nonce_is_superseded,
        a_later_call_with_an_old_nonce_is_superseded_and_changes_nothing, a_place_in_the_queue_obeys_nonces_too;
    AnyCallSetsTheNonce: a_later_call_with_an_old_nonce_is_superseded_and_changes_nothing;

    TimeLeftIsNotSaid: a_grant_says_how_long_it_lasts;
    KeepsLessThanItSays: the_next_takes_over_at_expiry_without_a_sweep_and_not_before,
        a_waiting_acquire_takes_over_when_the_holder_dies,
        holders_that_exclude_each_other_never_believe_at_the_same_time;
    LeasesNeverExpire: the_next_takes_over_at_expiry_without_a_sweep_and_not_before,
        the_permit_of_a_holder_that_died_comes_back, the_queue_moves_on_when_a_lease_expires,
        a_waiting_acquire_takes_over_when_the_holder_dies, a_guard_is_lost_by_the_end_of_max_hold;
    RenewRevives: an_expired_lease_is_gone_for_ever_even_if_nobody_took_the_name;
    RenewHoldsAnyId: an_expired_lease_is_gone_for_ever_even_if_nobody_took_the_name,
        a_wrong_id_renews_and_releases_nothing, a_guard_whose_lease_is_gone_is_lost_with_the_reason;
    ReadersShareOneTtl: every_reader_has_a_ttl_of_its_own;
    InspectShowsExpired: what_has_expired_is_not_shown;
    SweepTakesLiveLeases: a_sweep_never_touches_a_live_lease_and_keeps_the_fence;

    FenceIsNotCompared: a_wrong_fence_renews_and_releases_nothing;
    OwnerIsNotCompared: a_wrong_owner_renews_and_releases_nothing,
        a_place_in_the_queue_is_not_given_up_by_another_owner_or_with_a_fence;
    NameIsNotCompared: a_wrong_name_renews_and_releases_nothing;
    RenewLooksThenWrites: a_renewal_that_races_a_release_does_not_bring_it_back;
    RenewDoesNothing: a_held_guard_outlives_several_ttls_and_others_stay_refused,
        a_renewed_lease_passes_on_no_earlier_than_the_renewal_said;
    RenewShortens: renew_sets_the_later_of_old_expiry_and_now_plus_ttl;
    RenewAddsToWhatIsLeft: renew_sets_the_later_of_old_expiry_and_now_plus_ttl;
    ShortenIgnoresTheCount: shorten_acts_only_with_the_right_count;
    ShortenDoesNothing: a_shortened_lease_ends_sooner_in_the_store_too,
        a_guard_can_be_renewed_for_longer_and_shortened;
    RenewRaisesTheFence: renew_keeps_fence_mode_and_time_of_grant;
    BatchIsAnsweredInReverse: a_batch_is_answered_one_each_in_order, a_large_batch_is_answered_one_each_in_order;
    BatchIsCutAt50: a_large_batch_is_answered_one_each_in_order;
    DowngradeIsReleaseAndAcquire: a_downgrade_keeps_the_lease_and_lets_readers_in,
        a_downgrade_leaves_no_gap_for_a_waiting_writer, a_downgraded_guard_lets_readers_in_and_keeps_its_fence;
    UpgradeIsGranted: there_is_no_upgrade;

    FencesRepeat: fences_rise_from_grant_to_grant, fences_rise_over_every_mode, fences_rise_over_expiry,
        fences_rise_over_a_revocation, holders_that_exclude_each_other_never_believe_at_the_same_time, fences_of_permits_are_unique_and_rise,
        a_lock_waits_and_is_handed_over_with_a_higher_fence, an_unprotected_counter_is_never_miscounted_under_stress;
    FencesCountFromOne: fences_follow_the_clock_so_that_a_lost_counter_does_no_harm;
    RaiseIsForgotten: a_raised_fence_lifts_lease_and_counter;
    OverflowIsGranted: above_the_highest_fence_there_is_an_error_and_no_grant;
    FencesAreMissing: grants_without_fences_say_so;

    NewcomersGoFirst: queued_claims_are_served_in_the_order_they_came,
        waiting_acquires_are_served_in_the_order_they_came;
    TryJoinsTheQueue: a_try_neither_overtakes_a_queue_nor_joins_one;
    ReadersOvertake: a_try_that_could_enter_does_not_overtake_who_cannot, a_reader_behind_a_waiting_writer_waits;
    TicketsNeverLapse: dead_tickets_lose_their_places_together;
    RefreshLosesThePlace: a_refreshed_ticket_keeps_its_place, queued_claims_are_served_in_the_order_they_came;
    RefreshDoesNotKeepThePlace: a_refreshed_ticket_keeps_its_place;
    LossIsNotTold: a_wait_on_a_lease_ends_with_it_and_not_before;
    PlacesAreNotKept: a_place_is_kept_while_its_wait_is_pending;
    PlacesOutliveTheirWait: a_place_whose_wait_was_dropped_lapses;
    LookingLosesThePlace: looking_again_without_queueing_keeps_the_place;
    PlacesAreNotGivenUp: a_place_that_is_given_up_frees_the_way,
        try_lock_for_waits_as_long_as_asked_and_leaves_no_place,
        lock_with_max_wait_times_out_and_says_how_long_it_waited, a_dropped_wait_leaves_nothing,
        a_cancelled_wait_is_aborted_and_leaves_nothing, close_aborts_who_waits_and_sends_what_is_outstanding;

    WaitNeverWakes: no_wake_up_is_lost_between_the_attempt_and_the_wait,
        no_wake_up_is_lost_when_the_release_races_the_wait, a_wait_that_was_dropped_can_be_called_again,
        the_one_whose_turn_it_is_is_woken, a_crowd_is_woken_one_after_the_other,
        more_readers_than_one_call_wakes_are_all_woken, giving_up_a_place_wakes_those_it_held_back,
        a_downgrade_wakes_the_readers, a_revocation_wakes_the_next;
    WakeUpsBeforeTheWaitAreLost: no_wake_up_is_lost_between_the_attempt_and_the_wait;
    WaitOverstatesTheWait: a_grant_brought_by_a_wake_up_is_believed_no_longer_than_it_lasts;
    ADroppedWaitIsDeaf: a_wait_that_was_dropped_can_be_called_again;
    OnlySoManyAreWoken: more_readers_than_one_call_wakes_are_all_woken;

    RevokeDoesNothing: a_revoked_lease_is_not_renewed_and_the_name_passes_at_its_expiry,
        revoking_now_frees_the_name_at_once_and_for_good, a_revocation_meets_every_holder_and_no_later_one,
        a_revoked_guard_is_lost_with_the_reason, releasing_what_was_revoked_at_once_says_lost;
    RevokeMarksTheName: revoking_a_name_nobody_holds_does_nothing,
        a_revocation_meets_every_holder_and_no_later_one;
    RevokedIdsAreNotSpent: revoking_now_frees_the_name_at_once_and_for_good;
    SaysItCannotRevoke: what_the_store_cannot_do_is_unsupported;

    StraysLeaveSomething: a_name_nobody_ever_used_is_one_unused_item;
    InspectLooksTwice: what_is_found_is_in_use_whatever_goes_on_beside;
    InspectHidesMetadata: inspecting_shows_the_holder_as_it_is;
    InspectShowsItBackwards: inspecting_shows_the_queue_in_order, holders_are_shown_oldest_first;
    LookingRenews: looking_changes_nothing;
    FindsNothingById: inspecting_by_id_finds_leases_and_places_and_nothing_else,
        a_plain_lease_is_renewed_and_released_by_its_id, a_lease_is_looked_up_by_its_id;
    PrefixIsAPattern: inspecting_by_prefix_pages_through_the_names_in_use_in_order;
    PagesLoseOne: inspecting_by_prefix_pages_through_the_names_in_use_in_order, what_is_held_is_listed;
    VersionStandsStill: the_version_rises_with_every_change_of_a_lease;
    TextEndsAtNul: owner_and_metadata_can_be_any_text;

    NamesIgnoreCase: names_that_look_alike_are_names_of_their_own;
    NamesAreTrimmed: names_that_look_alike_are_names_of_their_own;
    NamesAreCut: names_may_have_512_bytes;
    NamespacesMeet: namespaces_never_meet;
}

/// The memory store with one bug.
#[derive(Debug)]
struct Broken {
    inner: Memory,
    bug: Bug,
    common: Arc<Mutex<Common>>,
    /// What was claimed through this client.
    mine: Mutex<HashSet<LeaseId>>,
    second: bool,
}

/// What a bug has to remember, for both clients.
#[derive(Debug, Default)]
struct Common {
    claims: HashMap<LeaseId, Claim>,
    spent: HashMap<LeaseId, Instant>,
    revoked: HashSet<Name>,
    deaf: HashSet<LeaseId>,
    waits: HashMap<Name, usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

fn fake(claim: &Claim) -> Attempt {
    Attempt::Granted(Grant::new(Fence::at(1_793_000_000_000_000), claim.mode, Some(claim.ttl)))
}

fn plain(claim: &Claim) -> Release {
    Release::new(claim.name.clone(), claim.id)
}

fn until_nul(text: &str) -> Arc<str> {
    text.split('\0').next().unwrap().into()
}

impl Broken {
    async fn view(&self, name: &Name) -> NameInfo {
        self.inner.inspect(&Query::Name(name.clone())).await.unwrap().items.remove(0)
    }

    async fn claims_on(&self, name: &Name) -> Option<Claim> {
        let id = self.view(name).await.holders.first()?.id;
        lock(&self.common).claims.get(&id).cloned()
    }

    /// The name as this store takes it.
    fn name(&self, name: &Name) -> Name {
        let (namespace, text) = (name.namespace(), name.as_str());
        let changed = match self.bug {
            Bug::NamesIgnoreCase => Name::within(&namespace, &text.to_lowercase()),
            Bug::NamesAreTrimmed => Name::within(&namespace, text.trim_end_matches(['.', ' '])),
            Bug::NamesAreCut => Name::within(&namespace, &text.chars().take(100).collect::<String>()),
            Bug::NamespacesMeet => Name::new(text),
            _ => return name.clone(),
        };
        changed.unwrap()
    }

    /// A grant as this store tells it.
    fn told(&self, mut grant: Grant, ttl: Duration) -> Grant {
        match self.bug {
            Bug::FencesRepeat => grant.fence = Fence::new(7),
            Bug::FencesCountFromOne => grant.fence = Fence::new(1),
            Bug::FencesAreMissing => grant.fence = Fence::UNFENCED,
            Bug::TimeLeftIsNotSaid => grant.left = None,
            Bug::KeepsLessThanItSays => grant.left = grant.left.map(|left| left + ttl * 9 / 10),
            Bug::LeasesNeverExpire => grant.left = Some(ttl),
            _ => {}
        }
        grant
    }

    /// A ttl as this store keeps it.
    fn kept(&self, ttl: Duration) -> Duration {
        match self.bug {
            Bug::KeepsLessThanItSays => ttl / 10,
            Bug::LeasesNeverExpire => DAY,
            _ => ttl,
        }
    }

    /// A claim as this store takes it.
    async fn taken(&self, claim: &Claim, seen: &NameInfo) -> Claim {
        let mut claim = claim.clone();
        claim.name = self.name(&claim.name);
        claim.ttl = self.kept(claim.ttl);
        match (self.bug, claim.mode) {
            (Bug::ExclusiveIsShared, Mode::Exclusive) => claim.mode = Mode::Shared,
            (Bug::SharedIsExclusive, Mode::Shared) => claim.mode = Mode::Exclusive,
            (Bug::OnePermitTooMany, Mode::Permit { limit }) => claim.mode = Mode::Permit { limit: limit + 1 },
            (Bug::ReadersShareOneTtl, Mode::Shared) => {
                let longest = seen.holders.iter().filter_map(|holder| holder.grant.left).max();
                claim.ttl = claim.ttl.max(longest.unwrap_or_default());
            }
            (Bug::RepeatIsForgotten, _) => claim.repeat = false,
            (Bug::NonceIsForgotten, _) => (claim.nonce, claim.first) = (0, true),
            (Bug::AnyCallSetsTheNonce, _) => claim.first = true,
            (Bug::TryJoinsTheQueue, _) => claim.queue = Some(claim.queue.unwrap_or(Duration::from_secs(5))),
            (Bug::TicketsNeverLapse, _) => claim.queue = claim.queue.map(|_| DAY),
            (Bug::TextEndsAtNul, _) => {
                claim.owner = until_nul(&claim.owner);
                claim.metadata = claim.metadata.as_deref().map(until_nul);
            }
            _ => {}
        }
        claim
    }

    /// Puts everybody else who waits behind the newcomer.
    async fn send_to_the_back(&self, claim: &Claim) {
        for waiter in self.view(&claim.name).await.waiters {
            let other = lock(&self.common).claims.get(&waiter.id).cloned();
            if let Some(other) = other.filter(|other| other.id != claim.id) {
                self.inner.release(&plain(&other)).await.unwrap();
                self.inner.try_acquire(&other).await.unwrap();
            }
        }
    }

    async fn renew_one(&self, asked: &Renewal) -> Result<Renewed> {
        let mut renewal = asked.clone();
        renewal.name = self.name(&renewal.name);
        renewal.ttl = self.kept(renewal.ttl);
        let info = self.view(&renewal.name).await;
        let holder = info.holders.iter().find(|holder| holder.id == renewal.id);
        let claim = lock(&self.common).claims.get(&renewal.id).cloned();
        match self.bug {
            Bug::FencesRepeat | Bug::FencesCountFromOne | Bug::FencesAreMissing | Bug::FenceIsNotCompared => {
                renewal.fence = None;
            }
            Bug::OwnerIsNotCompared => renewal.owner = None,
            Bug::NameIsNotCompared => {
                renewal.name = claim.map_or(renewal.name, |claim| claim.name);
            }
            Bug::KnowsOnlyItsOwn if !lock(&self.mine).contains(&renewal.id) => {
                return Ok(Renewed::Gone(Gone::NotFound));
            }
            Bug::RenewShortens => renewal.shorten = holder.map(|holder| holder.grant.renewals),
            Bug::RenewAddsToWhatIsLeft => {
                renewal.ttl += holder.and_then(|holder| holder.grant.left).unwrap_or_default();
            }
            Bug::ShortenIgnoresTheCount if renewal.shorten.is_some() => {
                renewal.shorten = holder.map(|holder| holder.grant.renewals);
            }
            Bug::ShortenDoesNothing if renewal.shorten.is_some() => {
                let mut grant = holder.unwrap().grant.clone();
                (grant.left, grant.renewals) = (Some(renewal.ttl), grant.renewals + 1);
                return Ok(Renewed::Held(grant));
            }
            Bug::RenewDoesNothing => {
                if let Some(holder) = holder {
                    let mut grant = holder.grant.clone();
                    grant.left = Some(renewal.ttl);
                    return Ok(Renewed::Held(grant));
                }
            }
            Bug::RenewHoldsAnyId => {
                let fence = renewal.fence.unwrap_or(Fence::new(1));
                return Ok(Renewed::Held(Grant::new(fence, Mode::Exclusive, Some(renewal.ttl))));
            }
            Bug::RenewRevives => {
                if let (None, Some(claim)) = (holder, claim)
                    && let Attempt::Granted(grant) = self.inner.try_acquire(&claim).await?
                {
                    return Ok(Renewed::Held(grant));
                }
            }
            Bug::RenewLooksThenWrites => {
                if let (Some(_), Some(claim)) = (holder, claim) {
                    tokio::task::yield_now().await;
                    if let Attempt::Granted(grant) = self.inner.try_acquire(&claim).await? {
                        return Ok(Renewed::Held(grant));
                    }
                }
            }
            Bug::RenewRaisesTheFence => {
                renewal.raise_fence = holder.map(|holder| Fence::new(holder.grant.fence.get() + 1));
            }
            Bug::RaiseIsForgotten => renewal.raise_fence = None,
            Bug::DowngradeIsReleaseAndAcquire if renewal.mode == Some(Mode::Shared) => {
                if let (Some(holder), Some(mut claim)) = (holder, claim)
                    && holder.grant.mode == Mode::Exclusive
                {
                    self.inner.release(&plain(&claim)).await?;
                    claim.mode = Mode::Shared;
                    if let Attempt::Granted(grant) = self.inner.try_acquire(&claim).await? {
                        return Ok(Renewed::Held(grant));
                    }
                    return Ok(Renewed::Gone(Gone::NotFound));
                }
            }
            Bug::UpgradeIsGranted if renewal.mode == Some(Mode::Exclusive) => renewal.mode = None,
            Bug::RevokeMarksTheName if lock(&self.common).revoked.contains(&renewal.name) => {
                return Ok(Renewed::Gone(Gone::Revoked));
            }
            Bug::StraysLeaveSomething if info.version == 0 => {
                let claim = Claim::new(renewal.name.clone(), Mode::Exclusive, DAY, "stray");
                self.inner.try_acquire(&claim).await?;
                self.inner.release(&plain(&claim)).await?;
            }
            _ => {}
        }
        match self.inner.renew(&[renewal]).await.remove(0)? {
            Renewed::Held(grant) => Ok(Renewed::Held(self.told(grant, asked.ttl))),
            gone => Ok(gone),
        }
    }
}

#[async_trait]
impl Backend for Broken {
    fn info(&self) -> Info {
        let mut info = self.inner.info();
        match self.bug {
            Bug::InfoChanges if self.second => info.fifo = false,
            Bug::SaysItCannotRevoke => info.revoke = false,
            _ => {}
        }
        info
    }

    async fn try_acquire(&self, asked: &Claim) -> Result<Attempt> {
        let seen = self.view(&self.name(&asked.name)).await;
        let claim = self.taken(asked, &seen).await;
        lock(&self.mine).insert(claim.id);
        let known = lock(&self.common).claims.insert(claim.id, claim.clone()).is_some();
        let holds = seen.holders.iter().any(|holder| holder.id == claim.id);
        let waits = seen.waiters.iter().any(|waiter| waiter.id == claim.id);
        match self.bug {
            Bug::Panics => panic!("the store is on fire"),
            Bug::Hangs => return std::future::pending().await,
            Bug::LooksThenGrants => {
                let room = match claim.mode {
                    Mode::Permit { limit } => limit as usize,
                    _ => 1,
                };
                tokio::task::yield_now().await;
                if seen.holders.len() < room {
                    self.inner.try_acquire(&claim).await?;
                    return Ok(fake(&claim));
                }
            }
            Bug::GrantsAreNotStored if seen.holders.is_empty() => return Ok(fake(&claim)),
            Bug::QueueingNeverEntersAtOnce if claim.queue.is_some() && !known => {
                return Ok(Attempt::Busy(Busy::unknown()));
            }
            Bug::RepeatIsANewGrant if holds => {
                self.inner.release(&plain(&claim)).await?;
            }
            Bug::RepeatRearms if holds => {
                let renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
                self.inner.renew(&[renewal]).await.remove(0)?;
            }
            Bug::RepeatTakesAnotherPermit if holds => {
                let mut other = claim.clone();
                other.id = LeaseId::random();
                self.inner.try_acquire(&other).await?;
            }
            Bug::RepeatStandsInLine if holds && !seen.waiters.is_empty() => {
                return Ok(Attempt::Busy(Busy::unknown()));
            }
            Bug::SpentOnlyForTheTtl => {
                let over = lock(&self.common).spent.get(&claim.id).copied();
                if over.is_some_and(|over| Instant::now() < over) {
                    return Ok(Attempt::Gone(Gone::Superseded));
                }
            }
            Bug::RefreshLosesThePlace | Bug::LookingLosesThePlace
                if waits && (self.bug == Bug::RefreshLosesThePlace || claim.queue.is_none()) =>
            {
                self.inner.release(&plain(&claim)).await?;
            }
            Bug::RefreshDoesNotKeepThePlace if waits && !seen.holders.is_empty() => {
                let mut look = claim.clone();
                look.queue = None;
                return self.inner.try_acquire(&look).await;
            }
            _ => {}
        }
        let answer = self.inner.try_acquire(&claim).await;
        match (self.bug, answer) {
            (Bug::MismatchIsBusy, Err(error)) if error.kind() == ErrorKind::Mismatch => {
                Ok(Attempt::Busy(Busy::unknown()))
            }
            (Bug::WaitersMayChangeTheirMode, Err(error)) if error.kind() == ErrorKind::InvalidArgument => {
                self.inner.release(&plain(&claim)).await?;
                self.inner.try_acquire(&claim).await
            }
            (Bug::OverflowIsGranted, Err(error)) if error.kind() == ErrorKind::Internal => Ok(fake(&claim)),
            (Bug::ReadersOvertake, Ok(Attempt::Busy(_)))
                if claim.mode == Mode::Shared
                    && !seen.holders.is_empty()
                    && seen.holders.iter().all(|holder| holder.grant.mode == Mode::Shared) =>
            {
                Ok(fake(&claim))
            }
            (Bug::NewcomersGoFirst, Ok(Attempt::Busy(busy))) if !waits && claim.queue.is_some() => {
                self.send_to_the_back(&claim).await;
                Ok(Attempt::Busy(busy))
            }
            (_, Ok(Attempt::Granted(mut grant))) => {
                if matches!(self.bug, Bug::ExclusiveIsShared | Bug::SharedIsExclusive) {
                    grant.mode = asked.mode;
                }
                Ok(Attempt::Granted(self.told(grant, asked.ttl)))
            }
            (_, answer) => answer,
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let mut claim = claim.clone();
        claim.name = self.name(&claim.name);
        let mut wait = pin!(self.inner.wait(&claim));
        match self.bug {
            Bug::WaitNeverWakes => return std::future::pending().await,
            Bug::WakeUpsBeforeTheWaitAreLost => {
                let first = std::future::poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx)));
                if first.await.is_ready() {
                    return std::future::pending().await;
                }
            }
            Bug::ADroppedWaitIsDeaf if !lock(&self.common).deaf.insert(claim.id) => {
                return std::future::pending().await;
            }
            Bug::PlacesOutliveTheirWait => {
                let (inner, claim) = (self.inner.clone(), claim.clone());
                tokio::spawn(async move {
                    for _ in 0..2000 {
                        let _ = inner.try_acquire(&claim).await;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
            }
            Bug::OnlySoManyAreWoken => {
                let many = {
                    let mut common = lock(&self.common);
                    let waits = common.waits.entry(claim.name.clone()).or_default();
                    *waits += 1;
                    *waits
                };
                if many > 128 {
                    return std::future::pending().await;
                }
            }
            _ => {}
        }
        match wait.await? {
            Wake::Granted(mut grant) => {
                if self.bug == Bug::WaitOverstatesTheWait {
                    grant.waited += Duration::from_secs(1);
                }
                Ok(Wake::Granted(self.told(grant, claim.ttl)))
            }
            other => Ok(other),
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::new();
        for renewal in leases {
            answers.push(self.renew_one(renewal).await);
        }
        match self.bug {
            Bug::BatchIsAnsweredInReverse => answers.reverse(),
            Bug::BatchIsCutAt50 => answers.truncate(50),
            _ => {}
        }
        answers
    }

    async fn release(&self, asked: &Release) -> Result<Released> {
        let mut release = asked.clone();
        release.name = self.name(&release.name);
        let claim = lock(&self.common).claims.get(&release.id).cloned();
        match self.bug {
            Bug::FencesRepeat | Bug::FencesCountFromOne | Bug::FencesAreMissing | Bug::FenceIsNotCompared => {
                release.fence = None;
            }
            Bug::OwnerIsNotCompared => release.owner = None,
            Bug::NameIsNotCompared => release.name = claim.map_or(release.name, |claim| claim.name),
            Bug::TextEndsAtNul => release.owner = None,
            Bug::KnowsOnlyItsOwn if !lock(&self.mine).contains(&release.id) => {
                return Ok(Released::Gone(Gone::NotFound));
            }
            Bug::ReleaseTakesWhoeverHolds => {
                let holder = self.claims_on(&release.name).await;
                release.id = holder.map_or(release.id, |holder| holder.id);
            }
            Bug::ReleaseDoesNothing => return Ok(Released::Done),
            Bug::PlacesAreNotGivenUp => {
                let waiters = self.view(&release.name).await.waiters;
                if waiters.iter().any(|waiter| waiter.id == release.id) {
                    return Ok(Released::Done);
                }
            }
            Bug::UnansweredIsForgotten => release.unanswered = None,
            Bug::SpentOnlyForTheTtl => {
                if let Some(ttl) = release.unanswered.take() {
                    lock(&self.common).spent.insert(release.id, Instant::now() + ttl);
                }
            }
            Bug::NonceIsForgotten => release.nonce = None,
            _ => {}
        }
        let answer = self.inner.release(&release).await?;
        Ok(if self.bug == Bug::ReleaseIsAlwaysDone { Released::Done } else { answer })
    }

    async fn revoke(&self, name: &Name, now: bool) -> Result<Revoked> {
        match self.bug {
            Bug::RevokeDoesNothing => return Ok(Revoked::default()),
            Bug::RevokeMarksTheName => {
                lock(&self.common).revoked.insert(name.clone());
            }
            Bug::RevokedIdsAreNotSpent if now => {
                let claim = self.claims_on(name).await.unwrap();
                self.inner.release(&plain(&claim)).await?;
                let mut revoked = Revoked::default();
                revoked.leases = 1;
                return Ok(revoked);
            }
            _ => {}
        }
        self.inner.revoke(name, now).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = match query {
            Query::Name(name) => {
                if self.bug == Bug::LookingRenews
                    && let Some(claim) = self.claims_on(name).await
                {
                    let renewal = Renewal::new(name.clone(), claim.id, claim.ttl);
                    self.inner.renew(&[renewal]).await;
                }
                let mut page = self.inner.inspect(&Query::Name(self.name(name))).await?;
                page.items[0].name = name.clone();
                if self.bug == Bug::InspectShowsExpired && page.items[0].holders.is_empty() {
                    let claims: Vec<Claim> = lock(&self.common).claims.values().cloned().collect();
                    if claims.iter().any(|claim| claim.name == *name) {
                        let ghost = Claim::new(Name::new("ghost").unwrap(), Mode::Exclusive, DAY, "ghost");
                        self.inner.try_acquire(&ghost).await?;
                        page.items[0].holders = self.view(&ghost.name).await.holders;
                    }
                }
                for info in &mut page.items {
                    self.show(info);
                }
                return Ok(page);
            }
            Query::LeaseId(_) if self.bug == Bug::FindsNothingById => return Ok(Page::default()),
            Query::Prefix { stored, limit, cursor } if self.bug == Bug::PrefixIsAPattern => {
                let stored = stored.split(['%', '_', '*', '?']).next().unwrap().to_owned();
                Query::Prefix { stored, limit: *limit, cursor: cursor.clone() }
            }
            other => other.clone(),
        };
        let mut page = self.inner.inspect(&query).await?;
        if self.bug == Bug::InspectLooksTwice {
            for item in &mut page.items {
                tokio::time::sleep(Duration::from_millis(1)).await;
                *item = self.view(&item.name).await;
            }
        }
        if self.bug == Bug::PagesLoseOne && page.next.is_some() {
            page.items.pop();
        }
        Ok(page)
    }

    async fn sweep(&self) -> Result<Swept> {
        if self.bug == Bug::SweepTakesLiveLeases {
            let claims: Vec<Claim> = lock(&self.common).claims.values().cloned().collect();
            for claim in claims {
                self.inner.release(&plain(&claim)).await?;
            }
        }
        self.inner.sweep().await
    }
}

impl Broken {
    /// What there is to see, as this store shows it.
    fn show(&self, info: &mut NameInfo) {
        match self.bug {
            Bug::InspectHidesMetadata => info.holders.iter_mut().for_each(|holder| holder.metadata = None),
            Bug::InspectShowsItBackwards => {
                info.holders.reverse();
                info.waiters.reverse();
            }
            Bug::VersionStandsStill => info.version = info.version.min(1),
            Bug::FencesRepeat => {
                info.holders.iter_mut().for_each(|holder| holder.grant.fence = Fence::new(7));
                info.last_fence = Fence::new(7);
            }
            _ => {}
        }
    }
}

async fn harness(bug: Bug) -> Harness {
    let inner = Memory::new();
    let common = Arc::<Mutex<Common>>::default();
    let store = |second| {
        let (inner, common) = (inner.clone(), Arc::clone(&common));
        Arc::new(Broken { inner, bug, common, mine: Mutex::default(), second })
    };
    // What never happens need not be waited for for long.
    Harness::new(store(false)).second(store(true)).patience(Duration::from_millis(700))
}

fn check(name: &str) -> Check {
    let found = checks().into_iter().find(|check| check.name() == name);
    found.unwrap_or_else(|| panic!("there is no check {name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_planted_bug_is_seen_by_the_checks_that_must_see_it() {
    let pairs = BUGS.iter().flat_map(|(bug, checks)| checks.iter().map(|name| (*bug, *name)));
    let run = |(bug, name): (Bug, &'static str)| async move {
        let mut unseen = None;
        // On a busy machine a look may come too late to see what was too early; then with longer times.
        for factor in [1, 2, 4, 8, 16] {
            match check(name).run(&harness(bug).await.slower(factor)).await {
                Ok(()) => unseen = Some(format!("{bug:?} is not seen by {name}")),
                // A check that breaks down has seen nothing.
                Err(failure) if failure.location().is_none() => {
                    unseen = Some(format!("{bug:?}: {name}: {failure}"));
                }
                Err(failure) => {
                    println!("{bug:?}: {name}: {}", failure.message());
                    return None;
                }
            }
        }
        unseen
    };
    let unseen: Vec<String> = futures_util::stream::iter(pairs)
        .map(run)
        .buffer_unordered(24)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(unseen.is_empty(), "{unseen:#?}");
}

#[test]
fn every_check_is_shown_to_fail() {
    let shown: BTreeSet<&str> = BUGS.iter().flat_map(|(_, checks)| checks.iter().copied()).collect();
    let never: Vec<&str> =
        checks().iter().map(|check| check.name()).filter(|name| !shown.contains(name)).collect();
    assert!(never.is_empty(), "no planted bug makes these fail: {never:#?}");
}

/// What fails above fails because of the bug, not because of the wrapper.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_bug_every_check_passes() {
    let report = run_all(&harness(Bug::None).await.patience(Duration::from_secs(10))).await;
    report.assert_passed();
}

#[tokio::test]
async fn a_panic_and_a_hang_are_failures_of_the_check() {
    let check = check("one_exclusive_lease_excludes_another");
    let failure = check.run(&harness(Bug::Panics).await).await.unwrap_err();
    assert_eq!(failure.to_string(), "it panicked: the store is on fire");
    let impatient = harness(Bug::Hangs).await.patience(Duration::from_millis(10));
    let failure = check.run(&impatient).await.unwrap_err();
    assert_eq!(failure.to_string(), "it did not end within 120ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_tells_of_failures_and_of_what_was_left_out() {
    let seen = "grants_without_fences_say_so";
    let report = run_all(&harness(Bug::FencesAreMissing).await.without(seen, "it is known")).await;
    assert!(!report.is_passed());
    assert!(report.failures().all(|(check, _)| check.name() != seen));
    let (text, failures) = (report.to_string(), report.failures().count());
    assert!(text.contains(&format!(" {failures} failed, 4 do not apply, 1 left out")), "{text}");
    assert!(text.contains("it is known") && text.contains("conformance/raw/fences.rs:"), "{text}");

    let patient = harness(Bug::None).await.patience(Duration::from_secs(10));
    let report = run_all(&patient.without("no_such_check", "it was renamed")).await;
    assert!(!report.is_passed() && report.failures().count() == 0);
    assert!(report.to_string().contains("there is no check no_such_check to leave out"));
}
