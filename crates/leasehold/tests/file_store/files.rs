//! What is in the directory: names, permissions, counters, and files that other programs put there or remove.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend as _, Claim, Release, Renewal, Renewed, Swept};
use leasehold::backends::file::{Directory, FileNames};
use leasehold::{ErrorKind, Fence, Gone, GuardState, Locks, LostReason, Mode, Name};
use testkit::blocked::send;
use testkit::until::{PATIENCE, in_time, until_async};

use crate::process::{TempDir, open};
#[cfg(target_os = "linux")]
use crate::processes::watches;

/// The file of the only name in the directory that ends like this.
pub(crate) fn file(dir: &Path, extension: &str) -> PathBuf {
    let mut found: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    assert_eq!(found.len(), 1, "one .{extension} in {found:?}");
    found.remove(0)
}

#[tokio::test]
async fn files_and_directory_are_for_their_owner_only() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let _guard = locks.mutex("x").lock().await.unwrap();
    let _permit = locks.semaphore("y", 2).acquire().await.unwrap();
    assert_eq!(fs::metadata(temp.locks()).unwrap().mode() & 0o7777, 0o700);
    let modes: Vec<_> = fs::read_dir(temp.locks())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().mode() & 0o7777)
        .collect();
    assert_eq!(modes, [0o600; 6]);
}

#[test]
fn a_directory_in_which_others_can_swap_files_is_refused() {
    let temp = TempDir::new();
    let set = |mode| fs::set_permissions(temp.path(), fs::Permissions::from_mode(mode)).unwrap();
    set(0o777);
    assert_eq!(Directory::open(temp.path()).unwrap_err().kind(), ErrorKind::AuthFailed);
    set(0o1777);
    assert!(Directory::open(temp.path()).is_ok());
    set(0o755);
    assert!(Directory::open(temp.path()).is_ok());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(temp.path(), Some(12345), None).unwrap();
        assert_eq!(Directory::open(temp.path()).unwrap_err().kind(), ErrorKind::AuthFailed);
        std::os::unix::fs::chown(temp.path(), Some(0), None).unwrap();
    }
}

