//! The commands for scripts, driven as a script does.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Ended, Running, Store, ended, every_store, file, sqlite, stores, ttl_stores, until};
use testkit::pty::Terminal;

/// Leaving a queue is tried for a second; a waiter that missed the signal would wait for ever.
const AT_ONCE: Duration = Duration::from_secs(10);

fn call(store: &Store, args: &[&str]) -> Ended {
    ended(store.leasehold(args))
}

fn json(store: &Store, args: &[&str]) -> Value {
    let ended = call(store, &[args, &["--output", "json"]].concat());
    assert_eq!(ended.code(), 0, "{args:?} {ended:?}");
    serde_json::from_str(&ended.out).unwrap()
}

#[test]
fn a_script_takes_renews_and_gives_back_a_lease_by_eval() {
    for store in ttl_stores() {
        let script = "set -e
            eval \"$($LH acquire \"it's mine\" --ttl 20s --export)\"
            echo $LEASEHOLD_NAME; echo $LEASEHOLD_FENCE; echo $LEASEHOLD_TTL
            $LH acquire -n \"it's mine\" >/dev/null 2>&1 || echo busy $?
            $LH renew; $LH release; $LH release || echo gone $?";
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).env("LH", env!("CARGO_BIN_EXE_leasehold")).env("LEASEHOLD_URL", &store.url);
        let outcome = ended(sh);
        let lines: Vec<&str> = outcome.out.lines().collect();
        assert_eq!((lines[0], lines[2], lines[3]), ("it's mine", "20000ms", "busy 75"), "{outcome:?}");
        assert_eq!(lines[1].len(), 15);
        assert!(lines[4].starts_with("renewed, "), "{outcome:?}");
        assert_eq!(lines[5..], ["released", "gone 79"]);
        assert!(outcome.err.contains("leasehold: not released: the store has no such lease"), "{outcome:?}");
    }
}

#[test]
fn a_lease_comes_from_a_file_or_pipe_but_never_an_argument() {
    for store in ttl_stores() {
        let taken = call(&store, &["acquire", "x", "--owner", "me", "--metadata", "why not"]);
        assert_eq!(taken.code(), 0, "{taken:?}");
        let lease: Value = serde_json::from_str(&taken.out).unwrap();
        assert_eq!(
            (&lease["name"], &lease["owner"], &lease["ttl_ms"]),
            (&"x".into(), &"me".into(), &30000.into())
        );
        std::fs::write(store.path("lease.json"), &taken.out).unwrap();
        let renewed = json(&store, &["renew", "--lease", "lease.json", "--ttl", "60s"]);
        assert_eq!((&renewed["renewed"], &renewed["fence"]), (&true.into(), &lease["fence"]));
        assert!(renewed["expires_in_ms"].as_u64().unwrap() > 50_000);
        std::fs::write(store.path("id"), lease["lease_id"].as_str().unwrap()).unwrap();
        assert_eq!(call(&store, &["renew", "--lease", "id"]).code(), 0);
        let mut release = store.leasehold(&["release", "--lease", "-", "--output", "json"]);
        release.stdin(std::fs::File::open(store.path("lease.json")).unwrap());
        assert_eq!(
            serde_json::from_str::<Value>(&ended(release).out).unwrap(),
            serde_json::json!({"released": true})
        );
        let gone = call(&store, &["renew", "--lease", "lease.json", "--output", "json"]);
        assert_eq!(gone.code(), 79);
        assert_eq!(serde_json::from_str::<Value>(&gone.out).unwrap()["renewed"], false);
        assert_eq!(call(&store, &["renew"]).code(), 64);
        assert!(call(&store, &["renew"]).err.contains("which lease?"));
        assert_eq!(call(&store, &["renew", "--lease", "none"]).code(), 64);
        std::fs::write(store.path("id"), "nonsense").unwrap();
        assert_eq!(call(&store, &["renew", "--lease", "id"]).code(), 64);
    }
}

#[test]
fn leases_that_end_with_the_process_are_not_for_scripts() {
    let store = file();
    call(&store, &["acquire", "x"]).says(64, "use `leasehold run`, or a store with a ttl");
    call(&store, &["revoke", "x", "--yes"]).says(64, "and in no other way; `leasehold show` says which");
}

#[test]
fn a_lease_that_cannot_be_printed_is_given_back() {
    for store in ttl_stores() {
        let mut acquire = store.leasehold(&["acquire", "x"]);
        acquire.stdout(std::fs::File::create("/dev/full").unwrap());
        assert_eq!(acquire.output().unwrap().status.code(), Some(74));
        assert!(store.inspect("x").holders.is_empty());
    }
}

