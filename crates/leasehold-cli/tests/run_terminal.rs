//! `leasehold run` on a terminal, under a shell with job control: the user must not notice it.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use support::shell::{is_stopped, shell};
use support::{Store, each, line_in, pid_in, stores};
use testkit::pty::Terminal;

#[test]
fn the_command_has_the_terminal_and_ctrl_c_ends_it() {
    for store in stores() {
        let mut terminal = shell(&store);
        terminal.type_in("lh x -- sh -c 'test -t 0 && test -t 1 && test -t 2 && echo yes-$((1+1))'\n");
        terminal.sees("yes-2");
        terminal.type_in("lh x -- sh -c 'echo go >started; exec cat'\n");
        line_in(&store.path("started"));
        terminal.type_in("typed\n");
        // Once by the terminal's echo, once by the command.
        terminal.sees("typed");
        terminal.sees("typed");
        terminal.type_in("\x03");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=130.");
        // Once, not twice: the command has the signal from the terminal already.
        terminal.type_in("lh x -- sh -c 'trap \"echo int >>heard\" INT; trap \"echo more >more\" USR1; echo $PPID >go; while ! [ -e enough ]; do sleep 0.05; done'\n");
        let leasehold = pid_in(&store.path("go"));
        terminal.type_in("\x03");
        line_in(&store.path("heard"));
        // A signal sent after it and passed on: when it arrives, the first has been handled.
        kill_process(leasehold, Signal::USR1).unwrap();
        line_in(&store.path("more"));
        std::fs::write(store.path("enough"), "").unwrap();
        terminal.type_in("echo done-$((1+1))\n");
        terminal.sees("done-2");
        assert_eq!(std::fs::read_to_string(store.path("heard")).unwrap(), "int\n");
    }
}

#[test]
fn ctrl_z_suspends_both_with_a_warning_and_fg_goes_on() {
    for store in stores() {
        let mut terminal = shell(&store);
        terminal.type_in(
            "lh x -- sh -c 'echo go >go; while ! [ -e enough ]; do sleep 0.05; done; echo went-$((1+1))'\n",
        );
        line_in(&store.path("go"));
        terminal.type_in("\x1a");
        let warned = terminal.sees("Stopped");
        let warning =
            if store.ttl { "suspended: nothing renews the lock" } else { "suspended: the lock stays held" };
        assert!(warned.contains(warning), "{warned}");
        terminal.sees("ready> ");
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 75);
        std::fs::write(store.path("enough"), "").unwrap();
        terminal.type_in("fg\n");
        terminal.sees("went-2");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=0.");
    }
}

#[test]
fn a_command_that_suspends_only_itself_suspends_leasehold_too() {
    for store in stores() {
        let mut terminal = shell(&store);
        terminal.type_in("lh x -- sh -c 'kill -TSTP $$; echo went-$((1+1))'\n");
        terminal.sees("Stopped");
        terminal.sees("ready> ");
        terminal.type_in("fg\n");
        terminal.sees("went-2");
    }
}

#[test]
fn suspended_past_the_ttl_the_command_is_killed_on_resume() {
    each(&support::ttl_stores(), |store| {
        let mut terminal = shell(store);
        terminal
            .type_in("lh --ttl 3s x -- sh -c 'echo go >go; trap \"\" TERM; while :; do sleep 0.05; done'\n");
        line_in(&store.path("go"));
        terminal.type_in("\x1a");
        terminal.sees("Stopped");
        assert_eq!(store.run(&["-w", "30", "x", "true"]).code(), 0);
        terminal.type_in("fg\n");
        terminal.sees("killing the command");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=79.");
    });
}

#[test]
fn ctrl_c_ends_a_script_and_leaves_the_terminal_to_its_pager() {
    let store = support::file();
    let mut terminal = shell(&store);
    let binary = env!("CARGO_BIN_EXE_leasehold");
    // Not a shell: one that is about to start something forgets a Ctrl-C. Nor may a file be closed implicitly: an
    // interrupt during that is forgotten too.
    let sleeper = "import time\nout = open('go', 'w')\nprint('go', file=out, flush=True)\ntime.sleep(600)\n";
    std::fs::write(store.path("sleeper.py"), sleeper).unwrap();
    terminal.type_in(&format!("bash -c '{binary} run x -- python3 sleeper.py; echo went-$((1+1))'\n"));
    line_in(&store.path("go"));
    terminal.type_in("\x03");
    terminal.sees("ready> ");
    terminal.type_in("echo code=$?.\n");
    let shown = terminal.sees("code=130.");
    assert!(!shown.contains("went-2"), "{shown}");
    terminal.type_in("lh x -- echo hello | (read line; echo asks-$((1+1)); read answer </dev/tty; echo \"$line, $answer!\")\n");
    terminal.sees("asks-2");
    terminal.type_in("you\n");
    terminal.sees("hello, you!");
}

#[test]
fn in_the_background_it_runs_and_can_be_brought_back() {
    let store = support::file();
    let mut terminal = shell(&store);
    terminal.type_in("lh x -- sh -c 'echo go >go; read line; echo got-$line' &\n");
    line_in(&store.path("go"));
    // It tries to read and may not, so it is stopped, and leasehold with it.
    terminal.type_in("wait %1; echo waited-$((1+1))\n");
    terminal.sees("waited-2");
    terminal.type_in("fg\n");
    terminal.sees("lh x");
    terminal.type_in("this\n");
    terminal.sees("got-this");
}

