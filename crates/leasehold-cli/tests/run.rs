//! `leasehold run`, driven as a shell does: what the command gets, and every way to end.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Running, appears, ended, file, leasehold, line_in, sqlite, stores, until};

#[test]
fn the_command_gets_its_arguments_streams_and_variables() {
    for store in stores() {
        let mut command = store.leasehold(&[
            "run",
            "a name/with ü",
            "--",
            "sh",
            "-c",
            "echo \"$1|$#\"; cat; echo oops >&2",
            "sh",
            "-n  $x",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"piped\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "-n  $x|1\npiped\n");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "oops\n");
        assert_eq!(output.status.code(), Some(0));

        let script = "echo $LEASEHOLD_NAME; echo $LEASEHOLD_FENCE; echo ${#LEASEHOLD_LEASE_ID}; echo $LEASEHOLD_URL; cat /proc/$$/cmdline /proc/$PPID/cmdline | grep -cF -e \"$LEASEHOLD_LEASE_ID\"";
        let first = store.run(&["a name/with ü", "--", "sh", "-c", script]);
        let lines: Vec<&str> = first.out.lines().collect();
        assert_eq!(
            (lines[0], lines[2], lines[3], lines[4]),
            ("a name/with ü", "22", store.url.as_str(), "0"),
            "{first:?}"
        );
        assert_eq!(lines[1].len(), 15, "{first:?}");
        let second = store.run(&["a name/with ü", "--", "sh", "-c", "echo $LEASEHOLD_FENCE"]);
        assert!(second.out.trim() > lines[1], "{first:?} {second:?}");
    }
}

#[test]
fn a_command_starts_as_if_it_had_been_started_directly() {
    let store = file();
    let plain = std::process::Command::new("env")
        .args(["--default-signal", "sh", "-c", "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status"])
        .output()
        .unwrap();
    let under = store.run(&["x", "--", "sh", "-c", "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status"]);
    assert_eq!(under.out, String::from_utf8_lossy(&plain.stdout));
    // A signal that the caller ignores stays ignored, also for leasehold.
    let script = "trap '' HUP; exec \"$0\" run x -- sh -c 'kill -HUP $PPID; sleep 0.1; echo alive'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]).env("LEASEHOLD_URL", &store.url);
    assert_eq!(ended(command).out, "alive\n");
}

#[test]
fn the_code_is_that_of_the_command_or_that_of_its_signal() {
    for store in stores() {
        for (script, code) in
            [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
        {
            let ended = store.run(&["x", "--", "sh", "-c", script]);
            assert_eq!((ended.code(), ended.err.as_str()), (code, ""), "{script}");
        }
    }
}

#[test]
fn a_shell_runs_a_line_only_if_asked_to() {
    let store = file();
    assert_eq!(store.run(&["x", "-c", "echo one && echo two"]).out, "one\ntwo\n");
    assert_eq!(store.run(&["x", "echo", "a && b"]).out, "a && b\n");
    // Options after the command are the command's.
    assert_eq!(store.run(&["x", "echo", "-n", "--json"]).out, "--json");
}

#[test]
fn what_cannot_be_run_exits_126_or_127_and_frees_the_lock() {
    for store in stores() {
        store.run(&["x", "--", "no-such-command"]).says(127, "cannot run no-such-command: No such file");
        store.run(&["--", "echo", "no-such-command"]).says(127, "\"echo\" is the name of the lock");
        store.run(&["x", "--", "/etc/passwd"]).says(126, "cannot run /etc/passwd: Permission denied");
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 0);
    }
}

#[test]
fn a_held_lock_exits_75_or_the_chosen_code_and_names_the_holder() {
    for store in stores() {
        let _holder = store.hold("x", &["--owner", "the night job"]);
        for (options, code) in [
            (&["-n"][..], 75),
            (&["-w", "0"], 75),
            (&["-n", "-E", "9"], 9),
            (&["--nonblock", "--conflict-exit-code", "0"], 0),
        ] {
            let ended = store.run(&[options, &["x", "--", "touch", "ran"]].concat());
            ended.says(code, &format!("held by {}", store.owner("the night job")));
            assert!(ended.err.contains(&store.shown()), "{ended:?}");
        }
        let quiet = store.run(&["-n", "--skip-ok", "x", "--", "touch", "ran"]);
        assert_eq!((quiet.code(), quiet.err.as_str()), (0, ""));
        assert!(!store.path("ran").exists());
        // Another name is another lock.
        assert_eq!(store.run(&["-n", "y", "true"]).code(), 0);
    }
}

#[test]
fn a_wait_ends_in_time_and_says_which_store_it_waits_on() {
    for store in stores() {
        let _holder = store.hold("x", &[]);
        let start = Instant::now();
        let ended = store.run(&["-w", "2.5", "x", "true"]);
        assert!(start.elapsed() >= Duration::from_millis(2500));
        assert_eq!(ended.code(), 75, "{ended:?}");
        assert!(
            ended.err.starts_with(&format!("leasehold: waiting for \"x\" on {}, held by ", store.shown())),
            "{ended:?}"
        );
        assert_eq!(ended.err.lines().count(), 2, "{ended:?}");
    }
}

#[test]
fn a_waiter_gets_its_turn() {
    for store in stores() {
        let holder = store.hold("x", &[]);
        let waiter = store.start(&["x", "--", "echo", "mine"]);
        store.until_waited_for("x", &waiter);
        holder.signal(Signal::TERM);
        assert_eq!(holder.ended().code(), 143);
        let ended = waiter.ended();
        assert_eq!((ended.code(), ended.out.as_str()), (0, "mine\n"), "{ended:?}");
    }
}

#[test]
fn readers_share_writers_do_not_and_a_limit_lets_as_many_in() {
    for store in stores() {
        let reader = store.hold("rw", &["-s"]);
        assert_eq!(store.run(&["-n", "-s", "rw", "true"]).code(), 0);
        assert_eq!(store.run(&["-n", "-x", "rw", "true"]).code(), 75);
        let other = if store.permits { "in use as a mutex" } else { "has no semaphores" };
        store.run(&["-n", "--limit", "2", "rw", "true"]).says(64, other);
        drop(reader);
        if !store.permits {
            store.run(&["-n", "--limit", "2", "gpu", "true"]).says(64, "has no semaphores");
            continue;
        }
        let _one = store.hold("gpu", &["--limit", "2"]);
        let two = store.hold("gpu", &["--limit", "2"]);
        assert_eq!(store.run(&["-n", "--limit", "2", "gpu", "true"]).code(), 75);
        two.signal(Signal::TERM);
        two.ended();
        assert_eq!(store.run(&["-n", "--limit", "2", "gpu", "true"]).code(), 0);
    }
}

#[test]
fn wrong_calls_exit_64_before_anything_is_run() {
    for store in stores() {
        for (args, says) in [
            (&["x"][..], "no command to run"),
            (&["", "true"], "name"),
            (&["--max-hold", "0", "x", "true"], "--max-hold must be above zero"),
            (&["--limit", "0", "x", "true"], "at least 1"),
            (&["--owner", "", "x", "true"], "owner must not be empty"),
        ] {
            store.run(args).says(64, says);
        }
        for args in [
            &["-n", "-w", "1", "x", "true"][..],
            &["-w", "soon", "x", "true"],
            &["-s", "-x", "x", "true"],
            &["-E", "256", "x", "true"],
        ] {
            assert_eq!(store.run(args).code(), 64, "{args:?}");
        }
    }
    sqlite().run(&["--kill-after", "11", "x", "true"]).says(64, "at most a third of the ttl");
    sqlite()
        .run(&["--ttl", "1ms", "x", "true"])
        .says(64, "a ttl of 1 ms is too short: choose one from 50 ms to 24 h");
    for (url, says) in [
        ("memory:", "private to one process"),
        ("nosuch:x", "unknown store scheme"),
        ("plain", "begins with a scheme"),
        ("file:", "needs a directory"),
    ] {
        ended(leasehold(&["run", "--url", url, "x", "true"])).says(64, says);
    }
}

#[test]
fn a_broken_store_exits_69_and_a_refused_login_exits_77() {
    let store = sqlite();
    assert_eq!(store.run(&["x", "true"]).code(), 0);
    let away = store.cut_off();
    store.run(&["-n", "x", "true"]).says(69, "store overloaded");
    drop(away);
    let open = store.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    ended(leasehold(&["run", "--url", &format!("file:{}", open.display()), "x", "true"]))
        .says(77, "sticky bit");
}

#[test]
fn without_a_url_locks_are_in_a_private_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut command = leasehold(&["run", "x", "--", "sh", "-c", "echo $LEASEHOLD_URL"]);
    command.env("XDG_STATE_HOME", &state);
    let locks = state.join("leasehold/locks");
    assert_eq!(ended(command).out, format!("file:{}\n", locks.display()));
    assert_eq!(std::fs::metadata(&locks).unwrap().permissions().mode() & 0o777, 0o700);
    let mut command = leasehold(&["run", "x", "--", "sh", "-c", "echo $LEASEHOLD_URL"]);
    command.env_remove("XDG_STATE_HOME").env("HOME", dir.path());
    assert_eq!(
        ended(command).out,
        format!("file:{}\n", dir.path().join(".local/state/leasehold/locks").display())
    );
    let mut command = leasehold(&["run", "x", "true"]);
    command.env_remove("XDG_STATE_HOME").env_remove("HOME");
    ended(command).says(64, "there is no HOME");
    // Service accounts have such a HOME; leasehold does not create it.
    let nowhere = dir.path().join("nowhere");
    let mut command = leasehold(&["run", "x", "true"]);
    command.env_remove("XDG_STATE_HOME").env("HOME", &nowhere);
    ended(command).says(64, "there is no HOME");
    assert!(!nowhere.exists());
    // A missing secret must not lead to a lock that keeps nobody out.
    for variable in ["LEASEHOLD_URL", "LEASEHOLD_URL_FILE"] {
        let mut command = leasehold(&["run", "x", "true"]);
        command.env("HOME", dir.path()).env(variable, "");
        ended(command).says(64, &format!("{variable} is empty"));
    }
}

#[test]
fn a_url_file_is_passed_on_to_the_command() {
    let store = sqlite();
    let file = store.path("url");
    std::fs::write(&file, format!("# where our locks are\n{}\n", store.url)).unwrap();
    let script = "echo $LEASEHOLD_URL; echo $LEASEHOLD_URL_FILE";
    let args = ["run", "--url-file", file.to_str().unwrap(), "x", "--", "sh", "-c", script];
    let outcome = ended(leasehold(&args));
    assert_eq!(
        (outcome.out.as_str(), outcome.err.as_str()),
        (format!("{}\n{}\n", store.url, file.display()).as_str(), "")
    );
    let mut command = leasehold(&["run", "x", "true"]);
    command.env("LEASEHOLD_URL_FILE", store.path("none"));
    ended(command).says(64, "cannot read the URL from");
    std::fs::write(&file, "redis://:secret@127.0.0.1:1/0\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let outcome = ended(leasehold(&args));
    assert!(
        outcome.err.contains("others can read the password") && outcome.err.contains("chmod 600"),
        "{outcome:?}"
    );
    assert!(!outcome.err.contains("secret"), "{outcome:?}");
    let outcome = ended(leasehold(&["run", "--url", "redis://:secret@127.0.0.1:1/0", "x", "true"]));
    assert!(outcome.err.contains("shows in ps") && !outcome.err.contains("secret"), "{outcome:?}");
}

#[test]
fn events_are_json_on_stderr_without_the_lease_id() {
    for store in stores() {
        let ended = store.run(&["--json", "x", "--", "sh", "-c", "echo $LEASEHOLD_LEASE_ID; exit 3"]);
        let events: Vec<serde_json::Value> =
            ended.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!(names, ["acquired", "started", "exited", "released"]);
        assert_eq!((&events[0]["name"], &events[2]["code"]), (&"x".into(), &3.into()));
        assert!(events[0]["fence"].is_u64() && events[0]["store"] == store.shown());
        assert!(!ended.err.contains(ended.out.trim()), "the lease id is a secret");
        let _holder = store.hold("x", &["--owner", "me"]);
        let busy = store.run(&["--json", "-n", "x", "true"]);
        let event: serde_json::Value = serde_json::from_str(busy.err.trim()).unwrap();
        assert_eq!((&event["event"], &event["exit"]), (&"busy".into(), &75.into()));
        assert!(event["owner"].as_str().unwrap().starts_with(store.owner("me")), "{event}");
        let wrong = store.run(&["--json", "--limit", "3", "x", "true"]);
        let event: serde_json::Value = serde_json::from_str(wrong.err.trim()).unwrap();
        assert_eq!((&event["event"], &event["exit"]), (&"failed".into(), &64.into()));
    }
}

#[test]
fn a_command_that_runs_too_long_is_ended_in_time() {
    for store in stores() {
        let start = Instant::now();
        let ended = store.run(&["--max-hold", "1s", "x", "--", "sleep", "600"]);
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(ended.code(), 79, "{ended:?}");
        assert!(ended.err.contains("--max-hold"), "{ended:?}");
        // A command that ignores TERM too.
        let ended = store.run(&[
            "--max-hold",
            "1s",
            "--lost-code",
            "99",
            "x",
            "--",
            "sh",
            "-c",
            "trap '' TERM; while :; do sleep 0.05; done",
        ]);
        assert_eq!(ended.code(), 99, "{ended:?}");
        assert!(ended.err.contains("killing the command"), "{ended:?}");
    }
}

#[test]
fn the_lock_is_held_until_all_descendants_have_ended() {
    for store in stores() {
        // Two forks and a new session: a textbook daemon.
        let script = "echo $$ >leader; setsid sh -c 'sh -c \"echo \\$\\$ >daemon; exec sleep 600\" & exit' </dev/null >/dev/null 2>&1; exit 5";
        let mut run = store.start(&["x", "--", "sh", "-c", script]);
        let daemon = support::pid_in(&store.path("daemon"));
        let leader = support::pid_in(&store.path("leader"));
        until("the command itself has ended", || !support::lives(leader));
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 75);
        assert!(!run.has_ended());
        rustix::process::kill_process(daemon, Signal::KILL).unwrap();
        let ended = run.ended();
        assert_eq!(ended.code(), 5, "{ended:?}");
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 0);
        // With the option it is ended together with the command.
        std::fs::remove_file(store.path("daemon")).unwrap();
        let ended = store.run(&[
            "--kill-leftovers",
            "x",
            "--",
            "sh",
            "-c",
            &script.replace("exit 5", "while ! [ -s daemon ]; do sleep 0.01; done; exit 5"),
        ]);
        assert_eq!(ended.code(), 5, "{ended:?}");
        let daemon = support::pid_in(&store.path("daemon"));
        until("the daemon is gone", || !support::lives(daemon));
    }
}