/// A pipe whose reader has gone.
fn closed_pipe() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

/// Runs a command whose answer nobody reads; returns its exit code and what it says.
fn unread(mut command: Command) -> (i32, String) {
    let output = command.stdout(closed_pipe()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_lease_that_nobody_reads_is_given_back_and_is_no_success() {
    for store in ttl_stores() {
        for form in [&["--output", "json"][..], &["--export"]] {
            let (code, said) = unread(store.leasehold(&[&["acquire", "x"], form].concat()));
            assert_eq!(code, 74, "{said}");
            assert!(said.starts_with("leasehold: nobody read the lease, so it was given back"), "{said}");
            assert!(store.inspect("x").holders.is_empty());
        }
    }
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
    let store = sqlite();
    let lease = call(&store, &["acquire", "held"]).out;
    std::fs::write(store.path("lease.json"), &lease).unwrap();
    let code = |args: &[&str]| unread(store.leasehold(args)).0;
    assert_eq!(code(&["wait", "-w", "0", "held", "--output", "json"]), 75);
    assert_eq!(code(&["wait", "free", "--output", "json"]), 0);
    assert_eq!(code(&["renew", "--lease", "lease.json"]), 0);
    assert_eq!(code(&["release", "--lease", "lease.json"]), 0);
    assert_eq!(code(&["release", "--lease", "lease.json", "--output", "json"]), 79);
    // Too little happens in this time.
    assert_eq!(
        code(&["torture", "--store", "memory", "--secs", "1", "--workers", "2", "--out", "out", "--json"]),
        81
    );
}

#[test]
fn a_watch_ends_when_its_reader_has_gone() {
    let store = sqlite();
    call(&store, &["acquire", "x"]);
    assert_eq!(unread(store.leasehold(&["watch"])), (0, String::new()));
}

/// A server's clients, one with every permission and one that may only acquire.
struct Scripts {
    dir: tempfile::TempDir,
    served: support::Served,
}

impl Scripts {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let allow = ["token", "create", "--tokens", "tokens", "--allow", "acquire"];
        let mut create = support::leasehold(&allow);
        create.current_dir(dir.path());
        let token = ended(create);
        assert_eq!(token.code(), 0, "{token:?}");
        std::fs::write(dir.path().join("token"), token.out).unwrap();
        let served = support::Served::start(dir.path(), &["--tokens", "tokens"]);
        Scripts { dir, served }
    }

    fn run(&self, script: &str) -> Ended {
        let mut sh = Command::new("sh");
        sh.args(["-c", script]).current_dir(self.dir.path());
        sh.env("LH", env!("CARGO_BIN_EXE_leasehold")).env("LEASEHOLD_URL", &self.served.url);
        sh.env("LEASEHOLD_TOKEN_FILE", "token").env("LEASEHOLD_NO_WARNINGS", "true");
        ended(sh)
    }
}

/// The server shows no lock to a token without the permission `read`.
#[test]
fn a_token_that_may_only_acquire_serves_a_script() {
    let scripts = Scripts::new();
    let outcome = scripts.run(
        "set -e
        chmod 600 token
        eval \"$($LH acquire x --ttl 20s --export)\"
        $LH renew
        # Without the name, the server cannot be asked about the lease.
        (unset LEASEHOLD_NAME; $LH renew || echo $?; $LH release || echo $?)
        # A name that is left over from another lock.
        (LEASEHOLD_NAME=other; $LH renew || echo $?)
        $LH release
        $LH release || echo gone $?
        $LH acquire -n x > lease.json
        $LH release --lease lease.json",
    );
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert!(lines[0].starts_with("renewed, "), "{outcome:?}");
    assert_eq!(lines[1..], ["77", "77", "77", "released", "gone 79", "released"], "{outcome:?}");
    assert!(outcome.err.contains("the token may not `read` this lock"), "{outcome:?}");
}

#[test]
fn a_name_left_over_from_another_lock_does_not_mislead() {
    let store = sqlite();
    let lease: Value = serde_json::from_str(&call(&store, &["acquire", "x"]).out).unwrap();
    for (verb, code) in [("renew", 0), ("release", 0), ("release", 79)] {
        let mut command = store.leasehold(&[verb]);
        command.env("LEASEHOLD_NAME", "other").env("LEASEHOLD_FENCE", lease["fence"].to_string());
        command.env("LEASEHOLD_LEASE_ID", lease["lease_id"].as_str().unwrap());
        let outcome = ended(command);
        assert_eq!(outcome.code(), code, "{outcome:?}");
    }
}

#[test]
fn signals_end_acquire_and_wait_and_leave_no_queue_place() {
    use rustix::process::Signal;
    for store in ttl_stores().into_iter().chain([support::quorum()]) {
        let _holder = store.hold("x", &[]);
        for (signal, code) in
            [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)]
        {
            let waiter = Running::start(store.leasehold(&["acquire", "x"]));
            if store.shows_waiters {
                store.until_waited_for("x", &waiter);
            } else {
                store.until_opened_by(&waiter);
            }
            let start = Instant::now();
            waiter.signal(signal);
            let outcome = waiter.ended();
            assert_eq!((outcome.code(), outcome.out.as_str()), (code, ""), "{outcome:?}");
            assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
            let info = store.inspect("x");
            assert_eq!((info.holders.len(), info.queue_length), (1, 0), "{}", store.url);
        }
        let mut bystander = Running::start(store.leasehold(&["wait", "x"]));
        store.until_opened_by(&bystander);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!bystander.has_ended());
        bystander.signal(Signal::INT);
        assert!(bystander.ended().status.code().is_none(), "it dies of it");
    }
}

