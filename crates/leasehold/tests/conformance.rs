//! The promises of the contract, shown on the memory store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Liveness, Query, TimeAuthority};
use leasehold::backends::memory::Memory;
use leasehold::conformance::{Harness, checks, run_all};

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_every_promise() {
    let store = Memory::new();
    let connect = || async { Ok(Arc::new(store.clone()) as Arc<dyn Backend>) };
    let report = run_all(&Harness::connect(connect).await.unwrap()).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_suites_run_side_by_side_and_leave_nothing_but_fences() {
    let store = Memory::new();
    let harness = Harness::new(Arc::new(store.clone()));
    let (one, other) = tokio::join!(run_all(&harness), run_all(&harness));
    one.assert_passed();
    other.assert_passed();
    let swept = store.sweep().await.unwrap();
    assert_eq!((swept.held, swept.waiting), (0, 0), "{swept:?}");
    let all = Query::Prefix { stored: String::new(), limit: 10, cursor: None };
    assert!(store.inspect(&all).await.unwrap().items.is_empty());
}

/// Field by field, so that an ability cannot vanish together with its checks.
#[test]
fn memory_says_that_it_can_do_everything() {
    let info = Memory::new().info();
    assert_eq!(info.scheme, "memory");
    assert_eq!(info.liveness, Liveness::Ttl);
    assert_eq!(info.time, TimeAuthority::Store);
    assert!(info.fenced);
    assert!(info.fifo);
    assert!(info.push);
    assert!(!info.keeps_places);
    assert!(info.shared);
    assert_eq!(info.max_permits, u32::MAX);
    assert!(info.downgrade);
    assert!(info.find_by_id);
    assert!(info.revoke);
    assert!(info.detects_loss);
    assert!(info.notes);
    assert!(!info.tells_loss);
    assert_eq!(info.check_every, None);
    assert!(info.namespaced);
    assert_eq!(info.max_ttl, Duration::from_secs(24 * 3600));
    assert_eq!(info.min_validity_percent, 0);
}

#[test]
fn the_list_is_long_and_every_name_is_there_once() {
    let checks = checks();
    assert!(checks.len() >= 45, "{} checks", checks.len());
    let names: HashSet<_> = checks.iter().map(|check| check.name()).collect();
    assert_eq!(names.len(), checks.len());
}

#[test]
fn every_promise_has_a_check_and_every_check_a_promise() {
    let promises = (1..=11).map(|number| number.to_string());
    let safety = (1..=13).map(|number| format!("I{number}"));
    let liveness = (1..=8).map(|number| format!("J{number}"));
    let known: HashSet<String> = promises.clone().chain(safety).chain(liveness).collect();
    let checks = checks();
    let shown: HashSet<&str> = checks.iter().flat_map(|check| check.promise().split(' ')).collect();
    assert!(shown.iter().all(|shown| known.contains(*shown)), "{shown:?}");
    for promise in promises {
        assert!(shown.contains(promise.as_str()), "no check shows promise {promise}");
    }
}