#[test]
fn processes_a_command_leaves_running_are_reported_at_once() {
    for store in [file(), sqlite()] {
        let script = "sleep 600 & echo $! >left; exit 3";
        let run = store.start(&["--ttl", "10m", "x", "--", "sh", "-c", script]);
        let left = support::pid_in(&store.path("left"));
        // Long before anything else is due: the lease is renewed every few minutes, or not at all.
        until("leasehold says so", || run.said().contains("left 1 process running; the lock stays held"));
        assert!(support::lives(left));
        rustix::process::kill_process(left, Signal::KILL).unwrap();
        assert_eq!(run.ended().code(), 3);
    }
}

#[test]
fn a_leftover_that_ignores_term_is_killed_if_that_is_asked_for() {
    let store = file();
    let script = "sh -c 'trap \"\" TERM; echo >left; while :; do sleep 0.05; done' & \
                  while ! [ -s left ]; do sleep 0.01; done; exit 5";
    let ended =
        store.run(&["--kill-leftovers", "--kill-after", "500ms", "--json", "x", "--", "sh", "-c", script]);
    assert_eq!(ended.code(), 5, "{ended:?}");
    assert!(ended.err.contains("\"event\":\"killing\""), "{ended:?}");
}

#[test]
fn a_command_of_another_user_that_outlives_kill_is_reported() {
    if !rustix::process::geteuid().is_root() {
        testkit::not_tested("a command of another user under `leasehold run`: that takes root");
        return;
    }
    a_command_becomes_root_and_outlives_kill(&[]);
}

