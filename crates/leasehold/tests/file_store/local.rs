//! Within one process: queues, repeats, cancels, drops.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::backend::{Attempt, Backend as _, Claim, Liveness, Release, Released, TimeAuthority};
use leasehold::backends::file::{Directory, MAX_PERMITS};
use leasehold::{ErrorKind, Gone, Mode, Name};

use testkit::until::{PATIENCE, in_time};

use crate::process::{TempDir, open, queued, start, take};

/// Everything in the directory but what fences need.
fn leftovers(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".meta") && !name.ends_with(".fence"))
        .collect()
}

fn claim(mode: Mode) -> Claim {
    Claim::new(Name::new("x").unwrap(), mode, Duration::from_secs(30), "me")
}

#[test]
fn the_store_says_what_it_is() {
    let temp = TempDir::new();
    let info = open(&temp.locks()).info();
    assert_eq!((info.scheme, info.liveness, info.time), ("file", Liveness::Session, TimeAuthority::None));
    assert_eq!((info.fenced, info.shared, info.detects_loss, info.namespaced), (true, true, true, true));
    assert_eq!((info.fifo, info.downgrade, info.find_by_id, info.revoke), (false, false, false, false));
    assert_eq!((info.push, info.max_permits), (true, 64));
    assert_eq!((info.keeps_places, info.tells_loss), (false, cfg!(target_os = "linux")));
    assert!(!info.notes);
    assert_eq!(info.check_every, Some(Duration::from_millis(500)));
}

#[tokio::test]
async fn local_waiters_are_served_in_order() {
    let temp = TempDir::fast();
    let locks = open(&temp.locks());
    let first = locks.mutex("x").lock().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10 {
        let (mutex, order) = (locks.mutex("x"), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        queued(&locks, "x", number + 1).await;
    }
    first.release().await.unwrap();
    for task in tasks {
        in_time("its turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    assert_eq!(leftovers(&temp.locks()), [""; 0]);
}

#[tokio::test]
async fn of_many_readers_the_oldest_hundred_are_shown() {
    let temp = TempDir::fast();
    let locks = open(&temp.locks());
    let mut readers = Vec::new();
    for _ in 0..103 {
        readers.push(locks.rwlock("x").read().await.unwrap());
    }
    let seen = locks.inspect("x").await.unwrap();
    assert_eq!((seen.holders.len(), seen.holder_count), (100, 103));
    let shown: Vec<_> = seen.holders.iter().map(|holder| holder.id).collect();
    assert_eq!(shown, readers[..100].iter().map(|reader| reader.lease_id()).collect::<Vec<_>>());
}

#[tokio::test]
async fn readers_enter_together_and_a_writer_waits_for_all_of_them() {
    let temp = TempDir::fast();
    let locks = open(&temp.locks());
    let one = locks.rwlock("x").read().await.unwrap();
    let two = locks.rwlock("x").read().await.unwrap();
    assert!(one.fence() < two.fence());
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 2);
    one.release().await.unwrap();
    assert!(locks.rwlock("x").try_write().await.unwrap().is_none());
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
    two.release().await.unwrap();
    let writer = locks.rwlock("x").try_write().await.unwrap();
    assert!(writer.is_some());
}

#[tokio::test]
async fn the_same_claim_again_gives_the_same_grant() {
    let temp = TempDir::new();
    let store = Directory::open(temp.locks()).unwrap();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 2 }] {
        let mut claim = claim(mode);
        let Attempt::Granted(first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
        claim.repeat = true;
        let Attempt::Granted(again) = store.try_acquire(&claim).await.unwrap() else { panic!() };
        assert_eq!(first, again);
        assert_eq!(first.left, None);
        let release = Release::new(claim.name.clone(), claim.id);
        assert_eq!(store.release(&release).await.unwrap(), Released::Done);
        assert_eq!(store.release(&release).await.unwrap(), Released::Gone(Gone::NotFound));
        // It may still be in transit: its id is spent.
        assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Gone(Gone::Superseded)));
        assert_eq!(leftovers(&temp.locks()), [""; 0]);
    }
}

#[tokio::test]
async fn an_id_given_up_before_its_attempt_arrived_is_refused() {
    let temp = TempDir::new();
    let store = Directory::open(temp.locks()).unwrap();
    let claim = claim(Mode::Exclusive);
    let mut release = Release::new(claim.name.clone(), claim.id);
    release.unanswered = Some(Duration::from_secs(1));
    assert_eq!(store.release(&release).await.unwrap(), Released::Gone(Gone::NotFound));
    assert!(matches!(store.try_acquire(&claim).await.unwrap(), Attempt::Gone(Gone::Superseded)));
    assert_eq!(leftovers(&temp.locks()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_acquire_leaves_nothing() {
    // On a disk, where an attempt takes long enough for its give-back to overtake it.
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    // Cancelled at every moment of an attempt that nothing blocks …
    for micros in (0..12_000).step_by(80) {
        let _ = tokio::time::timeout(Duration::from_micros(micros), locks.mutex("x").lock()).await;
    }
    // … and while it waits.
    let guard = locks.mutex("x").try_lock_for(PATIENCE).await.unwrap().expect("nobody has it");
    for millis in [0, 1, 5, 20, 60] {
        let mutex = locks.mutex("x");
        let waiting = tokio::time::timeout(Duration::from_millis(millis), mutex.lock());
        assert!(waiting.await.is_err());
    }
    let info = locks.inspect("x").await.unwrap();
    assert_eq!((info.holders.len(), info.queue_length), (1, 0));
    guard.release().await.unwrap();
    locks.close().await;
    assert_eq!(leftovers(&temp.locks()), [""; 0]);
}

#[test]
fn a_guard_dropped_without_a_runtime_is_released() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(locks.mutex("x").lock()).unwrap();
    drop(runtime);
    let other = start(&["hold", "exclusive", "x"], &temp.locks());
    drop(guard);
    assert!(!other.line().is_empty());
}

#[tokio::test]
async fn a_client_that_is_dropped_with_its_guards_frees_them() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let guard = locks.mutex("x").lock().await.unwrap();
    drop(locks);
    drop(guard);
    assert!(take(&open(&temp.locks()), "exclusive", "x", Some(PATIENCE)).await.is_some());
}

#[tokio::test]
async fn what_the_store_cannot_do_it_says() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let guard = locks.rwlock("x").write().await.unwrap();
    assert_eq!(locks.revoke("x", true).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(locks.find(guard.lease_id()).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let error = locks.semaphore("y", MAX_PERMITS + 1).try_acquire().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported), "{error}");
    assert!(locks.semaphore("y", MAX_PERMITS).try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_locked_meta_file_is_an_overloaded_store_not_contention() {
    use rustix::fs::{FlockOperation, flock};
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let guard = locks.mutex("x").lock().await.unwrap();
    let meta = fs::read_dir(temp.locks())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "meta"))
        .unwrap();
    let meta = fs::File::open(meta).unwrap();
    flock(&meta, FlockOperation::LockExclusive).unwrap();
    assert_eq!(locks.mutex("x").try_lock().await.unwrap_err().kind(), ErrorKind::Overloaded);
    // It is unlocked all the same, just not removed.
    guard.release().await.unwrap();
    flock(&meta, FlockOperation::Unlock).unwrap();
    assert!(locks.mutex("x").try_lock().await.unwrap().is_some());
}