#[test]
fn a_wait_can_be_suspended_resumed_and_interrupted() {
    for store in stores() {
        let holder = store.hold("x", &[]);
        let mut terminal = shell(&store);
        for (typed, ends) in [("\x03", "code=130."), ("", "code=0.")] {
            terminal.type_in("lh x -- sh -c 'echo went-$((1+1))'\n");
            terminal.sees("waiting for");
            terminal.type_in("\x1a");
            terminal.sees("Stopped");
            terminal.sees("ready> ");
            terminal.type_in("fg\n");
            terminal.sees("leasehold run");
            if typed.is_empty() {
                holder.signal(Signal::TERM);
                terminal.sees("went-2");
            } else {
                terminal.type_in(typed);
            }
            terminal.sees("ready> ");
            terminal.type_in("echo code=$?.\n");
            terminal.sees(ends);
            terminal.sees("ready> ");
        }
    }
}

#[test]
fn a_terminal_reader_handles_job_control_as_without_leasehold() {
    for store in stores() {
        let mut terminal = shell(&store);
        terminal.type_in("lh x -- sh -c 'echo $$ >pid; exec cat'\n");
        let cat = pid_in(&store.path("pid"));
        for word in ["one", "two"] {
            terminal.type_in("\x1a");
            terminal.sees("Stopped");
            terminal.sees("ready> ");
            assert!(is_stopped(cat), "it could read what is typed to the shell");
            terminal.type_in("fg\n");
            terminal.sees("leasehold run");
            terminal.type_in(&format!("{word}\n"));
            // Once by the terminal's echo, once by the command.
            terminal.sees(word);
            terminal.sees(word);
        }
        terminal.type_in("\x03");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=130.");
    }
}

#[test]
fn a_shell_inside_runs_jobs_and_gives_the_terminal_back() {
    for store in stores() {
        let mut terminal = shell(&store);
        terminal.type_in("PS1='inner> ' lh x -- bash --norc --noprofile -i\n");
        terminal.sees("inner> ");
        terminal.type_in("bind 'set enable-bracketed-paste off'\n");
        terminal.sees("inner> ");
        terminal.type_in("sh -c 'echo go >go; exec cat'\n");
        line_in(&store.path("go"));
        // Its own job is suspended, but neither the command nor leasehold is.
        terminal.type_in("\x1a");
        terminal.sees("Stopped");
        terminal.sees("inner> ");
        terminal.type_in("fg\n");
        terminal.sees("cat");
        // The shell prints this before it gives the terminal away.
        terminal.type_in("typed\n");
        terminal.sees("typed");
        terminal.sees("typed");
        terminal.type_in("\x03");
        terminal.sees("inner> ");
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 75);
        terminal.type_in("exit 3\n");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=3.");
        assert_eq!(store.run(&["-n", "x", "true"]).code(), 0);
    }
}

#[test]
fn a_pager_has_the_keys_can_be_suspended_and_ends() {
    let store = support::file();
    let lines: String = (0..500).map(|number| format!("line {number}\n")).collect();
    std::fs::write(store.path("long"), lines).unwrap();
    let mut terminal = shell(&store);
    terminal.type_in("TERM=xterm lh x -- more long\n");
    terminal.sees("line 40");
    terminal.sees("--More--");
    terminal.type_in(" ");
    terminal.sees("line 90");
    terminal.type_in("\x1a");
    terminal.sees("Stopped");
    terminal.sees("ready> ");
    terminal.type_in("fg\n");
    terminal.sees("leasehold run");
    terminal.type_in(" ");
    terminal.sees("line 130");
    terminal.type_in("q");
    terminal.sees("ready> ");
    terminal.type_in("echo code=$?.\n");
    terminal.sees("code=0.");
}

/// A command that takes the terminal for itself, as a shell does, and does not give it back when it ends.
const TAKER: &str = "import os, signal, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
print(os.getpid(), file=open('pid', 'w'), flush=True)
print(os.getppid(), file=open('took', 'w'), flush=True)
while not os.path.exists('enough'):
    time.sleep(0.02)
";

#[test]
fn the_terminal_is_given_back_whichever_way_the_command_ends() {
    // Not an interactive shell, which would restore its terminal by itself.
    let after = |options: &str, code: &str, end: fn(&Store)| {
        let store = support::sqlite();
        std::fs::write(store.path("taker.py"), TAKER).unwrap();
        let lines = format!(
            "{} run {options} x -- python3 taker.py; echo code=$?.; read line; echo got-$line.",
            env!("CARGO_BIN_EXE_leasehold")
        );
        let mut script = Command::new("bash");
        script.args(["-c", &lines]).env("LEASEHOLD_URL", &store.url).current_dir(store.dir.path());
        let mut terminal = Terminal::start(&script, 200);
        pid_in(&store.path("took"));
        end(&store);
        terminal.sees(&format!("code={code}."));
        // Only processes in the foreground can read.
        terminal.type_in("this\n");
        terminal.sees("got-this.");
    };
    after("", "0", |store| std::fs::write(store.path("enough"), "").unwrap());
    after("--max-hold 1s --kill-after 100ms", "79", |_| {});
    after("", "137", |store| {
        let leasehold = pid_in(&store.path("took"));
        kill_process(leasehold, Signal::TERM).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        kill_process(leasehold, Signal::TERM).unwrap();
    });
    after("", "137", |store| kill_process(pid_in(&store.path("pid")), Signal::KILL).unwrap());
}