#[test]
fn a_command_that_proc_hides_and_outlives_kill_is_reported() {
    let hide = "mount -t proc -o hidepid=2 proc /proc";
    let may_mount = std::process::Command::new("unshare").args(["-m", "sh", "-c", hide]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        testkit::not_tested(
            "`leasehold run` where `/proc` hides other users: that takes root, and to mount `/proc`",
        );
        return;
    }
    a_command_becomes_root_and_outlives_kill(&[
        "unshare",
        "-m",
        "sh",
        "-c",
        &format!("{hide} && exec \"$@\""),
        "sh",
    ]);
}

/// `leasehold run` by a user other than root, whose command becomes root and ignores TERM.
fn a_command_becomes_root_and_outlives_kill(within: &[&str]) {
    let store = sqlite();
    // A directory where another user can work, and a program that may become root.
    std::fs::set_permissions(store.dir.path(), Permissions::from_mode(0o777)).unwrap();
    let (leasehold, become_root) = (store.path("leasehold"), store.path("become-root"));
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &leasehold).unwrap();
    std::fs::copy("/usr/bin/perl", &become_root).unwrap();
    std::fs::set_permissions(&leasehold, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&become_root, Permissions::from_mode(0o4755)).unwrap();
    // What it starts as the user is killed like any other process of the command.
    let script = "$< = 0; $SIG{TERM} = $SIG{CHLD} = 'IGNORE'; \
                  sub say_pid { open(F, '>', shift); print F \"$$\\n\"; close F } \
                  unless (fork) { ($<, $>) = (65534, 65534); %ENV = (PATH => '/bin'); \
                  say_pid 'child'; exec 'sleep', '600' } \
                  say_pid 'pid'; sleep 1 while 1";
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "./leasehold"];
    let run = ["run", "--json", "--ttl", "3s", "x", "--", "./become-root", "-e", script];
    let args = [within, &as_nobody, &run].concat();
    let mut command = std::process::Command::new(args[0]);
    command.args(&args[1..]).env("LEASEHOLD_URL", &store.url).current_dir(store.dir.path());
    let run = Running::start(command);
    let pid = support::pid_in(&store.path("pid"));
    assert!(run.said().contains("\"event\":\"may_outlive\""), "{}", run.said());
    let child = support::pid_in(&store.path("child"));
    let _away = store.cut_off();
    until("it says that it cannot kill", || run.said().contains("\"event\":\"cannot_kill\""));
    until("the child is killed", || !support::lives(child));
    assert!(support::lives(pid));
    // After a whole ttl the lease has surely ended; a command that died before has done no harm.
    std::thread::sleep(Duration::from_secs(3));
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let ended = run.ended();
    assert_eq!(ended.code(), 82, "{ended:?}");
    assert!(ended.err.contains("could not be killed in time"), "{ended:?}");
}

