//! Everything the binary prints, compared with the files in `snapshots/`.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::path::PathBuf;

use support::{Served, Store, ended, leasehold, sqlite};

fn check(name: &str, seen: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    testkit::snapshot::check(folder.join(name), seen);
}

/// One command line and everything it printed.
fn call(store: &Store, args: &[&str]) -> String {
    let mut command = leasehold(args);
    command.current_dir(store.path("")).env("COLUMNS", "100").env("HOME", store.path(""));
    command.env_remove("XDG_STATE_HOME").env("LANG", "C");
    let ended = ended(command);
    format!("$ leasehold {}\n{}{}exit {}\n\n", args.join(" "), ended.out, ended.err, ended.code())
        .replace(store.path("").to_str().unwrap().trim_end_matches('/'), "DIR")
}

/// Replaces numbers and times, and narrows columns: they differ from run to run.
fn masked(text: &str) -> String {
    // What doctor says about the machine and its load.
    let machine = ["a look takes", "wall clock", " it is on ", "belongs to user"];
    let lines = text.lines().filter(|line| !machine.iter().any(|part| line.contains(part)));
    let masked =
        lines.map(|line| if line.starts_with("exit ") { line.to_owned() } else { masked_line(line) });
    masked.map(|line| line + "\n").collect()
}

fn masked_line(text: &str) -> String {
    let mut out = String::new();
    for part in text.chars() {
        match part {
            digit if digit.is_ascii_digit() && out.ends_with('N') => {}
            digit if digit.is_ascii_digit() => out.push('N'),
            ' ' if out.ends_with("  ") => {}
            other => out.push(other),
        }
    }
    for time in ["N min N s", "N.N s", "N ms", "N s"] {
        out = out.replace(time, "TIME");
    }
    out
}

const COMMANDS: [&[&str]; 25] = [
    &[],
    &["run"],
    &["elect"],
    &["cron"],
    &["acquire"],
    &["renew"],
    &["release"],
    &["wait"],
    &["list"],
    &["show"],
    &["watch"],
    &["revoke"],
    &["doctor"],
    &["completions"],
    &["man"],
    &["bench"],
    &["serve"],
    &["token"],
    &["token", "create"],
    &["fences"],
    &["fences", "sql"],
    &["fences", "redis"],
    &["torture"],
    &["torture", "check"],
    &["stores"],
];

#[test]
fn help_of_every_command_is_as_kept() {
    let store = sqlite();
    let calls = COMMANDS.iter().map(|command| call(&store, &[*command, &["--help"]].concat()));
    check("help.txt", &calls.collect::<String>());
}

