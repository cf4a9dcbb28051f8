//! Drives the built binary the way a shell does.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Returns exit code, stdout, stderr.
fn run(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = leasehold(args).output().expect("the binary starts");
    let code = status.code().unwrap_or_else(|| panic!("ended by a signal: {status}"));
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    (code, text(stdout), text(stderr))
}

#[test]
fn help_is_an_answer_with_an_example_and_the_exit_codes() {
    let (code, out, err) = run(&["--help"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("Examples:\n  leasehold run backup -- ./backup.sh"), "{out}");
    for line in [
        "  64  wrong usage",
        "  75  another client holds the lock",
        "  79  the lease was lost",
        "  127 the command",
    ] {
        assert!(out.contains(line), "{line} is missing in:\n{out}");
    }
    let (code, out, _) = run(&["-h"]);
    assert_eq!(code, 0);
    assert!(out.contains("Examples:"), "{out}");
    let (code, out, _) = run(&["stores", "--help"]);
    assert_eq!(code, 0);
    assert!(out.contains("--output"), "{out}");
}

#[test]
fn version_is_the_name_and_the_version() {
    let (code, out, err) = run(&["--version"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, format!("leasehold {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn stores_is_a_table_for_people() {
    let (code, out, err) = run(&["stores"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let mut lines = out.lines();
    let head: Vec<_> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(
        head,
        ["URL", "LIVENESS", "CLOCK", "FENCED", "FIFO", "PUSH", "SHARED", "PERMITS", "DOWNGRADE", "NOTES"]
    );
    let memory: Vec<_> = lines.find(|line| line.starts_with("memory:")).unwrap().split_whitespace().collect();
    assert_eq!(memory, ["memory:", "ttl", "store", "yes", "yes", "yes", "yes", "yes", "yes", "yes"]);
    assert_eq!(run(&["stores", "--output", "table"]).1, out);
}

#[test]
fn stores_is_json_for_programs() {
    let (code, out, err) = run(&["stores", "--output", "json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let stores: Value = serde_json::from_str(&out).unwrap();
    let memory = stores.as_array().unwrap().iter().find(|store| store["scheme"] == "memory").unwrap();
    assert_eq!(
        *memory,
        serde_json::json!({
            "scheme": "memory", "url": "memory:", "liveness": "ttl", "clock": "store", "fenced": true,
            "fifo": true, "push": true, "shared": true, "max_permits": u32::MAX, "downgrade": true, "notes": true,
        })
    );
}

#[test]
fn a_wrong_call_exits_64_and_says_what_is_wrong() {
    for (args, says) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["stores", "--output", "xml"], "possible values: table, json"),
        (&["stores", "--frobnicate"], "unexpected argument '--frobnicate'"),
        (&["stores", "surplus"], "unexpected argument 'surplus'"),
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, out.as_str()), (64, ""), "{args:?}");
        assert!(err.contains(says), "{args:?} says:\n{err}");
    }
}

#[test]
fn a_wrong_time_exits_64_with_what_is_wrong_and_what_is_allowed() {
    let store = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", store.path().join("locks.db").display());
    for (args, says) in [
        (&["run", "--ttl", "0", "x", "true"][..], "a ttl of 0 s is too short: choose one from 50 ms to 24 h"),
        (&["run", "--ttl", "2d", "x", "true"], "a ttl of 48 h is too long: choose one from 50 ms to 24 h"),
        (&["run", "--ttl", "1h30m", "x", "true"], "a number with ms, s, m, h or d, for example 1.5 or 10m"),
        (&["run", "-w", "soon", "x", "true"], "a number with ms, s, m, h or d, for example 1.5 or 10m"),
        (&["run", "--max-hold", "0", "x", "true"], "--max-hold must be above zero"),
        (&["run", "--kill-after", "20s", "x", "true"], "use --ttl 60s or more"),
        (&["acquire", "--ttl", "0", "x"], "a ttl of 0 s is too short: choose one from 1 ms to 24 h"),
        (&["acquire", "--ttl", "2d", "x"], "it need not outlast the work, because leases can be renewed"),
        (&["bench", "--ttl", "0"], "a ttl of 0 s is too short: choose one from 1 ms to 24 h"),
        (&["bench", "--duration", "0"], "--duration must be above zero"),
        (&["bench", "--duration", "soon"], "a number with ms, s, m, h or d, for example 1.5 or 10m"),
    ] {
        let (code, out, err) = run(&[&args[..1], &["--url", &url], &args[1..]].concat());
        assert_eq!((code, out.as_str()), (64, ""), "{args:?} says:\n{err}");
        assert!(err.contains(says), "{args:?} says:\n{err}");
    }
}

#[test]
fn no_command_exits_64_with_help_on_stderr() {
    let (code, out, err) = run(&[]);
    assert_eq!((code, out.as_str()), (64, ""));
    assert!(err.contains("Usage: leasehold") && err.contains("stores"), "{err}");
}

#[test]
fn a_reader_that_went_away_is_not_a_failure() {
    for args in [&["stores"][..], &["stores", "--output", "json"], &["--help"], &["--version"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = leasehold(args).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn an_answer_that_cannot_be_written_exits_74() {
    for args in [&["stores"][..], &["--version"]] {
        let full = File::create("/dev/full").unwrap();
        let output = leasehold(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(74), "{args:?}");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(err.starts_with("leasehold: cannot write the answer"), "{args:?} says:\n{err}");
    }
}

#[test]
fn a_closed_stderr_does_not_change_the_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = leasehold(&["frobnicate"]).stderr(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}