#[test]
fn children_that_were_never_waited_for_do_not_pile_up() {
    let store = file();
    let run = store.start(&[
        "x",
        "--",
        "sh",
        "-c",
        "for i in 1 2 3 4 5; do (sleep 0 &) ; done; echo $$ >ready; exec sleep 600",
    ]);
    line_in(&store.path("ready"));
    let zombies = || {
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid().as_raw_nonzero()))
                .unwrap();
        children.split_whitespace().count()
    };
    until("only the command is left", || zombies() == 1);
}

#[test]
fn it_works_where_children_are_not_waited_for_by_default() {
    // A parent that ignores SIGCHLD, which is inherited.
    let store = file();
    let script = "import os,signal,sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold"), "run", "x", "--", "sh", "-c", "exit 7"]);
    command.env("LEASEHOLD_URL", &store.url);
    assert_eq!(ended(command).code(), 7);
}

#[test]
fn it_does_not_matter_that_the_binary_was_replaced_meanwhile() {
    let store = file();
    let copy = store.path("leasehold-copy");
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &copy).unwrap();
    let _holder = store.hold("x", &["--max-hold", "2"]);
    let mut command = std::process::Command::new(&copy);
    command
        .args(["run", "x", "--", "touch", "ran"])
        .env("LEASEHOLD_URL", &store.url)
        .current_dir(store.dir.path());
    let waiter = Running::start(command);
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(waiter.ended().code(), 0);
    appears(&store.path("ran"));
}
