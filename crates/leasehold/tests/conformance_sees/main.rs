//! Shows that the suite sees bugs: stores with one planted bug each, and the checks that must fail on them.
//!
//! A check that cannot fail is worth nothing, so every check of the list is named here at least once.

#![allow(clippy::unwrap_used)] // also in helpers of tests

mod broken;

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use leasehold::backend::Backend as _;
use leasehold::conformance::{Check, Harness, checks, run_all};

use crate::broken::Broken;

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
        try_lock_is_one_attempt_and_none_while_held, one_candidate_leads_at_a_time_and_terms_rise,
        a_mutex_is_the_write_side_of_the_rwlock_of_its_name,
        readers_never_meet_a_writer_under_stress, an_unprotected_counter_is_never_miscounted_under_stress,
        normal_forms_of_one_name_are_one_name;
    SharedIsExclusive: readers_hold_together_and_a_writer_waits_for_the_last,
        readers_that_stand_together_enter_together, readers_share_and_a_writer_waits_for_all_of_them;
    OnePermitTooMany: no_more_permits_than_the_limit_and_a_released_one_comes_back,
        racing_permits_never_exceed_the_limit, a_semaphore_lets_in_as_many_as_there_are_free_permits,
        a_semaphore_never_has_more_holders_than_permits;
    LooksThenGrants: of_many_who_race_for_a_new_name_exactly_one_wins, racing_permits_never_exceed_the_limit,
        of_many_who_race_for_an_expired_lease_exactly_one_wins,
        holders_that_exclude_each_other_never_believe_together;
    GrantsAreNotStored: what_was_granted_is_stored, what_is_held_is_seen_and_nothing_secret_is_shown;
    QueueingNeverEntersAtOnce: a_claim_that_queues_for_a_free_name_is_granted_at_once;
    MismatchIsBusy: kinds_do_not_mix_while_in_use_and_may_change_at_rest,
        limits_do_not_mix_while_in_use_and_may_change_at_rest, waiters_keep_their_kind,
        another_kind_or_limit_is_a_mismatch;
    ReleaseIsAlwaysDone: concurrent_releases_end_a_lease_exactly_once,
        releasing_what_was_revoked_at_once_says_lost, a_plain_lease_is_renewed_and_released_as_data,
        a_wrong_id_renews_and_releases_nothing;
    ReleaseDoesNothing: at_rest_nothing_is_left_but_the_fence, dropping_a_guard_releases_it,
        several_names_are_held_all_or_none,
        release_says_released_and_the_next_gets_in, with_lock_keeps_the_error_of_the_work_and_releases,
        close_aborts_waiters_and_sends_outstanding_releases;
    ReleaseTakesEveryHolder: a_wrong_id_renews_and_releases_nothing,
        a_late_renewal_or_release_does_not_touch_the_next_holder,
        a_release_after_expiry_is_gone_and_spares_the_new_holder;
    KnowsOnlyItsOwn: a_lease_can_be_renewed_and_released_through_another_client,
        a_guard_becomes_a_lease_and_another_client_adopts_it;

    RepeatIsANewGrant: a_repeat_gives_the_same_grant;
    RepeatRearms: a_repeat_does_not_rearm_the_lease;
    RepeatTakesAnotherPermit: a_repeat_is_no_second_grant;
    RepeatStandsInLine: a_repeat_is_not_held_up_by_waiters;
    WaitersMayChangeTheirMode: a_claim_that_waits_for_one_mode_cannot_wait_for_another;
    UnansweredIsForgotten: a_release_that_overtakes_its_attempt_refuses_it,
        an_unanswered_release_of_a_held_lease_spends_its_id,
        an_unanswered_release_of_a_place_in_the_queue_spends_its_id;
    SpentOnlyForTheTtl: a_spent_id_is_refused_for_longer_than_its_ttl;
    RepeatIsForgotten: the_id_of_a_repeated_claim_is_refused_after_its_release,
        the_id_of_a_repeated_claim_is_refused_after_it_expired, a_repeat_in_the_queue_is_remembered_by_the_lease;
    NonceIsForgotten: a_release_with_an_old_nonce_is_superseded,
        a_call_with_an_old_nonce_is_superseded_and_changes_nothing, a_place_in_the_queue_obeys_nonces_too;
    ZeroIsNumberedAnew: a_release_with_the_nonce_of_its_attempt_acts;
    AnyCallSetsTheNonce: a_call_with_an_old_nonce_is_superseded_and_changes_nothing;

    TimeLeftIsNotSaid: a_grant_says_how_long_it_lasts;
    KeepsLessThanItSays: the_next_takes_over_at_expiry_without_a_sweep_and_not_before,
        a_waiting_acquire_takes_over_when_the_holder_dies,
        holders_that_exclude_each_other_never_believe_together;
    LeasesNeverExpire: the_next_takes_over_at_expiry_without_a_sweep_and_not_before,
        the_permit_of_a_holder_that_died_comes_back, the_queue_moves_on_when_a_lease_expires,
        a_waiting_acquire_takes_over_when_the_holder_dies, a_guard_is_lost_by_the_end_of_max_hold;
    RenewRevives: an_expired_lease_is_gone_for_ever_though_the_name_is_free;
    RenewHoldsAnyId: an_expired_lease_is_gone_for_ever_though_the_name_is_free,
        a_wrong_id_renews_and_releases_nothing, a_guard_whose_lease_is_gone_is_lost_with_the_reason;
    ReadersShareOneTtl: every_reader_has_a_ttl_of_its_own;
    InspectShowsExpired: what_has_expired_is_not_shown;
    SweepTakesLiveLeases: a_sweep_never_touches_a_live_lease_and_keeps_the_fence;

    FenceIsNotCompared: a_wrong_fence_renews_and_releases_nothing;
    OwnerIsNotCompared: a_wrong_owner_renews_and_releases_nothing,
        only_its_owner_without_a_fence_gives_up_a_place;
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
        fences_rise_over_a_revocation, holders_that_exclude_each_other_never_believe_together, fences_of_permits_are_unique_and_rise,
        a_lock_waits_and_is_handed_over_with_a_higher_fence, one_candidate_leads_at_a_time_and_terms_rise,
        an_unprotected_counter_is_never_miscounted_under_stress;
    FencesCountFromOne: fences_follow_the_clock_so_that_a_lost_counter_does_no_harm;
    RaiseIsForgotten: a_raised_fence_lifts_lease_and_counter;
    RaiseHasNoBound: a_fence_is_raised_at_most_a_day_ahead;
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
        a_cancelled_wait_is_aborted_and_leaves_nothing, close_aborts_waiters_and_sends_outstanding_releases;

    WaitNeverWakes: no_wake_up_is_lost_between_the_attempt_and_the_wait,
        no_wake_up_is_lost_when_the_release_races_the_wait, a_wait_that_was_dropped_can_be_called_again,
        the_one_whose_turn_it_is_is_woken, a_crowd_is_woken_one_after_the_other,
        more_readers_than_one_call_wakes_are_all_woken, giving_up_a_place_wakes_those_it_held_back,
        a_downgrade_wakes_the_readers, a_revocation_wakes_the_next;
    WakeUpsBeforeTheWaitAreLost: no_wake_up_is_lost_between_the_attempt_and_the_wait;
    WaitOverstatesTheWait: a_grant_by_a_wake_up_is_believed_no_longer_than_it_lasts;
    ADroppedWaitIsDeaf: a_wait_that_was_dropped_can_be_called_again;
    OnlySoManyAreWoken: more_readers_than_one_call_wakes_are_all_woken;

    RevokeDoesNothing: a_revoked_lease_is_not_renewed_and_passes_at_its_expiry,
        revoking_now_frees_the_name_at_once_and_for_good, a_revocation_meets_every_holder_and_no_later_one,
        a_revoked_guard_is_lost_with_the_reason, releasing_what_was_revoked_at_once_says_lost;
    RevokeMarksTheName: revoking_a_name_nobody_holds_does_nothing,
        a_revocation_meets_every_holder_and_no_later_one;
    RevokeMeetsAnybody: a_revocation_of_one_fence_meets_that_lease_only,
        a_revocation_of_one_permit_leaves_the_others;
    RevokedIdsAreNotSpent: revoking_now_frees_the_name_at_once_and_for_good;
    SaysItCannotRevoke: what_the_store_cannot_do_is_unsupported;

    LapsedPlacesAreForgotten: a_lapsed_place_of_a_repeated_claim_refuses_its_id;
    RevokedRepeatsAreRefused: a_softly_revoked_lease_still_answers_its_repeat;
    RevokedComesFirst: a_renewal_is_refused_by_the_first_rule_that_applies;
    BusyNamesTheOther: a_refusal_names_the_holder_that_is_in_the_way;
    FiftyWaitersAreShown: of_many_waiters_the_first_hundred_are_shown_and_all_counted;
    ReadersGoInWithoutEnd: no_more_than_128_go_in_at_a_time;
    NoPermitsIsOne: a_semaphore_without_permits_lets_nobody_in;
    LongTimesWrap: the_longest_ttl_is_kept_and_can_be_renewed;
    PlacesMoveTheVersion: places_in_the_queue_do_not_move_the_version;

    StraysLeaveSomething: a_name_nobody_ever_used_is_one_unused_item;
    InspectLooksTwice: what_is_found_is_in_use_whatever_goes_on_beside;
    InspectHidesMetadata: inspecting_shows_the_holder_as_it_is, one_candidate_leads_at_a_time_and_terms_rise;
    InspectShowsItBackwards: inspecting_shows_the_queue_in_order, holders_are_shown_oldest_first,
        of_many_holders_the_oldest_hundred_are_shown_and_all_counted;
    OnlyTheShownAreCounted: of_many_holders_the_oldest_hundred_are_shown_and_all_counted;
    OneHolderTooManyIsShown: of_many_holders_the_oldest_hundred_are_shown_and_all_counted;
    FindsByIdOnlyTheOldest: of_many_holders_the_oldest_hundred_are_shown_and_all_counted;
    LookingRenews: looking_changes_nothing;
    FindsNothingById: inspecting_by_id_finds_leases_and_places_and_nothing_else,
        a_plain_lease_is_renewed_and_released_by_its_id, a_lease_is_looked_up_by_its_id;
    PrefixIsAPattern: inspecting_by_prefix_pages_through_the_names_in_use_in_order;
    PagesOfNothing: inspecting_by_prefix_pages_through_the_names_in_use_in_order;
    PagesLoseOne: inspecting_by_prefix_pages_through_the_names_in_use_in_order, what_is_held_is_listed;
    VersionStandsStill: the_version_rises_with_every_change_of_a_lease;
    TextEndsAtNul: owner_and_metadata_can_be_any_text;

    NotesAreForgotten: a_note_is_written_with_a_renewal_and_everybody_sees_it,
        a_note_is_written_with_a_release_and_stays, a_permit_writes_a_note_like_any_lease,
        a_note_in_a_batch_goes_to_its_own_name, a_guard_leaves_notes_that_every_client_reads;
    NotesAreSeenByNameOnly: the_lists_show_notes_too;
    NotesNeedNoLease: a_refused_renewal_or_release_writes_no_note, a_lease_that_is_over_writes_no_note,
        a_place_in_the_queue_writes_no_note;
    AnyNoteReplaces: a_late_duplicate_of_a_note_does_not_replace_a_later_one,
        a_note_of_a_lower_fence_does_not_replace_one_of_a_higher;
    NotesAreCut: a_note_keeps_its_text_exactly;
    EmptyNotesAreNone: an_empty_text_clears_a_note, a_guard_leaves_notes_that_every_client_reads;
    SaysItKeepsNoNotes: a_store_without_notes_refuses_them_and_does_nothing;

    NamesIgnoreCase: names_that_look_alike_are_names_of_their_own;
    NamesAreTrimmed: names_that_look_alike_are_names_of_their_own;
    NamesAreCut: names_may_have_512_bytes;
    NamespacesMeet: namespaces_never_meet;
}