#[test]
fn ctrl_c_ends_a_script_that_waits_for_a_lock() {
    // A shell script continues after a command that did not die of the signal, as if the command had handled it.
    let store = sqlite();
    let _holder = store.hold("x", &[]);
    for verb in ["acquire x", "run x -- true"] {
        let mut script = Command::new("bash");
        let lines = format!("echo waits; {} {verb}; echo went on", env!("CARGO_BIN_EXE_leasehold"));
        script.args(["-c", &lines]).env("LEASEHOLD_URL", &store.url);
        let mut terminal = Terminal::start(&script, 80);
        terminal.sees("waits");
        until("it is in the queue", || store.inspect("x").queue_length == 1);
        terminal.type_in("\x03");
        until("it has left the queue", || store.inspect("x").queue_length == 0);
        until("the script has ended", || terminal.has_ended());
        assert!(!terminal.shown().contains("went on"), "{}", terminal.shown());
    }
}

#[test]
fn show_prints_the_note_that_a_holder_left() {
    for store in every_store() {
        let locks = leasehold::blocking::Locks::connect(&store.url).unwrap();
        let guard = locks.mutex("jobs/noted").lock().unwrap();
        if !locks.info().notes {
            assert_eq!(guard.write_note("x").unwrap_err().kind(), leasehold::ErrorKind::Unsupported);
            continue;
        }
        let fence = guard.fence();
        guard.write_note("step 1\x1b[2J").unwrap();
        let line = |text: &str| format!("  note of fence {fence}: {text}\n");
        let shown = call(&store, &["show", "jobs/noted"]).out;
        assert!(shown.ends_with(&line("step 1\u{fffd}[2J")), "{shown}");
        guard.release_with_note("done").unwrap();
        let shown = call(&store, &["show", "jobs/noted"]).out;
        assert!(shown.contains(": free\n") && shown.ends_with(&line("done")), "{shown}");
        let note = json(&store, &["show", "jobs/noted"])["note"].clone();
        assert_eq!(note, serde_json::json!({"text": "done", "fence": fence}));
        // A note that was cleared is none.
        locks.mutex("jobs/noted").lock().unwrap().release_with_note("").unwrap();
        let shown = call(&store, &["show", "jobs/noted"]).out;
        assert!(!shown.contains("note of"), "{shown}");
        locks.close();
    }
}