#[test]
fn errors_for_bad_input_are_as_kept() {
    let store = sqlite();
    let db = "sqlite:locks.db";
    std::fs::write(store.path("empty"), "").unwrap();
    std::fs::write(store.path("short"), "short").unwrap();
    std::fs::write(store.path("unknown"), "AAAAAAAAAAAAAAAAAAAAAA").unwrap();
    std::fs::write(store.path("odd.conf"), "namespace = prod # main\n").unwrap();
    std::fs::write(store.path("unknown.conf"), "colour = red\n").unwrap();
    std::fs::write(store.path("twice.conf"), "log = text\nlog = json\n").unwrap();
    std::fs::write(store.path("plain.conf"), "nonsense\n").unwrap();
    std::fs::write(store.path("switch.conf"), "log-names = perhaps\n").unwrap();
    std::fs::write(store.path("number.conf"), "max-ttl-ms = many\n").unwrap();
    let cases: &[&[&str]] = &[
        &[],
        &["frobnicate"],
        &["fences", "sql"],
        &["fences", "sql", "--dialect", "oracle"],
        &["fences", "sql", "--dialect", "mysql", "--key", "id"],
        &["fences", "sql", "--dialect", "mysql", "--table", "a b"],
        &["run"],
        &["run", "x"],
        &["run", "--ttl", "0", "x", "true"],
        &["run", "--url", db, "--ttl", "0", "x", "true"],
        &["run", "--url", db, "--ttl", "2d", "x", "true"],
        &["run", "--ttl", "1h30m", "x", "true"],
        &["run", "--ttl", "", "x", "true"],
        &["run", "-w", "soon", "x", "true"],
        &["run", "-n", "-w", "1", "x", "true"],
        &["run", "--url", db, "--max-hold", "0", "x", "true"],
        &["run", "--url", db, "--kill-after", "20s", "x", "true"],
        &["run", "--url", db, "--permits", "0", "x", "true"],
        &["run", "--url", db, "", "true"],
        &["run", "--url", db, "x", "--", "./is-not-there"],
        &["run", "--url", db, "x", "--", "./empty"],
        &["run", "--url", "memory:", "x", "true"],
        &["run", "--url", "nosuch:x", "x", "true"],
        &["run", "--url", "x", "x", "true"],
        &["run", "--url-file", "is-not-there", "x", "true"],
        &["run", "--url-file", "empty", "x", "true"],
        &["run", "--url", db, "--url-file", "empty", "x", "true"],
        &["run", "--url", db, "--cacert", "empty", "x", "true"],
        &["run", "--url", "http://127.0.0.1:1", "--cacert", "empty", "x", "true"],
        &["run", "--url", "https://127.0.0.1:1", "--cacert", "is-not-there", "x", "true"],
        &["run", "--url", "https://127.0.0.1:1", "--cert", "empty", "x", "true"],
        &["run", "--url", "https://127.0.0.1:1", "--key", "empty", "x", "true"],
        &["elect", "--url", db, "x"],
        &["elect", "--url", db, "x", "--", "./is-not-there"],
        &["elect", "--url", db, "x", "--", "./empty"],
        &["elect", "--url", db, "--http", "nonsense", "x"],
        &["elect", "--url", db, "--ttl", "0", "x", "true"],
        &["elect", "--url", db, "--kill-after", "20s", "x", "true"],
        &["elect", "--url", db, "", "true"],
        &["elect", "--url", "memory:", "x", "true"],
        &["cron", "--url", db, "* * * * *"],
        &["cron", "--url", db, "* * * * *", "x"],
        &["cron", "--url", db, "* * * *", "x", "true"],
        &["cron", "--url", db, "0 0 30 2 *", "x", "true"],
        &["cron", "--url", db, "@every 1ms", "x", "true"],
        &["cron", "--url", db, "--time-zone", "Europe/Atlantis", "* * * * *", "x", "true"],
        &["cron", "--url", db, "--missed", "never", "* * * * *", "x", "true"],
        &["cron", "--url", db, "--policy", "once", "* * * * *", "x", "true"],
        &["cron", "--url", db, "* * * * *", "x", "./is-not-there"],
        &["cron", "--url", db, "--status", "x", "* * * * *", "y", "true"],
        &["cron", "--url", "file:locks", "* * * * *", "x", "true"],
        &["cron", "--url", "file:locks", "--status", "x"],
        &["acquire", "--url", db, "--ttl", "0", "x"],
        &["acquire", "--url", db, "--ttl", "2d", "x"],
        &["acquire", "--url", "file:locks", "x"],
        &["acquire", "--url", db, "--export", "--output", "json", "x"],
        &["renew", "--url", db],
        &["renew", "--url", db, "--lease", "is-not-there"],
        &["renew", "--url", db, "--lease", "empty"],
        &["renew", "--url", db, "--lease", "short"],
        &["release", "--url", db, "--lease", "short"],
        &["release", "--url", db, "--lease", "unknown"],
        &["wait", "--url", db, "-w", "soon", "x"],
        &["list", "--url", db, "--output", "xml"],
        &["show", "--url", db],
        &["watch", "--url", db, "--interval", "often"],
        &["revoke", "--url", db, "x"],
        &["revoke", "--url", "file:locks", "--yes", "x"],
        &["doctor", "--url", db, "sqlite:other.db"],
        &["doctor", "nosuch:x"],
        &["completions", "nosuch"],
        &["man", "--dir", "empty"],
        &["bench", "--clients", "0"],
        &["bench", "--duration", "0"],
        &["bench", "--ttl", "0", "--duration", "1"],
        &["serve", "--listen", "nonsense"],
        &["serve", "--listen", "0.0.0.0:0"],
        &["serve", "--log", "loud"],
        &["serve", "--max-ttl-ms", "0"],
        &["serve", "--max-ttl-ms", "many"],
        &["serve", "--tokens", "is-not-there"],
        &["serve", "--tls-cert", "empty"],
        &["serve", "--tls-key", "empty"],
        &["serve", "--tls-client-ca", "empty"],
        &["serve", "--insecure-no-auth=perhaps"],
        &["serve", "--config", "is-not-there"],
        &["serve", "--config", "odd.conf"],
        &["serve", "--config", "unknown.conf"],
        &["serve", "--config", "twice.conf"],
        &["serve", "--config", "plain.conf"],
        &["serve", "--config", "switch.conf"],
        &["serve", "--config", "number.conf"],
        &["serve", "--store", "nosuch:x", "--listen", "127.0.0.1:0"],
        &["token", "create", "--allow", "nosuch"],
        &["torture", "--store", "nosuch"],
        &["torture", "--profile", "nosuch"],
        &["torture", "--front", "nosuch"],
        &["torture", "--url", "memory:"],
        &["torture", "--store", "sqlite,redis"],
        &["torture", "--hours", "0"],
        &["torture", "--hours", "1", "--front", "server"],
        &["torture", "--secs", "0"],
        &["torture", "--workers", "1"],
        &["torture", "check", "is-not-there"],
        &["stores", "surplus"],
    ];
    check("bad_input.txt", &cases.iter().map(|args| call(&store, args)).collect::<String>());
}

