//! Kill -9 at any moment, under load: what was answered is there after reopening.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use leasehold::backend::{Attempt, Backend, Claim, Query, Release, Released};
use leasehold::backends::sqlite::Sqlite;
use leasehold::{ErrorKind, Fence, LeaseId, Mode, Name};
use testkit::until::until;

use crate::support::{Log, directory, lines, random, runtime, start, told};

const TASKS: usize = 8;
const KILLS: u32 = 100;
/// How many lines a child writes before it is killed.
const MANY: usize = 3 * TASKS;
/// Longer than the test: nothing expires.
const TTL: Duration = Duration::from_secs(3600);

fn name(child: &str, task: usize) -> Name {
    Name::within("kill", &format!("{child}-{task}")).unwrap()
}

/// The child: takes and gives back without end. It writes down each answer after it came, and each release before it
/// is sent.
pub(crate) fn load() {
    let (child, directory) = told();
    let log = std::sync::Arc::new(Log::append(&directory.join(format!("log-{child}"))));
    runtime().block_on(async {
        let store = Sqlite::open(directory.join("locks.db")).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (store, log, name) = (store.clone(), log.clone(), name(&child, task));
                tokio::spawn(async move {
                    loop {
                        let claim = Claim::new(name.clone(), Mode::Exclusive, TTL, "load");
                        let id = claim.id.expose();
                        match store.try_acquire(&claim).await {
                            Ok(Attempt::Granted(grant)) => {
                                log.line(&format!("granted {task} {id} {}", grant.fence))
                            }
                            // Nothing was changed: the other was held up in a transaction.
                            Err(error) if error.kind() == ErrorKind::Overloaded => continue,
                            other => panic!("{other:?}"),
                        }
                        // Long enough to be killed while it holds something.
                        tokio::time::sleep(Duration::from_micros(random(4_000))).await;
                        log.line(&format!("releasing {task} {id}"));
                        let release = Release::new(name.clone(), claim.id);
                        let mut answer = store.release(&release).await;
                        while answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Overloaded) {
                            answer = store.release(&release).await;
                        }
                        assert_eq!(answer.unwrap(), Released::Done);
                        log.line(&format!("released {task} {id}"));
                    }
                })
            })
            .collect();
        // Any that ends has failed.
        let (ended, _, _) = futures_util::future::select_all(tasks).await;
        ended.unwrap();
    });
}

#[test]
fn what_was_answered_survives_kill_9_at_any_moment() {
    let directory = directory();
    let path = directory.path().join("locks.db");
    let children = ["a", "b"];
    let mut last: HashMap<Name, Fence> = HashMap::new();
    let (mut kills, mut answers, mut held) = (0, 0, 0);
    while kills < KILLS {
        let mut running: Vec<_> =
            children.iter().map(|child| start("load", child, directory.path())).collect();
        for child in children {
            let log = directory.path().join(format!("log-{child}"));
            until("the children get on", || lines(&log).len() >= MANY);
        }
        std::thread::sleep(Duration::from_micros(random(100_000)));
        // The second goes on while the first is already dead, and with luck while its lock is broken.
        for child in &mut running {
            child.kill();
            kills += 1;
            std::thread::sleep(Duration::from_micros(random(5_000)));
        }
        let (a, h) = runtime().block_on(check(&path, directory.path(), &children, &mut last));
        (answers, held) = (answers + a, held + h);
    }
    println!("{kills} kills, {answers} answers checked, {held} leases found held");
    assert!(held > 20, "{answers} answers and {held} held leases are not a load");
}

/// Checks that everything that was written down is true of the file; then gives back all leases.
async fn check(
    path: &Path,
    directory: &Path,
    children: &[&str],
    last: &mut HashMap<Name, Fence>,
) -> (usize, usize) {
    let (mut answers, mut held) = (0, 0);
    let store = Sqlite::open(path).await.unwrap();
    for child in children {
        let log = directory.join(format!("log-{child}"));
        // Per task, what the last lines say: the id, its fence, and whether a release was sent, answered.
        let mut latest: HashMap<usize, (LeaseId, Fence, bool, bool)> = HashMap::new();
        for line in lines(&log) {
            answers += 1;
            let words: Vec<_> = line.split(' ').collect();
            let task: usize = words[1].parse().unwrap();
            let id = LeaseId::parse(words[2]).unwrap();
            match words[0] {
                "granted" => {
                    let fence = Fence::new(words[3].parse().unwrap());
                    let highest = last.entry(name(child, task)).or_default();
                    assert!(fence > *highest, "fence {fence} came after {highest}");
                    *highest = fence;
                    latest.insert(task, (id, fence, false, false));
                }
                "releasing" => latest.get_mut(&task).unwrap().2 = true,
                "released" => latest.get_mut(&task).unwrap().3 = true,
                other => panic!("{other}"),
            }
        }
        std::fs::remove_file(&log).unwrap();
        for task in 0..TASKS {
            let name = name(child, task);
            let info = store.inspect(&Query::Name(name.clone())).await.unwrap().items.remove(0);
            assert!(info.last_fence >= last.get(&name).copied().unwrap_or_default());
            if let Some((id, fence, sent, answered)) = latest.get(&task) {
                let holder = info.holders.iter().find(|holder| holder.id == *id);
                if *answered {
                    assert!(holder.is_none(), "an answered release was forgotten");
                } else if !*sent {
                    let holder = holder.expect("an answered grant was forgotten");
                    assert_eq!(holder.grant.fence, *fence);
                    held += 1;
                }
            }
            for holder in info.holders {
                // A grant whose answer was lost counts too: its fence does.
                let highest = last.entry(name.clone()).or_default();
                *highest = (*highest).max(holder.grant.fence);
                store.release(&Release::new(name.clone(), holder.id)).await.unwrap();
            }
        }
    }
    let db = rusqlite::Connection::open(path).unwrap();
    let verdict: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
    (answers, held)
}
