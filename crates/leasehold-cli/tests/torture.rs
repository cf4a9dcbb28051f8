//! `leasehold torture` as a user sees it: its exit codes, its files, and that it leaves nothing behind.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use testkit::until::until;

fn torture(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.arg("torture").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str], out: &Path) -> Output {
    torture(args).arg("--out").arg(out).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn one_seed_gives_one_plan_and_a_run_can_be_judged_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let run_for = |secs: &str, name: &str| {
        let out = directory.path().join(format!("{name}-{secs}"));
        let args = ["--store", "sqlite", "--profile", "kill", "--workers", "4", "--seed", "5", "--json"];
        let output = run(&[&args[..], &["--secs", secs]].concat(), &out);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the report is JSON");
        assert_eq!(report["seed"], 5);
        assert!(report["figures"]["grants"].as_u64().is_some_and(|grants| grants > 0), "{report}");
        assert!(out.join("report.json").exists());
        (output, out)
    };
    // On a slow machine it takes longer until both show something.
    let mut tries =
        ["2", "6", "18", "54"].into_iter().map(|secs| ["one", "two"].map(|name| run_for(secs, name)));
    let runs = tries.find(|runs| runs.iter().all(|(output, _)| output.status.code() != Some(81)));
    let runs = runs.expect("runs that show something");
    let plans = runs.each_ref().map(|(output, out)| {
        assert_eq!(output.status.code(), Some(0), "{}", said(output));
        std::fs::read_to_string(out.join("plan.json")).expect("there is a plan")
    });
    assert_eq!(plans[0], plans[1]);
    let again = torture(&["check"]).arg(&runs[0].1).output().expect("it runs");
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
}

#[test]
fn what_does_not_suit_is_refused_with_a_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    for (args, reason) in [
        (&["--store", "sqlite", "--profile", "net"][..], "nobody reaches this store by the network"),
        (&["--store", "memory", "--profile", "restart"], "does not survive"),
        (
            &["--store", "redis", "--profile", "restart", "--url", "redis://127.0.0.1:1"],
            "needs a throw-away store",
        ),
        (&["--store", "sqlite", "--front", "server"], "that is the store http"),
        (&["--store", "redis", "--front", "pgbouncer"], "PgBouncer is for PostgreSQL"),
        (&["--store", "redis", "--front", "tls", "--url", "redis://127.0.0.1:1"], "needs a throw-away store"),
        (&["--store", "sqlite", "--profile", "many"], "is filled with names"),
        (&["--front", "nginx"], "no such front"),
        (&["--store", "postgres", "--front", "server", "--profile", "failover"], "with nothing before it"),
        (&["--store", "redis-cluster", "--front", "tls"], "there is no such ground yet"),
        (&["--store", "redis", "--profile", "failover"], "no replica takes over here"),
        (&["--store", "redis-cluster", "--profile", "net"], "failover is the profile for it"),
        (&["--store", "redis", "--wait-replicas", "1"], "wait_replicas is for redis-sentinel"),
        (&["--store", "redis-sentinel", "--wait-replicas", "2"], "with one replica each"),
        (&["--store", "etcd"], "no such store"),
        (&["--profile", "storm"], "no such profile"),
    ] {
        let output = run(args, &directory.path().join("run"));
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{args:?}: {}", said(&output));
    }
    std::fs::write(directory.path().join("something"), "").expect("a file");
    let output = run(&[], directory.path());
    assert_eq!(output.status.code(), Some(64), "{}", said(&output));
    assert!(said(&output).contains("is not empty"), "{}", said(&output));
}

/// A variable in the supervisor's environment, which all its processes inherit.
const RUN: &str = "LEASEHOLD_TEST_RUN";

/// The supervisor of this run, and all its processes.
fn processes(out: &Path) -> Vec<String> {
    let mark = format!("{RUN}={}", out.display());
    let processes = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    processes
        .filter(|process| {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Killed if the test fails.
struct Supervisor(Child);

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_supervisor_leaves_no_process_not_even_a_stopped_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("run");
    let mut command =
        torture(&["--store", "sqlite", "--profile", "pause", "--secs", "300", "--workers", "4"]);
    command.arg("--out").arg(&out).env(RUN, &out).stdout(Stdio::null()).stderr(Stdio::null());
    let supervisor = Supervisor(command.spawn().expect("it runs"));
    let stands_still = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    // The supervisor, four workers and the resource; one of them is stopped.
    until("a worker is paused", || {
        let processes = processes(&out);
        processes.len() >= 6 && processes.iter().any(stands_still)
    });
    drop(supervisor);
    until("all are gone", || processes(&out).is_empty());
}

#[test]
fn hours_end_in_order_on_sigint_and_leave_no_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("run");
    let mut command = torture(&["--hours", "1", "--store", "memory,sqlite", "--secs", "1", "--workers", "4"]);
    command.arg("--out").arg(&out).arg("--json").env(RUN, &out);
    let mut supervisor = Supervisor(command.spawn().expect("it runs"));
    // The report of a round exists: a user may read it meanwhile.
    until("a round is over", || out.join("report.json").exists());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(supervisor.0.id()).expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it is there");
    let mut text = String::new();
    let stdout = supervisor.0.stdout.as_mut().expect("a pipe");
    std::io::Read::read_to_string(stdout, &mut text).expect("the report");
    let status = supervisor.0.wait().expect("it ends");
    let report: serde_json::Value = serde_json::from_str(&text).expect("the report is JSON");
    // So short a run shows too little, and nothing is wrong.
    assert_eq!(status.code(), Some(81), "{report}");
    assert_eq!(
        (&report["interrupted"], &report["broken"]),
        (&true.into(), &serde_json::json!([])),
        "{report}"
    );
    assert!(report["rounds"][0]["seed"].is_u64(), "{report}");
    until("all are gone", || processes(&out).is_empty());
}

#[test]
fn several_stores_take_hours() {
    let directory = tempfile::tempdir().expect("a directory");
    for (args, reason) in [
        (&["--store", "sqlite,file"][..], "several stores or profiles need `--hours`"),
        (&["--profile", "calm,kill"], "several stores or profiles need `--hours`"),
        (&["--hours", "1", "--minutes", "1"], "cannot be used with"),
        (&["--hours=-1"], "above 0 and at most 10000"),
        (&["--minutes", "0"], "above 0 and at most 10000"),
        (&["--minutes", "1", "--profile", "net,restart"], "none of these profiles suits"),
        (
            &["--minutes", "1", "--url", "redis://127.0.0.1:1", "--store", "redis,http"],
            "one --url takes one store",
        ),
    ] {
        let output = run(args, &directory.path().join("run"));
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{args:?}: {}", said(&output));
    }
}
