//! The scenarios of `sdk/vectors.json` with the Rust client for `http://`: the reference for the SDKs.
//!
//! `docs/sdk-protocol.md` explains the cases. `SDK_CASES=id,id` runs some of them alone.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod case;
mod results;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use testkit::bench::Bench;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use case::{Case, Network};

const VECTORS: &str = include_str!("../../../../sdk/vectors.json");

/// How many cases run at once.
const AT_ONCE: usize = 6;

/// Only a case that hangs takes this long.
const HANGS: Duration = Duration::from_secs(90);

fn bench() -> Bench {
    Bench::start(env!("CARGO_BIN_EXE_leasehold")).expect("a lock server and its proxy start")
}

/// Runs the cases that are wanted, several at once, and reports all that failed.
async fn run(network: Network) {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let only = std::env::var("SDK_CASES").unwrap_or_default();
    let shared = (network != Network::Faults).then(|| Arc::new(parking_lot::Mutex::new(bench())));
    if let (Network::Weather, Some(bench)) = (network, &shared) {
        let seed = seed_of_weather();
        println!("SEED={seed}");
        bench.lock().obey(&format!("weather {seed}")).unwrap();
    }
    let (places, mut running) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for case in vectors["scenarios"].as_array().unwrap().iter().filter(|case| network.runs(case)) {
        let (case, places, shared) = (case.clone(), Arc::clone(&places), shared.clone());
        let id = case["id"].as_str().unwrap().to_owned();
        if !only.is_empty() && !only.split(',').any(|one| one == id) {
            continue;
        }
        running.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let bench = shared.unwrap_or_else(|| Arc::new(parking_lot::Mutex::new(bench())));
            let done = tokio::time::timeout(HANGS, Case::new(bench, network).run(&case)).await;
            (id, done.unwrap_or_else(|_| Err("it hangs".into())))
        });
    }
    let mut failed = Vec::new();
    while let Some(done) = running.join_next().await {
        match done.unwrap() {
            (id, Ok(())) => println!("ok {id}"),
            (id, Err(why)) => failed.push(format!("not ok {id}: {why}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The seed of the weather: `SEED`, or a new one.
fn seed_of_weather() -> u64 {
    testkit::dice::chosen_seed().unwrap_or_else(testkit::dice::fresh_seed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenarios_pass_straight_to_the_server() {
    run(Network::Straight).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenarios_pass_through_bad_weather() {
    run(Network::Weather).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenarios_with_faults_pass() {
    run(Network::Faults).await;
}
