//! Between processes: exclusion in each mode, and what becomes of a lock when its process ends.

use std::time::Duration;

use leasehold::{ErrorKind, Locks};
use rustix::process::Signal;
use testkit::process::say;
use testkit::until::{PATIENCE, in_time, lived, until_async};

use crate::process::{TempDir, open, queued, start, take};

const SOON: Option<Duration> = Some(PATIENCE);
const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

#[tokio::test]
async fn each_mode_excludes_what_it_must_and_nothing_else() {
    for (held, wanted, together) in [
        ("exclusive", "exclusive", false),
        ("exclusive", "read", false),
        ("read", "read", true),
        ("read", "exclusive", false),
        ("write", "read", false),
        ("1", "1", false),
        ("2", "2", true),
    ] {
        let temp = TempDir::new();
        let mut other = start(&["hold", held, "x"], &temp.locks());
        other.line();
        let locks = open(&temp.locks());
        let guard = take(&locks, wanted, "x", NO_WAIT).await;
        assert_eq!(guard.is_some(), together, "{held} is held, {wanted} wanted");
        drop(guard);
        locks.close().await;
        let locks = open(&temp.locks());
        other.tell("release");
        assert_eq!(other.line(), "released");
        assert!(take(&locks, wanted, "x", SOON).await.is_some(), "{held} is released, {wanted} wanted");
    }
}

#[tokio::test]
async fn permits_are_never_more_than_the_limit_and_all_come_back() {
    let temp = TempDir::new();
    let mut others: Vec<_> = (0..3).map(|_| start(&["hold", "4", "x"], &temp.locks())).collect();
    others.iter_mut().for_each(|other| drop(other.line()));
    let locks = open(&temp.locks());
    let last = take(&locks, "4", "x", NO_WAIT).await;
    assert!(last.is_some());
    assert!(take(&locks, "4", "x", NO_WAIT).await.is_none());
    others[0].tell("release");
    others[1].signal(Signal::KILL);
    others.truncate(2);
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(take(&locks, "4", "x", SOON).await.unwrap());
    }
    assert!(take(&locks, "4", "x", NO_WAIT).await.is_none());
}

/// Waits for a lock that another process has, and does `what` to that process.
async fn passes_on(locks: &Locks, mode: &str, name: &str, what: impl FnOnce()) {
    let waiter = tokio::spawn({
        let (locks, mode, name) = (locks.clone(), mode.to_owned(), name.to_owned());
        async move { take(&locks, &mode, &name, SOON).await.is_some() }
    });
    queued(locks, name, 1).await;
    what();
    let (granted, took) = lived(waiter).await;
    assert!(granted.unwrap(), "{mode}");
    // Promised within 200 ms. A waiter that gets no wake-up and does not look either tries again only after five
    // seconds.
    assert!(took < Duration::from_secs(2), "{mode}: {took:?}");
}

#[tokio::test]
async fn a_killed_holder_s_lock_passes_on_at_once() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    for mode in ["exclusive", "write", "read", "1"] {
        let name = format!("x-{mode}");
        let wanted = if mode == "read" { "write" } else { mode };
        let other = start(&["hold", mode, &name], &temp.locks());
        other.line();
        passes_on(&locks, wanted, &name, || other.signal(Signal::KILL)).await;
    }
}

#[tokio::test]
async fn a_stopped_holder_keeps_its_lock_and_releases_it_later() {
    let temp = TempDir::new();
    let mut other = start(&["hold", "exclusive", "x"], &temp.locks());
    other.line();
    other.signal(Signal::STOP);
    let locks = open(&temp.locks());
    assert!(take(&locks, "exclusive", "x", Some(Duration::from_millis(1200))).await.is_none());
    other.signal(Signal::CONT);
    other.tell("release");
    assert!(take(&locks, "exclusive", "x", SOON).await.is_some());
}

#[tokio::test]
async fn a_child_of_the_holder_does_not_keep_the_lock() {
    let temp = TempDir::new();
    let mut other = start(&["hold-with-child", "exclusive", "x"], &temp.locks());
    let said = other.line();
    let child: i32 = said.split_once(' ').unwrap().1.parse().unwrap();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    let locks = open(&temp.locks());
    assert!(take(&locks, "exclusive", "x", NO_WAIT).await.is_none());
    other.tell("exit");
    assert!(other.ended_well());
    let guard = take(&locks, "exclusive", "x", SOON).await;
    let alive = rustix::process::test_kill_process(child).is_ok();
    rustix::process::kill_process(child, Signal::KILL).unwrap();
    assert!(alive, "the child outlived the holder");
    assert!(guard.is_some(), "and did not keep its lock");
}

