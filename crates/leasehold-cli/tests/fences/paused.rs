//! A writer in a process of its own is stopped between its check of the lease and its write, for longer than the lease
//! lives. Then a later holder writes, and the paused writer goes on.

use std::time::Duration;

use leasehold::Locks;
use testkit::process::{Child, hear, role, say};
use testkit::until::in_time;

use crate::writer::{Behind, Check, Writer};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Not a test: the paused writer, and nothing without a role.
#[test]
fn play() {
    let Some(role) = role() else { return };
    let parts: Vec<&str> = role.split('\t').collect();
    let [locks, writer, check] = parts[..] else { panic!("{role}") };
    let check = [Check::Function, Check::Trigger, Check::Nothing][check.parse::<usize>().unwrap()];
    let writer = Writer::read(writer);
    runtime().block_on(async {
        let locks = Locks::connect(locks).await.unwrap();
        let guard = locks.mutex("report").ttl(Duration::from_secs(2)).lock().await.unwrap();
        // Still held. The pause comes after this, where no check can help.
        guard.check().unwrap();
        let fence = guard.write_fence().unwrap().to_string();
        say(&fence);
        hear();
        say(&match writer.write("100", fence.trim_start_matches('0'), check) {
            Ok(_) => "written".to_owned(),
            Err(why) => format!("refused: {}", why.replace('\n', " ")),
        });
    });
}

fn refuses_a_paused_writer((writer, _behind): (Writer, Behind)) {
    for (number, check) in [Check::Function, Check::Trigger, Check::Nothing].into_iter().enumerate() {
        if !writer.checks().contains(&check) {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let locks = format!("sqlite:{}", directory.path().join("locks.db").display());
        let mut child = Child::spawn("paused::play", &format!("{locks}\t{}\t{number}", writer.line()));
        let stale: u64 = child.line().parse().unwrap();
        child.stop();
        let fence = runtime().block_on(async {
            // Waits until the lease of the stopped process has expired.
            let locks = Locks::connect(&locks).await.unwrap();
            let guard = in_time("the next holder", locks.mutex("report").lock()).await.unwrap();
            let fence = guard.write_fence().unwrap().get().get();
            // Twice: the same holder may write again.
            for value in ["199", "200"] {
                writer.write(value, &fence.to_string(), check).unwrap();
            }
            fence
        });
        child.go_on();
        child.tell("write now");
        let said = child.line();
        if check == Check::Nothing {
            assert_eq!(
                (said.as_str(), writer.stored(check).as_str()),
                ("written", "100"),
                "nothing stops it"
            );
            continue;
        }
        assert_eq!(writer.stored(check), "200", "{check:?}: {said}");
        for part in ["refused", "stale fence", writer.resource(check), &stale.to_string(), &fence.to_string()]
        {
            assert!(said.contains(part), "{check:?}: {part} is not in {said}");
        }
    }
}

#[test]
fn postgres_refuses_a_paused_writer() {
    if role().is_none() {
        refuses_a_paused_writer(Writer::postgres());
    }
}

#[test]
fn mariadb_refuses_a_paused_writer() {
    if role().is_none() {
        refuses_a_paused_writer(Writer::mariadb());
    }
}

#[test]
fn sqlite_refuses_a_paused_writer() {
    if role().is_none() {
        refuses_a_paused_writer(Writer::sqlite());
    }
}

#[test]
fn redis_refuses_a_paused_writer() {
    if role().is_none() {
        refuses_a_paused_writer(Writer::redis());
    }
}
