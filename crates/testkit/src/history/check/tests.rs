use super::*;

/// A history written by hand: who, what, when, and for a lease its fence and deadline.
#[derive(Default)]
struct Story(Vec<Vec<Record>>);

impl Story {
    fn add(mut self, worker: u32, kind: Kind, claim: u64, at: u64, fence: u64, deadline: u64) -> Self {
        let shared = claim >= 100;
        let lease = u64::from(worker) * 1000 + claim;
        self.0.resize(self.0.len().max(worker as usize + 1), Vec::new());
        let record = Record { kind, shared, worker, claim, at, lease, fence, deadline };
        self.0[worker as usize].push(record);
        self
    }

    /// An acquire; claims from 100 on are shared.
    fn grant(self, worker: u32, claim: u64, (call, at): (u64, u64), fence: u64, deadline: u64) -> Self {
        self.add(worker, Kind::AcquireCall, claim, call, 0, 0).add(
            worker,
            Kind::Granted,
            claim,
            at,
            fence,
            deadline,
        )
    }

    fn held(self, worker: u32, claim: u64, at: u64, deadline: u64) -> Self {
        self.add(worker, Kind::Held, claim, at, 0, deadline)
    }

    fn release(self, worker: u32, claim: u64, at: u64) -> Self {
        self.add(worker, Kind::ReleaseCall, claim, at, 0, 0).add(worker, Kind::Released, claim, at + 1, 0, 0)
    }

    #[track_caller]
    fn passes(self) -> Summary {
        check(&self.0).unwrap()
    }

    #[track_caller]
    fn breaks(self, invariant: &str) {
        let broken: Vec<_> =
            check(&self.0).unwrap_err().iter().map(|violation| violation.invariant).collect();
        assert!(broken.contains(&invariant), "{broken:?}");
    }
}

fn first() -> Story {
    Story::default().grant(0, 1, (10, 20), 5, 100).held(0, 1, 50, 100)
}

#[test]
fn one_after_the_other_passes() {
    let story = first().release(0, 1, 60).grant(1, 1, (15, 61), 6, 200).held(1, 1, 70, 200).release(1, 1, 80);
    let summary = story.passes();
    assert_eq!((summary.grants, summary.handovers, summary.abandoned, summary.unknown), (2, 1, 0, 0));
}

#[test]
fn one_who_was_killed_is_followed_after_its_deadline() {
    let summary = first().grant(1, 1, (15, 101), 6, 200).release(1, 1, 120).passes();
    assert_eq!((summary.grants, summary.abandoned), (2, 1));
    // A renewal moved the deadline.
    first().held(0, 1, 90, 190).grant(1, 1, (15, 101), 6, 300).breaks("I2");
}

#[test]
fn a_session_lock_is_followed_after_a_kill_or_a_release_and_never_lost() {
    let first = || Story::default().grant(0, 1, (10, 20), 5, SESSION).held(0, 1, 50, SESSION);
    first().grant(1, 1, (15, 51), 6, SESSION).passes();
    first().release(0, 1, 60).grant(1, 1, (15, 61), 6, SESSION).passes();
    first().grant(1, 1, (15, 49), 6, SESSION).breaks("I2");
    first().release(0, 1, 60).grant(1, 1, (15, 59), 6, SESSION).breaks("I2");
    // One that was stopped and went on.
    first().held(0, 1, 90, SESSION).grant(1, 1, (15, 61), 6, SESSION).held(1, 1, 70, SESSION).breaks("I1");
    first().add(0, Kind::LostByRefusal, 1, 60, 0, 0).breaks("I5");
    first().add(0, Kind::ReleaseCall, 1, 60, 0, 0).add(0, Kind::ReleasedNothing, 1, 61, 0, 0).breaks("I5");
}

#[test]
fn an_acquire_without_an_answer_accuses_nobody() {
    let story = first().add(2, Kind::AcquireCall, 1, 1, 0, 0).release(0, 1, 60).grant(1, 1, (15, 61), 6, 200);
    assert_eq!(story.passes().unknown, 1);
}

#[test]
fn a_release_without_an_answer_only_shortens() {
    let story = first().add(0, Kind::ReleaseCall, 1, 60, 0, 0).grant(1, 1, (15, 61), 6, 200);
    assert_eq!(story.passes().grants, 2);
}

#[test]
fn readers_may_be_inside_together_and_a_writer_may_not() {
    let readers = || {
        Story::default()
            .grant(0, 100, (10, 20), 5, 100)
            .grant(1, 100, (11, 21), 6, 100)
            .held(0, 100, 50, 100)
            .held(1, 100, 60, 100)
    };
    assert_eq!(readers().passes().shared, 2);
    readers().grant(2, 1, (12, 55), 7, 200).held(2, 1, 58, 200).breaks("I1");
    readers().grant(2, 1, (12, 99), 7, 200).breaks("I2");
    readers().grant(2, 1, (12, 101), 7, 200).passes();
}

#[test]
fn two_who_believe_at_the_same_time_break_i1() {
    first().grant(1, 1, (15, 40), 6, 200).held(1, 1, 45, 200).breaks("I1");
    // Even if fences say that the other came first.
    first().grant(1, 1, (15, 40), 4, 45).held(1, 1, 44, 45).breaks("I1");
}

#[test]
fn a_grant_before_the_predecessor_ended_breaks_i2() {
    // The first looked last long before, and was killed; its lease still lasted.
    first().grant(1, 1, (15, 99), 6, 200).breaks("I2");
}

#[test]
fn a_fence_that_does_not_rise_breaks_i3() {
    first().release(0, 1, 60).grant(1, 1, (61, 62), 5, 200).breaks("I3");
    first().release(0, 1, 60).grant(1, 1, (61, 62), 4, 200).breaks("I3");
    // Called before the first had returned, it may be the earlier one.
    Story::default().grant(0, 1, (10, 20), 5, 15).grant(1, 1, (19, 30), 4, 18).passes();
}

#[test]
fn a_lease_that_somebody_else_ended_breaks_i5() {
    first().add(0, Kind::ReleaseCall, 1, 60, 0, 0).add(0, Kind::ReleasedNothing, 1, 61, 0, 0).breaks("I5");
    first().add(0, Kind::LostByRefusal, 1, 60, 0, 0).breaks("I5");
    // Past its deadline it may be gone.
    first().add(0, Kind::ReleaseCall, 1, 101, 0, 0).add(0, Kind::ReleasedNothing, 1, 102, 0, 0).passes();
    first().add(0, Kind::LostByRefusal, 1, 101, 0, 0).passes();
}

#[test]
fn a_lease_that_comes_back_breaks_i6() {
    first().add(0, Kind::LostByDeadline, 1, 101, 0, 0).held(0, 1, 110, 300).breaks("I6");
}

#[test]
fn a_loss_that_is_early_or_late_breaks_j3() {
    first().add(0, Kind::LostByDeadline, 1, 99, 0, 0).breaks("J3");
    first().held(0, 1, 100, 100).breaks("J3");
}

#[test]
fn one_id_for_two_breaks_i10() {
    let mut story = first().release(0, 1, 60).grant(1, 1, (61, 62), 6, 200);
    story.0[1][1].lease = story.0[0][1].lease;
    story.breaks("I10");
}

#[test]
fn a_history_that_cannot_be_is_refused() {
    Story::default().add(0, Kind::Granted, 1, 20, 5, 100).breaks("history");
    Story::default().held(0, 1, 20, 100).breaks("history");
}