#[test]
fn unusable_directories_are_refused_and_parents_not_created() {
    let temp = TempDir::new();
    let plain = temp.path().join("plain");
    fs::write(&plain, "").unwrap();
    assert_eq!(Directory::open(&plain).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let deep = temp.path().join("a/b");
    assert_eq!(Directory::open(&deep).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(!temp.path().join("a").exists());
}

#[tokio::test]
async fn different_names_have_different_files_and_all_stay_inside() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let long = "x".repeat(512);
    let names = [
        "a",
        "A",
        "á",
        "a ",
        "a.",
        ".",
        "..",
        "../a",
        "../../etc/passwd",
        "/",
        "a/b",
        "a\\b",
        "a\0b",
        "a\nb",
        "CON",
        "con",
        "ß",
        "ss",
        "🦉",
        "🦉🦉",
        &long,
        &long[..511],
        "a%2Fb",
        "a.meta",
        "-rf",
        "~",
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(locks.mutex(name).try_lock().await.unwrap().expect(name));
        assert!(locks.mutex(name).try_lock().await.unwrap().is_none(), "{name:?}");
    }
    let other = locks.with_namespace("other");
    guards.push(other.mutex("a").try_lock().await.unwrap().expect("another namespace"));
    let files: Vec<_> = fs::read_dir(temp.locks()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let metas = files.iter().filter_map(|file| file.to_str().unwrap().strip_suffix(".meta"));
    let merged: HashSet<_> = metas.map(str::to_lowercase).collect();
    assert_eq!(merged.len(), names.len() + 1);
    assert!(files.iter().all(|file| file.len() <= 255));
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    let page = locks.list("", 100, None).await.unwrap();
    let seen: HashSet<_> = page.items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(seen, names.into_iter().collect());
}

#[tokio::test]
async fn dotnet_names_are_those_of_the_vectors() {
    let temp = TempDir::new();
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../../../vectors/dotnet-distributedlock.json")).unwrap();
    let locks = Locks::new(Directory::builder(temp.locks()).names(FileNames::Dotnet).open().unwrap());
    let mut guards = Vec::new();
    // The empty name is invalid here.
    for case in vectors["file"].as_array().unwrap().iter().filter(|case| case["name"] != "") {
        guards.push(locks.mutex(case["name"].as_str().unwrap()).lock().await.unwrap());
        assert!(temp.locks().join(case["file"].as_str().unwrap()).is_file(), "{case}");
    }
    assert!(guards.len() >= 6);
    let error = locks.with_namespace("mine").mutex("x").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn anything_planted_in_place_of_a_file_is_refused() {
    for extension in ["meta", "lock", "fence"] {
        for plant in ["symlink", "dangling", "fifo", "directory", "hard link"] {
            let temp = TempDir::new();
            let locks = open(&temp.locks());
            let guard = locks.mutex("x").lock().await.unwrap();
            let path = file(&temp.locks(), extension);
            guard.release().await.unwrap();
            let _ = fs::remove_file(&path);
            let victim = temp.path().join("victim");
            if plant != "dangling" {
                fs::write(&victim, "precious").unwrap();
            }
            match plant {
                "symlink" | "dangling" => symlink(&victim, &path).unwrap(),
                "hard link" => fs::hard_link(&victim, &path).unwrap(),
                "directory" => fs::create_dir(&path).unwrap(),
                _ => {
                    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
                }
            }
            let mutex = locks.mutex("x");
            let error = in_time("an answer", mutex.try_lock()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "{plant} at .{extension}: {error}");
            match plant {
                "dangling" => assert!(!victim.exists()),
                _ => assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{plant} at .{extension}"),
            }
        }
    }
}

#[tokio::test]
async fn removing_or_replacing_a_lock_file_loses_the_lock() {
    for replace in [false, true] {
        for mode in ["exclusive", "read", "2"] {
            let temp = TempDir::new();
            let locks = open(&temp.locks());
            let guard = crate::process::take(&locks, mode, "x", None).await.unwrap();
            let path = file(&temp.locks(), if mode == "2" { "slot00" } else { "lock" });
            fs::remove_file(&path).unwrap();
            if replace {
                fs::write(&path, "").unwrap();
            }
            let reason = in_time("a loss", guard.lost()).await;
            assert_eq!(reason, LostReason::Refused(Gone::NotFound));
            assert_eq!(guard.state(), GuardState::Lost);
            drop(guard);
            // We must not remove what another program put there, but can lock it.
            assert!(crate::process::take(&locks, mode, "x", Some(PATIENCE)).await.is_some());
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_holder_learns_what_a_stranger_does_to_its_file() {
    type Stranger = fn(&TempDir, PathBuf);
    let strangers: [Stranger; 4] = [
        |_, lock| fs::remove_file(lock).unwrap(),
        |temp, lock| fs::rename(lock, temp.path().join("away")).unwrap(),
        |temp, lock| {
            fs::write(temp.path().join("other"), "").unwrap();
            fs::rename(temp.path().join("other"), lock).unwrap();
        },
        |temp, _| fs::rename(temp.locks(), temp.path().join("away")).unwrap(),
    ];
    for stranger in strangers {
        let temp = TempDir::new();
        let store = Directory::open(temp.locks()).unwrap();
        let claim = Claim::new(Name::new("x").unwrap(), Mode::Exclusive, Duration::from_secs(30), "me");
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Granted(_)));
        let lock = file(&temp.locks(), "lock");
        let watched = format!(" ino:{:x} ", fs::metadata(&lock).unwrap().ino());
        // As the guard does. Nothing looks at the file by itself here.
        let mut loss = pin!(store.wait(&claim));
        send(loss.as_mut()).await;
        until_async("it is watched", async || watches().iter().any(|watch| watch.contains(&watched))).await;
        stranger(&temp, lock);
        in_time("the guard reports its loss", loss).await.unwrap();
        let renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
        assert_eq!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Gone(Gone::NotFound));
    }
}

#[tokio::test]
async fn a_directory_that_is_moved_away_takes_its_locks_with_it() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let guard = locks.mutex("x").lock().await.unwrap();
    fs::rename(temp.locks(), temp.path().join("away")).unwrap();
    let again = open(&temp.locks());
    let second = again.mutex("x").lock().await.unwrap();
    in_time("a loss", guard.lost()).await;
    assert_eq!(locks.mutex("x").try_lock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(second);
}

async fn fence(dir: &Path) -> Fence {
    let locks = open(dir);
    let guard = locks.mutex("x").lock().await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    fence
}

#[tokio::test]
async fn a_fence_never_falls_whatever_becomes_of_the_counter() {
    let temp = TempDir::new();
    let dir = temp.locks();
    let mut last = fence(&dir).await;
    let counter = file(&dir, "fence");
    // An hour ahead of the clock, so that only the written counter can carry it on.
    let ahead = Fence::new(last.get() + 3600 * 256_000);
    fs::write(&counter, format!("{ahead}\n")).unwrap();
    for damage in ["none", "deleted", "empty", "torn", "garbage", "zero", "none"] {
        match damage {
            "deleted" => fs::remove_file(&counter).unwrap(),
            "empty" => fs::write(&counter, "").unwrap(),
            "torn" => fs::write(&counter, &fs::read(&counter).unwrap()[..9]).unwrap(),
            "garbage" => fs::write(&counter, [0xff; 16]).unwrap(),
            "zero" => fs::write(&counter, "000000000000000\n").unwrap(),
            _ => {}
        }
        let next = fence(&dir).await;
        assert_eq!(next.get(), last.get().max(ahead.get()) + 1, "{damage}");
        last = next;
    }
    // With the second copy gone too, the clock decides, and it is an hour behind.
    fs::write(&counter, "").unwrap();
    fs::write(file(&dir, "meta"), "garbage").unwrap();
    let next = fence(&dir).await;
    assert!(next < last && next.get() > last.get() - 3700 * 256_000);
    assert!(fence(&dir).await > next);
}

#[tokio::test]
async fn fences_are_reserved_ahead_so_few_grants_wait_for_the_disk() {
    let temp = TempDir::new();
    let dir = temp.locks();
    let first = fence(&dir).await;
    let counter = file(&dir, "fence");
    let identity = fs::metadata(&counter).unwrap().ino();
    let locks = open(&dir);
    let mut last = first;
    for _ in 0..200 {
        let guard = locks.mutex("x").lock().await.unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        guard.release().await.unwrap();
    }
    assert_eq!(fs::metadata(&counter).unwrap().ino(), identity, "the counter was written again");
    let reserved: u64 = fs::read_to_string(&counter).unwrap().trim().parse().unwrap();
    assert!(reserved > last.get() && reserved < last.get() + 61 * 256_000);
}

#[tokio::test]
async fn after_a_power_failure_fences_go_on_above_what_was_reserved() {
    // What was not synced is lost: the meta file is an old one of another boot, torn, or gone.
    for loss in ["old", "torn", "gone"] {
        let temp = TempDir::new();
        let dir = temp.locks();
        let mut seen = fence(&dir).await;
        let old = fs::read_to_string(file(&dir, "meta")).unwrap();
        for _ in 0..5 {
            seen = fence(&dir).await;
        }
        let meta = file(&dir, "meta");
        match loss {
            "old" => {
                let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
                fs::write(&meta, old.replace(boot.trim(), "another-boot")).unwrap();
            }
            "torn" => fs::write(&meta, &old[..20]).unwrap(),
            _ => fs::remove_file(&meta).unwrap(),
        }
        let reserved: u64 = fs::read_to_string(file(&dir, "fence")).unwrap().trim().parse().unwrap();
        let next = fence(&dir).await;
        assert!(next > seen && next.get() == reserved + 1, "{loss}: {next} after {seen}");
        assert!(fence(&dir).await > next, "{loss}");
    }
}

#[tokio::test]
async fn a_raised_fence_belongs_to_the_lease_and_later_ones_are_above() {
    let temp = TempDir::new();
    let store = Directory::open(temp.locks()).unwrap();
    let claim = || Claim::new(Name::new("x").unwrap(), Mode::Exclusive, Duration::from_secs(30), "me");
    let first = claim();
    let Attempt::Granted(grant) = store.try_acquire(&first).await.unwrap() else { panic!() };
    let renew = |raise: u64| {
        let mut renewal = Renewal::new(first.name.clone(), first.id, first.ttl);
        renewal.raise_fence = Some(Fence::new(raise));
        let store = &store;
        async move { store.renew(&[renewal]).await.remove(0) }
    };
    let below = renew(grant.fence.get() - 1).await.unwrap();
    assert_eq!(below, Renewed::Gone(Gone::Superseded));
    for far in [grant.fence.get() + 25 * 3600 * 256_000, Fence::MAX.get(), Fence::MAX.get() + 1] {
        assert_eq!(renew(far).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    // An hour ahead: beyond what is reserved.
    let high = grant.fence.get() + 3600 * 256_000;
    let Renewed::Held(raised) = renew(high).await.unwrap() else { panic!() };
    assert_eq!(raised.fence, Fence::new(high));
    let reserved: u64 = fs::read_to_string(file(&temp.locks(), "fence")).unwrap().trim().parse().unwrap();
    assert!(reserved >= high, "it is on disk");
    store.release(&Release::new(first.name.clone(), first.id)).await.unwrap();
    // Also for a store that knows only the files.
    let other = Directory::open(temp.locks()).unwrap();
    let Attempt::Granted(next) = other.try_acquire(&claim()).await.unwrap() else { panic!() };
    assert_eq!(next.fence, Fence::new(high + 1));
}

#[tokio::test]
async fn the_version_counts_grants_and_releases() {
    let temp = TempDir::new();
    let (one, two) = (open(&temp.locks()), open(&temp.locks()));
    let version = || async { two.inspect("x").await.unwrap().version };
    assert_eq!(version().await, 0);
    for round in 0..3 {
        let guard = one.rwlock("x").read().await.unwrap();
        assert_eq!(version().await, 2 * round + 1);
        guard.release().await.unwrap();
        assert_eq!(version().await, 2 * round + 2);
    }
}

#[tokio::test]
async fn a_counter_above_the_limit_gives_an_error_and_no_grant() {
    let temp = TempDir::new();
    fence(&temp.locks()).await;
    fs::write(file(&temp.locks(), "fence"), format!("{}\n", Fence::MAX)).unwrap();
    let locks = open(&temp.locks());
    assert_eq!(locks.mutex("x").try_lock().await.unwrap_err().kind(), ErrorKind::Internal);
    assert!(!locks.is_locked("x").await.unwrap());
}

#[tokio::test]
async fn a_sweep_removes_unused_files_and_keeps_recent_counters() {
    let temp = TempDir::new();
    let dir = temp.locks();
    let locks = open(&dir);
    let guard = locks.mutex("held").lock().await.unwrap();
    let old = fence(&dir).await;
    let stale = file(&dir, "lock").with_extension("slot07");
    fs::write(&stale, "").unwrap();
    let swept = locks.sweep().await.unwrap();
    let counts = |swept: Swept| (swept.held, swept.counters);
    assert_eq!(counts(swept), (1, 0));
    assert!(!stale.exists());
    assert_eq!(guard.state(), GuardState::Held);
    // As if it had been used eight days ago.
    for entry in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_name().unwrap().to_str().unwrap().starts_with("x-") {
            let text = fs::read_to_string(&entry).unwrap();
            let then = Fence::new(old.get() - 8 * 24 * 3600 * 256_000);
            fs::write(&entry, text.replace(&old.to_string(), &then.to_string())).unwrap();
        }
    }
    assert_eq!(counts(locks.sweep().await.unwrap()), (1, 1));
    let left = fs::read_dir(&dir).unwrap().count();
    assert_eq!(left, 3, "the lock, meta and counter of the one that is held");
    assert!(fence(&dir).await > old);
}

#[tokio::test]
async fn connect_takes_a_path_or_an_absolute_url() {
    let temp = TempDir::new();
    let dir = temp.locks();
    let one = Locks::connect(&format!("file:{}", dir.display())).await.unwrap();
    let two = Locks::connect(&format!("FILE://{}", dir.display())).await.unwrap();
    let _guard = one.mutex("x").lock().await.unwrap();
    assert!(two.mutex("x").try_lock().await.unwrap().is_none());
    for bad in ["file:", "file://", "file://host/dir"] {
        assert_eq!(Locks::connect(bad).await.unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
    }
    assert!(leasehold::stores().iter().any(|store| store.info == one.info()));
}