#[test]
fn list_and_show_name_holders_and_waiters_but_no_lease_id() {
    for store in stores() {
        if store.shows_names {
            assert_eq!(json(&store, &["list"]), serde_json::json!([]));
        } else {
            call(&store, &["list"]).says(64, "look at one with `leasehold show NAME`");
            call(&store, &["watch"]).says(64, "look at one with `leasehold show NAME`");
        }
        let _holder = store.hold("jobs/a", &["--owner", "holder\x1b[2J"]);
        let _other = store.hold("other", &["-s"]);
        let waiter = store.start(&["--owner", "waiter", "jobs/a", "true"]);
        if store.shows_waiters {
            until("it waits", || store.inspect("jobs/a").queue_length == 1);
        }
        if store.shows_names {
            let names = json(&store, &["list", "jobs/"]);
            assert_eq!(names.as_array().unwrap().len(), 1);
            assert_eq!(names[0]["name"], "jobs/a");
            assert_eq!(names[0]["holders"][0]["mode"], "exclusive");
            let nothing = call(&store, &["list", "jobs/b"]).out;
            assert!(nothing.starts_with("nothing that begins with \"jobs/b\" is locked"), "{nothing}");
            let table = call(&store, &["list"]).out;
            let lines: Vec<&str> = table.lines().collect();
            assert!(lines[0].starts_with("NAME ") && lines.len() == 3, "{table}");
            assert!(!table.contains('\x1b'), "no colour, and no tricks by others, in a pipe: {table:?}");
        }
        let shown = call(&store, &["show", "jobs/a"]).out;
        let begins =
            format!("jobs/a on {}: held\n  held by {}", store.shown(), store.owner("holder\u{fffd}[2J ("));
        assert!(shown.starts_with(&begins) && shown.contains(" (exclusive), "), "{shown}");
        // Where the store knows: since when, until when.
        assert_eq!(shown.contains(", since 20"), store.shows_names, "{shown}");
        assert!(
            !shown.contains("1970")
                && shown.contains(if store.ttl { " left unless renewed" } else { "until it is released" }),
            "{shown}"
        );
        let waits = format!("1. in the queue: {}", store.owner("waiter"));
        assert_eq!(shown.contains(&waits), store.shows_waiters, "{shown}");
        let raw = call(&store, &["show", "jobs/a", "--output", "json"]).out;
        let info = store.inspect("jobs/a");
        assert!(!raw.contains(info.holders[0].id.expose()) && !shown.contains(info.holders[0].id.expose()));
        assert_eq!(json(&store, &["show", "free"])["held"], false);
        drop(waiter);
        if store.permits {
            let _permit = store.hold("pool", &["--limit", "3"]);
            let holder = &json(&store, &["show", "pool"])["holders"][0];
            assert_eq!((&holder["mode"], &holder["limit"]), (&"permit".into(), &3.into()), "{holder}");
            let shown = call(&store, &["show", "pool"]).out;
            assert!(shown.contains(" (permit of 3), "), "{shown}");
        }
    }
}

#[test]
fn tables_fit_the_terminal_and_colour_is_for_terminals_alone() {
    let store = sqlite();
    let long = "a-name-that-is-rather-long-".repeat(4);
    let _holder = store.hold(&long, &[]);
    let run = |no_colour: &str| {
        let mut list = store.leasehold(&["list"]);
        list.env("TERM", "xterm").env("NO_COLOR", no_colour);
        let terminal = Terminal::start(&list, 72);
        terminal.sees("WAITING");
        terminal.sees("\r\n") + &terminal.sees("\r\n")
    };
    let shown = run("1");
    let narrow = Terminal::start(store.leasehold(&["list"]).env("NO_COLOR", "1"), 40);
    let shown_narrow = narrow.sees("…\r\n") + &narrow.sees("\r\n");
    assert!(shown_narrow.lines().all(|line| line.chars().count() <= 40), "{shown_narrow}");
    assert!(shown_narrow.contains("LEFT") && !shown_narrow.contains("FENCE"), "{shown_narrow}");
    assert!(shown.lines().all(|line| line.chars().count() <= 72) && shown.contains('…'), "{shown}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert!(run("").contains("\x1b[0m"));
}

#[test]
fn wait_ends_when_nobody_holds_it_or_its_time_is_over() {
    for store in stores() {
        assert_eq!(call(&store, &["wait", "x"]).code(), 0);
        let free = json(&store, &["wait", "x"]);
        assert!(free["free"] == true && free["waited_ms"].is_u64(), "{free}");
        let holder = store.hold("x", &[]);
        let start = Instant::now();
        let says = format!("\"x\" on {} is still held by ", store.shown());
        call(&store, &["wait", "-w", "0.3", "x"]).says(75, &says);
        assert!(start.elapsed() >= Duration::from_millis(300));
        let held = call(&store, &["wait", "-w", "0", "x", "--output", "json"]);
        held.says(75, "still held");
        assert_eq!(serde_json::from_str::<Value>(&held.out).unwrap()["free"], false);
        let mut waiting = Running::start(store.leasehold(&["wait", "x"]));
        store.until_opened_by(&waiting);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waiting.has_ended());
        holder.signal(rustix::process::Signal::TERM);
        assert_eq!(waiting.ended().code(), 0);
    }
}

#[test]
fn watch_reports_what_comes_and_goes() {
    for store in stores().into_iter().filter(|store| store.shows_names) {
        let watch = Running::start(store.leasehold(&["watch", "--interval", "20ms", "--output", "json"]));
        let told = |change: &str| {
            let is_it =
                |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|told| told["change"] == change);
            until(&format!("{change} is printed"), || watch.printed().lines().any(is_it));
        };
        let holder = store.hold("x", &["--owner", "me"]);
        told("held");
        holder.signal(rustix::process::Signal::TERM);
        told("free");
        let first: Value = serde_json::from_str(watch.printed().lines().next().unwrap()).unwrap();
        assert_eq!((&first["name"], &first["owner"]), (&"x".into(), &"me".into()));
    }
}

