//! What takes many records to show: medians, starvation, counts, files, and the checker's own speed.

use std::time::Instant;

use super::notation::{MS, judged, setting};
use crate::check::Invariant::{self, I15, J1, J5};
use crate::check::Judged;
use crate::check::{check, judge};
use crate::history::record::{Kind, Log, Mode, Record};

fn broken(text: &str) -> Vec<Invariant> {
    judged(text).violations.iter().map(|violation| violation.invariant).collect()
}

/// Two clients take turns; the next has its lease this long after the release was called.
fn turns(many: u64, after: u64) -> String {
    let mut text = String::from("1.0 1 call\n1.0 2 granted 1 90\n");
    let mut at = 10;
    for turn in 1..many {
        let (worker, before) = (turn % 2 + 1, (turn - 1) % 2 + 1);
        let (fence, deadline) = (turn + 1, at + after + 90);
        text += &format!("{worker}.{turn} {} call\n{before}.{} {at} release\n", at - 1, turn - 1);
        text += &format!("{before}.{} {} released\n", turn - 1, at + 1);
        text += &format!("{worker}.{turn} {} granted {fence} {deadline}\n", at + after);
        at += after + 10;
    }
    text
}

/// Tries of another lock, each of which takes this long.
fn tries(many: u64, takes: u64) -> String {
    let one = |turn: u64| {
        let (at, answer) = (turn * 20, turn * 20 + takes);
        format!("9.{turn}/b {at} call try\n9.{turn}/b {answer} granted {} {}\n", turn + 1, answer + 1)
    };
    (0..many).map(one).collect()
}

#[test]
fn hand_overs_that_are_slow_by_the_dozen_break_j1() {
    assert_eq!(broken(&turns(60, 40)), []);
    assert_eq!(broken(&turns(60, 60)), [J1]);
    // Every call takes long.
    assert_eq!(broken(&(tries(200, 5) + &turns(60, 60))), [J1]);
    assert_eq!(broken(&(tries(200, 15) + &turns(60, 60))), []);
    // Too few to tell.
    assert_eq!(broken(&turns(40, 60)), []);
    // A dead waiter in the queue delays the others.
    let dead = "store ticket=9000\n8 1 call\nS 2 fault kill 2 8\n";
    assert_eq!(broken(&format!("{dead}{}", turns(60, 60))), []);
    // A call for several names kept this one while it waited for the other.
    let several = "8 1 call all\n8.2/b 1 call all\n8 4000 missing\n8.2 4000 missing\n";
    assert_eq!(broken(&format!("{several}{}", turns(60, 60))), []);
    // A disturbance lasted all along.
    assert_eq!(broken(&format!("S 0 fault delay 9999\n{}", turns(60, 60))), []);
    let figures = judged(&turns(60, 40)).figures;
    assert_eq!((figures.grants, figures.handovers, figures.takeovers), (60, 59, 0));
    assert_eq!((figures.handover.count, figures.handover.p50, figures.handover.max), (59, 40 * MS, 40 * MS));
}

#[test]
fn a_waiter_passed_over_for_half_the_run_breaks_j5() {
    let story =
        |wait: u64| format!("store unordered\n{}3 1 call wait={wait}\n3 {} busy\n", turns(900, 5), wait + 1);
    assert_eq!(broken(&story(9_000)), []);
    assert_eq!(broken(&story(10_100)), [J5]);
    assert_eq!(broken(&format!("S 5000 stall 5100\n{}", story(10_100))), []);
    // It may have waited for the other name.
    let several =
        story(10_100).replace("3 1 call", "3.2/b 1 call all\n3 1 call all").replace("busy", "missing");
    assert_eq!(broken(&(several + "3.2 10101 missing\n")), []);
}

#[test]
fn a_call_for_several_names_is_judged_once() {
    let counted = |story: &str| {
        let figures = judged(&format!("1 0 call all\n1.2/b 0 call all\n{story}")).figures;
        (figures.judged_by(I15), figures.busy, figures.faces["Multi"])
    };
    assert_eq!(counted("1 5 granted 5 100\n1.2 6 granted 6 100\n"), (1, 0, 2));
    assert_eq!(counted("1 5 missing\n1.2 6 missing\n"), (0, 2, 2));
    assert_eq!(counted("1 5 granted 5 5\n1.2 6 granted 6 100\nS 1 fault pause 4 1\n"), (0, 0, 2));
}