#[tokio::test]
async fn kinds_and_limits_do_not_mix_while_in_use() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    for (held, wanted) in [("exclusive", 2), ("read", 2), ("3", 2)] {
        let other = start(&["hold", held, "x"], &temp.locks());
        other.line();
        let error = locks.semaphore("x", wanted).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{held}");
        if held == "3" {
            let error = locks.mutex("x").try_lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
        }
        // The locks decide, not what was written: no process cleans up after a kill.
        other.signal(Signal::KILL);
        other.ended_well();
        for wanted in ["2", "5", "read", "exclusive"] {
            let guard = take(&locks, wanted, "x", SOON).await.unwrap();
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn fences_rise_from_process_to_process() {
    let temp = TempDir::new();
    let mut last = 0u64;
    for mode in ["exclusive", "read", "2"].repeat(2) {
        let mut other = start(&["hold", mode, "x"], &temp.locks());
        let fence = other.line().split_once(' ').unwrap().0.parse().unwrap();
        assert!(fence > last, "{fence} {last}");
        last = fence;
        other.tell("release");
        other.line();
    }
}

#[tokio::test]
async fn what_another_process_holds_can_be_seen() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let other = start(&["hold", "exclusive", "jobs/a"], &temp.locks());
    let fence = other.line().split_once(' ').unwrap().0.to_owned();
    let mut readers: Vec<_> = (0..2).map(|_| start(&["hold", "read", "jobs/b"], &temp.locks())).collect();
    readers.iter_mut().for_each(|other| drop(other.line()));
    let info = locks.inspect("jobs/a").await.unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].grant.fence.to_string(), fence);
    assert!(info.holders[0].owner.ends_with(&format!(":{}", other.id())), "{}", info.holders[0].owner);
    assert_eq!(locks.inspect("jobs/b").await.unwrap().holders.len(), 2);
    let page = locks.list("jobs/", 1, None).await.unwrap();
    let names = |page: &leasehold::backend::Page| {
        page.items.iter().map(|item| item.name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["jobs/a"]);
    let page = locks.list("jobs/", 9, page.next).await.unwrap();
    assert_eq!((names(&page), page.next), (vec!["jobs/b".to_owned()], None));
    // Killed processes hold nothing, whatever they have written.
    readers[0].signal(Signal::KILL);
    other.signal(Signal::KILL);
    assert!(take(&locks, "exclusive", "jobs/a", SOON).await.is_some());
    locks.close().await;
    let locks = open(&temp.locks());
    assert_eq!(locks.inspect("jobs/a").await.unwrap().holders.len(), 0);
}

/// The inotify watches of this process, as the system describes them.
#[cfg(target_os = "linux")]
pub(crate) fn watches() -> Vec<String> {
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts: Vec<_> = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter(|line| line.starts_with("inotify ")).map(str::to_owned).collect()
}

/// In a process of its own: other tests here watch files too.
#[cfg(target_os = "linux")]
#[test]
fn files_are_watched_only_while_there_are_waiters_or_holders() {
    let temp = TempDir::new();
    let other = start(&["count-watches"], &temp.locks());
    assert_eq!(other.line(), "0 1 2 0");
}

/// What [`files_are_watched_only_while_there_are_waiters_or_holders`] looks at.
#[cfg(target_os = "linux")]
pub(crate) async fn count_watches(dir: &std::path::Path) {
    let (locks, other) = (open(dir), open(dir));
    let mut seen = vec![watches().len()];
    let mut wait_for = async |count: usize| {
        until_async("so many watches", async || watches().len() == count).await;
        seen.push(count);
    };
    // Not a guard: that would be watched too.
    let plain = other.mutex("x").lock().await.unwrap().into_lease();
    let waiter = tokio::spawn({
        let mutex = locks.mutex("x");
        async move { mutex.lock().await.unwrap() }
    });
    wait_for(1).await;
    other.release(&plain).await.unwrap();
    let guard = in_time("its turn", waiter).await.unwrap();
    // The file and the directory it is in.
    wait_for(2).await;
    guard.release().await.unwrap();
    wait_for(0).await;
    let seen: Vec<_> = seen.iter().map(usize::to_string).collect();
    say(&seen.join(" "));
}

#[tokio::test]
async fn a_release_in_another_process_wakes_a_waiter() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    for _ in 0..3 {
        let mut other = start(&["hold", "exclusive", "x"], &temp.locks());
        other.line();
        passes_on(&locks, "exclusive", "x", || other.tell("release")).await;
    }
}

#[tokio::test]
async fn an_inherited_lock_is_free_only_when_the_child_is_dead_too() {
    for mode in ["exclusive", "read", "1"] {
        let temp = TempDir::new();
        let wanted = if mode == "read" { "write" } else { mode };
        let other = start(&["hand-over", mode, "x"], &temp.locks());
        let child = rustix::process::Pid::from_raw(other.line().parse().unwrap()).unwrap();
        other.signal(Signal::KILL);
        other.ended_well();
        let locks = open(&temp.locks());
        assert!(take(&locks, wanted, "x", Some(Duration::from_millis(700))).await.is_none(), "{mode}");
        assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
        let kill = || rustix::process::kill_process(child, Signal::KILL).unwrap();
        passes_on(&locks, wanted, "x", kill).await;
    }
}

#[tokio::test]
async fn a_release_frees_also_what_was_handed_over() {
    let temp = TempDir::new();
    let mut other = start(&["hand-over", "exclusive", "x"], &temp.locks());
    let child = rustix::process::Pid::from_raw(other.line().parse().unwrap()).unwrap();
    let locks = open(&temp.locks());
    assert!(take(&locks, "exclusive", "x", NO_WAIT).await.is_none());
    other.tell("release");
    assert_eq!(other.line(), "released");
    let guard = take(&locks, "exclusive", "x", NO_WAIT).await;
    let alive = rustix::process::test_kill_process(child).is_ok();
    rustix::process::kill_process(child, Signal::KILL).unwrap();
    assert!(alive && guard.is_some());
}

#[tokio::test]
async fn only_what_is_held_can_be_handed_over() {
    let temp = TempDir::new();
    let store = leasehold::backends::file::Directory::open(temp.locks()).unwrap();
    let locks = leasehold::Locks::new(store.clone());
    let guard = locks.mutex("x").lock().await.unwrap();
    let id = guard.lease_id();
    assert!(store.hand_over(&id).is_ok());
    guard.release().await.unwrap();
    assert_eq!(store.hand_over(&id).unwrap_err().kind(), ErrorKind::Lost);
    assert!(locks.mutex("x").try_lock().await.unwrap().is_some());
}