#[test]
fn output_of_commands_on_a_store_is_as_kept() {
    let store = sqlite();
    let db = "sqlite:locks.db";
    let mut seen = String::new();
    for args in [
        &["stores"][..],
        &["list", "--url", db],
        &["list", "--url", db, "x"],
        &["show", "--url", db, "x"],
        &["wait", "--url", db, "x"],
        &["revoke", "--url", db, "--yes", "x"],
        &["run", "--url", db, "x", "--", "sh", "-c", "exit 3"],
        &["run", "--url", db, "--json", "x", "true"],
        &["elect", "--url", db, "--once", "x", "--", "sh", "-c", "exit 3"],
        &["elect", "--url", db, "--once", "--json", "x", "true"],
        &["cron", "--url", db, "--status", "x"],
        &["cron", "--url", db, "--status", "x", "--output", "json"],
    ] {
        seen += &call(&store, args);
    }
    let taken =
        call(&store, &["acquire", "--url", db, "--owner", "me", "--metadata", "why", "--ttl", "1h", "x"]);
    let lease: serde_json::Value =
        serde_json::from_str(taken.split_once('\n').unwrap().1.rsplit_once("exit").unwrap().0).unwrap();
    let id = lease["id"].as_str().or(lease["lease_id"].as_str()).expect("the lease has an id").to_owned();
    std::fs::write(store.path("lease"), &id).unwrap();
    seen += &taken;
    for args in [
        &["list", "--url", db][..],
        &["show", "--url", db, "x"],
        &["acquire", "--url", db, "-n", "x"],
        &["run", "--url", db, "-n", "x", "true"],
        &["run", "--url", db, "--json", "-n", "x", "true"],
        &["wait", "--url", db, "-w", "0", "x"],
        &["renew", "--url", db, "--ttl", "1h", "--lease", "lease"],
        &["revoke", "--url", db, "--yes", "x"],
        &["show", "--url", db, "x"],
        &["renew", "--url", db, "--lease", "lease"],
        &["revoke", "--url", db, "--now", "--yes", "x"],
        &["release", "--url", db, "--lease", "lease"],
        &["doctor", db],
        &["serve", "--check", "--listen", "127.0.0.1:0", "--store", db],
    ] {
        seen += &call(&store, args);
    }
    let served = Served::start(&store.path(""), &[]);
    let greeting = served.greeting.replace(store.path("").canonicalize().unwrap().to_str().unwrap(), "DIR");
    seen += &format!("$ leasehold serve\n{greeting}");
    check("output.txt", &masked(&seen.replace(&id, "LEASE_ID")));
}

#[test]
fn texts_in_the_sources() {
    testkit::messages::check(env!("CARGO_MANIFEST_DIR"), &[]);
}