#[test]
fn everything_that_happened_is_counted() {
    let figures = judged(
        "1 0 call\n1 5 granted 5 100\n1 60 release\n1 61 released\n\
         2 10 call\n2 62 granted 6 150\n2 70 renew 100\n\
         3 65 call try\n3 66 busy\n\
         3.2 67 call\n3.2 68 failed\n\
         3.3 69 call\n3.3 70 dropped\n\
         3.4 71 call\n3.4 160 granted 7 250\n3.4 251 lost deadline\n3.4 255 drop\n\
         S 80 fault kill 80 2\n\
         4 81 call\nS 90 fault kill 90 4\n\
         S 300 stall 310\n\
         R 61 enter\nR 62 enter\nR 63 leave\nR 64 leave\nR 70 write 6 taken\nR 71 write 5 mark=6 rejected\n",
    )
    .figures;
    assert_eq!((figures.grants, figures.handovers, figures.takeovers, figures.expiries), (3, 1, 1, 2));
    assert_eq!((figures.busy, figures.failed, figures.dropped), (1, 1, 1));
    // An acquire, and a renewal.
    assert_eq!(figures.unknowns, 2);
    assert_eq!(figures.lost.get("deadline"), Some(&1));
    assert_eq!(figures.lost_margin, Some(10 * MS));
    assert_eq!((figures.handover.max, figures.takeover.max), (2 * MS, 10 * MS));
    assert_eq!((figures.fenced_saves, figures.unfenced_overlaps, figures.stalls), (1, 1, 1));
    assert_eq!(figures.operations.get("AcquireCall"), Some(&7));
}

#[test]
fn one_dead_session_is_taken_over_once() {
    let mut text = String::from("store session=500\n1 0 call\n1 5 granted 5 session\nS 50 fault kill 50 1\n");
    for turn in 2..8 {
        let at = turn * 100;
        text += &format!("{turn} {} call\n{turn} {at} granted {} session\n", at - 110, turn + 4);
        text += &format!("{turn} {} release\n{turn} {} released\n", at + 90, at + 91);
    }
    let figures = judged(&text).figures;
    assert_eq!((figures.grants, figures.takeovers, figures.handovers), (7, 1, 5));
    assert_eq!((figures.handover.count, figures.handover.max), (5, 10 * MS));
}

#[test]
fn a_holder_that_releases_after_expiry_is_taken_over_once() {
    let figures = judged(
        "1 0 call\n1 5 granted 5 100\n2 10 call\n2 120 granted 6 210\n2 130 release\n2 131 released\n\
         3 20 call\n3 140 granted 7 230\n3 150 release\n3 151 released\n1 900 release\n1 901 nothing\n",
    )
    .figures;
    assert_eq!((figures.takeovers, figures.handovers), (1, 1));
}

#[test]
fn bounds_of_time_that_are_explained_are_counted_as_waived() {
    let late = "1 0 call\n1 5 granted 5 100\n1 60 release\n1 61 released\n2 10 call\n2 1100 granted 6 1190\n";
    assert_eq!(judged(late).figures.waived, 0);
    let verdict = judged(&format!("{late}S 500 stall 600\n"));
    assert_eq!((verdict.violations.len(), verdict.figures.waived), (0, 1));
}

#[test]
fn only_hand_overs_of_certain_wanted_holds_are_judged() {
    // A release of another client's lease, and the next holder's grant.
    let counted = |held: u64, called: u64, before: &str| {
        let figures = judged(&format!(
            "{before}1 0 call\n1 5 granted 5 100\n1 {held} held 100\n1 60 release\n1 61 released\n\
             2 {called} call\n2 62 granted 6 150\n"
        ))
        .figures;
        (figures.handovers, figures.handovers_judged)
    };
    assert_eq!(counted(50, 10, ""), (1, 1));
    // It did not look, so that a second holder would not have been seen.
    assert_eq!(counted(5, 10, ""), (1, 0));
    // The other came only after the last look.
    assert_eq!(counted(50, 55, ""), (1, 0));
    // A call for several names may not have come to this one yet.
    assert_eq!(counted(50, 55, "3 10 call all\n3.2/b 10 call all\n"), (1, 0));
    // Something may have ended the lease.
    assert_eq!(counted(50, 10, "3 2 revoke now\n3 4 revoked\n"), (1, 0));
}

#[test]
fn writers_behind_dead_readers_are_judged_if_ttls_are_long() {
    let counted = |ttl: u64, stays: u64| {
        let judged = judged(&format!(
            "1 0 call shared ttl={ttl}\n1 5 granted 5 {dead}\nS 10 fault kill 10 1\n\
             2 20 call shared ttl={ttl}\n2 25 granted 6 {dead}\n2 {stays} held {end}\n\
             2 {end} release\n2 {end} released\n3 100 call ttl=3000\n3 {next} granted 7 {until}\n",
            dead = ttl - 100,
            end = stays + 50,
            next = stays.max(ttl) + 60,
            until = stays.max(ttl) + 2_000,
        ));
        assert_eq!(judged.violations, []);
        judged.figures.judged["I8"]
    };
    let some = |judged, uncertain| Judged { judged, waived: 0, uncertain };
    assert_eq!(counted(3_000, 3_000), some(1, 0));
    // Any delay that is allowed is as long.
    assert_eq!(counted(400, 3_000), some(0, 1));
    // The others had left before the dead reader's time was over.
    assert_eq!(counted(3_000, 2_000), some(0, 0));
}