async fn harness(bug: Bug) -> Harness {
    let [first, second] = Broken::pair(bug);
    // No need to wait long for what never happens.
    Harness::new(first).second(second).patience(Duration::from_millis(700))
}

fn check(name: &str) -> Check {
    let found = checks().into_iter().find(|check| check.name() == name);
    found.unwrap_or_else(|| panic!("there is no check {name}"))
}

/// The result of some work, and the longest delay of its runtime meanwhile.
async fn with_delay<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let mut work = pin!(work);
    let mut most = Duration::ZERO;
    loop {
        let due = Instant::now() + Duration::from_millis(5);
        let result = tokio::time::timeout_at(due.into(), &mut work).await;
        most = most.max(due.elapsed());
        if let Ok(result) = result {
            return (most, result);
        }
    }
}

/// A random history: it may miss a race, and then gets another, longer try.
const BY_CHANCE: &str = "holders_that_exclude_each_other_never_believe_together";

/// Why a check did not see a bug. It has one try. A try during which the machine was late shows nothing, whatever its
/// result: then the check has another one, with longer times.
async fn unseen(bug: Bug, name: &'static str) -> Option<String> {
    for factor in [1, 2, 4, 8, 16, 32] {
        let (late, result) = with_delay(check(name).run(&harness(bug).await.slower(factor))).await;
        if late > factor * Duration::from_millis(50) {
            continue;
        }
        return match result {
            Ok(()) if name == BY_CHANCE && factor < 16 => continue,
            Ok(()) => Some(format!("{bug:?} is not seen by {name}")),
            // A check that breaks down has seen nothing.
            Err(failure) if failure.location().is_none() => Some(format!("{bug:?}: {name}: {failure}")),
            Err(failure) => {
                println!("{bug:?}: {name}: {}", failure.message());
                None
            }
        };
    }
    Some(format!("{bug:?}: {name}: this machine is too slow"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_planted_bug_is_seen_by_the_checks_that_must_see_it() {
    let pairs = BUGS.iter().flat_map(|(bug, checks)| checks.iter().map(|name| (*bug, *name)));
    let unseen: Vec<String> = futures_util::stream::iter(pairs)
        // Each runs on the threads of the checks, where their delays are felt.
        .map(|(bug, name)| tokio::spawn(unseen(bug, name)))
        .buffer_unordered(24)
        .filter_map(|ended| std::future::ready(ended.unwrap()))
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

/// Shows that what fails above fails because of the bug, not because of the wrapper.
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
async fn the_report_lists_failures_and_what_was_left_out() {
    let seen = "grants_without_fences_say_so";
    let report = run_all(&harness(Bug::FencesAreMissing).await.without(seen, "it is known")).await;
    assert!(!report.is_passed());
    assert!(report.failures().all(|(check, _)| check.name() != seen));
    let (text, failures) = (report.to_string(), report.failures().count());
    assert!(text.contains(&format!(" {failures} failed, 5 do not apply, 1 left out")), "{text}");
    assert!(text.contains("it is known") && text.contains("conformance/raw/fences.rs:"), "{text}");

    assert!(report.summary().contains("\n  1 skipped: left out: it is known"), "{}", report.summary());

    let patient = harness(Bug::None).await.patience(Duration::from_secs(10));
    let report = run_all(&patient.without("no_such_check", "it was renamed")).await;
    assert!(!report.is_passed() && report.failures().count() == 0);
    assert!(report.to_string().contains("there is no check no_such_check to leave out"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_says_how_many_checks_were_skipped_and_why() {
    let report = run_all(&harness(Bug::SaysItCannotRevoke).await.patience(Duration::from_secs(10))).await;
    let (summary, needs) = (report.summary(), "leases cannot be revoked");
    let skipped = checks()
        .iter()
        .filter_map(|check| check.why_not(&Broken::pair(Bug::SaysItCannotRevoke)[0].info()))
        .filter(|why| why == needs)
        .count();
    assert!(skipped > 5 && summary.contains(&format!("\n  {skipped} skipped: {needs}")), "{summary}");
    // A check that applies says which of its parts it could not judge.
    assert!(summary.contains("skipped: in part: revocation"), "{summary}");
    assert!(report.to_string().contains("not judged: revocation"), "{report}");
}