#[test]
fn revoke_asks_first_and_takes_the_lock_away() {
    for store in ttl_stores() {
        let lease = call(&store, &["acquire", "x", "--owner", "me"]);
        std::fs::write(store.path("lease.json"), &lease.out).unwrap();
        call(&store, &["revoke", "x"]).says(64, "use `--yes`");
        let mut terminal = Terminal::start(&store.leasehold(&["revoke", "x"]), 100);
        terminal.sees("Revoke \"x\", held by me? [y/N] ");
        terminal.type_in("n\n");
        terminal.sees("not revoked");
        assert_eq!(call(&store, &["renew", "--lease", "lease.json"]).code(), 0);
        let mut terminal = Terminal::start(&store.leasehold(&["revoke", "x"]), 100);
        terminal.sees("[y/N] ");
        terminal.type_in("y\n");
        terminal.sees("1 revoked; it is free when the ttl has passed");
        let (listed, shown) = (call(&store, &["list", "x"]).out, call(&store, &["show", "x"]).out);
        assert!(listed.contains(", revoked "), "{listed}");
        assert!(shown.contains(", revoked: it ends in ") && !shown.contains("unless renewed"), "{shown}");
        let refused = call(&store, &["renew", "--lease", "lease.json"]);
        refused.says(79, "it was revoked");
        assert_eq!(call(&store, &["acquire", "-n", "x"]).code(), 75);
        assert_eq!(json(&store, &["revoke", "x", "--now", "--yes"])["leases"], 1);
        assert_eq!(call(&store, &["acquire", "-n", "x"]).code(), 0);
        assert_eq!(call(&store, &["revoke", "nobody", "-y"]).out, "nobody held it\n");
    }
}

#[test]
fn revoke_spares_a_holder_that_came_after_the_question() {
    for store in ttl_stores() {
        let lease = call(&store, &["acquire", "x", "--owner", "me"]);
        std::fs::write(store.path("lease.json"), &lease.out).unwrap();
        let mut terminal = Terminal::start(&store.leasehold(&["revoke", "x", "--now"]), 100);
        terminal.sees("Revoke \"x\", held by me? [y/N] ");
        assert_eq!(call(&store, &["release", "--lease", "lease.json"]).code(), 0);
        let lease = call(&store, &["acquire", "x", "--owner", "another"]);
        std::fs::write(store.path("lease.json"), &lease.out).unwrap();
        terminal.type_in("y\n");
        terminal.sees("the holder of \"x\" has changed since: nothing was revoked");
        assert_eq!(call(&store, &["renew", "--lease", "lease.json"]).code(), 0);
    }
}

#[test]
fn many_holders_are_cut_and_counted() {
    let store = sqlite();
    let locks = leasehold::blocking::Locks::connect(&store.url).unwrap();
    let pool = locks.semaphore("pool", 200);
    let mut permits: Vec<_> = (0..103).map(|_| pool.acquire().unwrap()).collect();
    let shown = json(&store, &["show", "pool"]);
    assert_eq!(shown["holder_count"], 103);
    assert_eq!(shown["holders"].as_array().unwrap().len(), 100);
    let shown = call(&store, &["show", "pool"]).out;
    assert!(shown.ends_with("  and 3 more: 103 hold it\n"), "{shown}");
    let listed = call(&store, &["list"]).out;
    assert_eq!((listed.lines().count(), listed.matches("and 3 more").count()), (102, 1), "{listed}");
    // With a confirmation, only the holders shown are revoked.
    let mut terminal = Terminal::start(&store.leasehold(&["revoke", "pool", "--now"]), 200);
    terminal.sees("and 102 more: the oldest 100 of them? [y/N] ");
    terminal.type_in("y\n");
    terminal.sees("100 revoked, and 3 others hold it; --yes revokes all");
    assert_eq!(store.inspect("pool").holder_count, 3);
    permits.drain(..100).for_each(drop);
    assert!(permits.iter().all(|permit| permit.check().is_ok()));
}