#[test]
fn requests_after_a_revoke_at_once_are_judged() {
    let counted = |revoke: &str| {
        let verdict = judged(&format!(
            "1 0 call\n1 5 granted 5 100\n3 20 {revoke}\n3 21 revoked\n1 30 release\n1 31 nothing\n"
        ));
        verdict.figures.judged_by(Invariant::I14)
    };
    assert_eq!((counted("revoke now"), counted("revoke")), (1, 0));
}

#[test]
fn a_kill_of_a_holder_is_felt_though_it_looks_no_more() {
    let felt = |end: u64| {
        let text =
            format!("1 0 call\n1 5 granted 5 100\n1 6 held 100\n1 {end} held 100\nS 50 fault kill 50 1\n");
        judged(&text).figures.felt.get("Kill").copied()
    };
    assert_eq!(felt(20), Some(1));
    let released = "1 0 call\n1 5 granted 5 100\n1 6 release\n1 7 released\nS 50 fault kill 50 1\n";
    assert_eq!(judged(released).figures.felt.get("Kill"), None);
}

#[test]
fn a_directory_is_judged_with_all_its_histories() {
    let directory = tempfile::tempdir().unwrap();
    setting().write(directory.path()).unwrap();
    let record = |kind, worker, at, fence, deadline| {
        let lease = if kind == Kind::AcquireCall { 0 } else { u64::from(worker) };
        Record { claim: 1, fence, deadline, lease, ..Record::new(kind, worker, at) }
    };
    for worker in 1..3 {
        let log = Log::append(&directory.path().join(format!("worker-{worker}"))).unwrap();
        log.write(record(Kind::AcquireCall, worker, 1, 0, 100)).unwrap();
        log.write(record(Kind::Granted, worker, 2, u64::from(worker), 90)).unwrap();
        log.write(record(Kind::Held, worker, 3, u64::from(worker), 90)).unwrap();
    }
    std::fs::write(directory.path().join("report.json"), "{}").unwrap();
    let verdict = check(directory.path()).unwrap();
    assert_eq!(verdict.figures.grants, 2);
    assert_eq!(verdict.violations.iter().map(|one| one.invariant).collect::<Vec<_>>(), [Invariant::I1]);
    assert!(serde_json::to_string(&verdict).unwrap().contains("\"I1\""));
}

/// Does not test the time, but prints it.
#[test]
fn a_million_records_are_judged() {
    let mut setting = setting();
    setting.span = (0, 60_000 * MS);
    let mut histories = vec![Vec::new(); 16];
    // Each lock goes round among the workers, some claims are refused, and each holder looks.
    for name in 0..3_u16 {
        let mode = if name == 2 { Mode::Permit } else { Mode::Exclusive };
        for turn in 0..48_000_u64 {
            let at = turn * 1_000_000 + 10;
            let worker = (turn % 16) as u32;
            let claim = turn * 8 + u64::from(name);
            let common = Record { mode, name, claim, ..Record::new(Kind::AcquireCall, worker, at) };
            let history = &mut histories[worker as usize];
            history.push(Record { value: u64::MAX, deadline: 100 * MS, ..common });
            let held = Record { lease: turn + 1, fence: turn + 1, deadline: at + 90 * MS, ..common };
            history.push(Record { kind: Kind::Granted, at: at + 100_000, ..held });
            history.push(Record { kind: Kind::Held, at: at + 200_000, ..held });
            history.push(Record { kind: Kind::Held, at: at + 300_000, ..held });
            history.push(Record { kind: Kind::ReleaseCall, at: at + 400_000, deadline: 0, ..held });
            history.push(Record { kind: Kind::Released, at: at + 500_000, deadline: 0, ..held });
            if name != 2 {
                let other = Record { claim: claim + 4, worker: (worker + 1) % 16, ..common };
                let history = &mut histories[other.worker as usize];
                history.push(Record { at: at + 250_000, deadline: 100 * MS, ..other });
                history.push(Record { kind: Kind::Busy, at: at + 260_000, ..other });
            }
        }
    }
    let records: usize = histories.iter().map(Vec::len).sum();
    assert!(records > 1_000_000);
    let started = Instant::now();
    let verdict = judge(&setting, &histories);
    println!("{records} records judged in {:?}", started.elapsed());
    assert_eq!(
        verdict.violations.iter().map(ToString::to_string).take(3).collect::<Vec<_>>(),
        Vec::<String>::new()
    );
    assert_eq!(verdict.figures.grants, 144_000);
}
