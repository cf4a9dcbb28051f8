//! `leasehold run` suspended and brought back under a shell with job control, as if it were not there.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::shell::{is_stopped, shell};
use support::{Store, file, line_in, pid_in, sqlite, until};
use testkit::pty::Terminal;

/// Reads lines from the terminal. When told to stop it puts things in order, which takes a while, and then
/// does it in the way that the first argument names.
const SLOW: &str = "import os, select, signal, sys, time
def stop(number, frame):
    if sys.argv[1] == 'never':
        return print('heard-' + str(1 + 1), flush=True)
    until = time.time() + float(sys.argv[2])
    while time.time() < until:
        time.sleep(0.01)
    print('tidy', file=open('tidy', 'w'), flush=True)
    if sys.argv[1] == 'itself':
        return os.kill(os.getpid(), signal.SIGSTOP)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0 if sys.argv[1] == 'group' else os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, stop)
signal.signal(signal.SIGTSTP, stop)
print(os.getpid(), file=open('pid', 'w'), flush=True)
# A signal that comes just before a read is heard only after it, so nothing is read before it is there.
while True:
    if select.select([0], [], [], 0.05)[0]:
        line = os.read(0, 1000)
        if not line:
            break
        print('got-' + line.decode().strip() + '.', flush=True)
";

/// Suspends what was started, in this way, and looks whether the command is stopped as soon as the shell can
/// be typed at, and whether the shell gets what is typed.
#[track_caller]
fn suspended(terminal: &mut Terminal, command: Pid, suspend: impl FnOnce(&mut Terminal)) {
    suspend(terminal);
    terminal.sees("Stopped");
    terminal.sees("ready> ");
    assert!(is_stopped(command), "the shell has its prompt while the command runs: {}", terminal.shown());
    terminal.type_in("echo mine-$((1+1))\n");
    terminal.sees("mine-2");
    terminal.sees("ready> ");
}

fn ctrl_z(terminal: &mut Terminal) {
    terminal.type_in("\x1a");
}

/// Brings it back, and lets the command read a line.
#[track_caller]
fn brought_back(terminal: &mut Terminal, line: &str) {
    terminal.type_in("fg\n");
    terminal.sees("leasehold run");
    terminal.type_in(&format!("{line}\n"));
    terminal.sees(&format!("got-{line}."));
}

#[test]
fn the_shell_has_its_prompt_only_when_a_command_that_takes_its_time_has_stopped() {
    for store in [file(), sqlite()] {
        std::fs::write(store.path("slow.py"), SLOW).unwrap();
        // The last one is not our child but its: it is given its time too.
        for start in [
            "-- python3 slow.py itself 0.5",
            "-- python3 slow.py as-usual 0.5",
            "-- python3 slow.py group 0.5",
            "-c 'python3 slow.py itself 0.2; true'",
        ] {
            let _ = std::fs::remove_file(store.path("pid"));
            let mut terminal = shell(&store);
            terminal.type_in(&format!("lh x {start}\n"));
            let command = pid_in(&store.path("pid"));
            for word in ["one", "two"] {
                suspended(&mut terminal, command, ctrl_z);
                assert_eq!(line_in(&store.path("tidy")), "tidy", "stopped too early: {start}");
                std::fs::remove_file(store.path("tidy")).unwrap();
                brought_back(&mut terminal, word);
                // No person is quicker. Who catches a stop may miss one that comes as it is let go on, and is not told
                // again, because nobody can see whether it has heard it.
                std::thread::sleep(Duration::from_secs(1));
            }
            terminal.type_in("\x04");
            terminal.sees("ready> ");
        }
    }
}

#[test]
fn one_quick_suspend_after_the_other_never_lets_the_command_read_what_is_typed_to_the_shell() {
    // On a processor that has something better to do, the turn of the command comes late.
    let allowed = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let processor = allowed.split([',', '-']).next().unwrap();
    let mut busy = Command::new("taskset");
    busy.args(["-c", processor, "setpriv", "--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]);
    let mut busy = busy.spawn().unwrap();
    for store in [file(), sqlite()] {
        let mut terminal = shell(&store);
        terminal.type_in(&format!(
            "lh x -- sh -c 'echo $$ >pid; exec taskset -c {processor} chrt --idle 0 sed -u s/.*/got-\\&./'\n"
        ));
        let command = pid_in(&store.path("pid"));
        for round in 0..20 {
            suspended(&mut terminal, command, ctrl_z);
            brought_back(&mut terminal, &format!("line{round}"));
        }
        terminal.type_in("\x03");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=130.");
    }
    busy.kill().unwrap();
    busy.wait().unwrap();
}

#[test]
fn a_shell_that_is_just_about_to_start_something_is_suspended_too() {
    for store in [file(), sqlite()] {
        let mut terminal = shell(&store);
        // While it starts a program it shares its memory, and cannot stop before that one goes on.
        terminal.type_in("lh x -- sh -c 'echo $$ >pid; while :; do /bin/true; done'\n");
        pid_in(&store.path("pid"));
        for _ in 0..20 {
            ctrl_z(&mut terminal);
            terminal.sees("Stopped");
            terminal.sees("ready> ");
            terminal.type_in("fg\n");
            terminal.sees("leasehold run");
        }
        // A shell that is about to start something may forget a Ctrl-C.
        terminal.type_in("\x1a");
        terminal.sees("ready> ");
        terminal.type_in("kill %%; fg\n");
        terminal.sees("ready> ");
    }
}

#[test]
fn a_command_that_does_not_stop_keeps_the_terminal_and_its_lock() {
    let store = sqlite();
    std::fs::write(store.path("slow.py"), SLOW).unwrap();
    let mut terminal = shell(&store);
    // One that ignores it, and one that hears it and goes on.
    for start in ["sh -c 'trap \"\" TSTP; echo $$ >pid; exec sed -u s/.*/got-\\&./'", "python3 slow.py never"]
    {
        let _ = std::fs::remove_file(store.path("pid"));
        terminal.type_in(&format!("lh --ttl 6s --kill-after 1s x -- {start}\n"));
        let command = pid_in(&store.path("pid"));
        terminal.type_in("\x1a");
        if start.starts_with("python3") {
            terminal.sees("heard-2");
        }
        terminal.type_in("one\n");
        let shown = terminal.sees("got-one.");
        assert!(!shown.contains("Stopped") && !shown.contains("suspended"), "{shown}");
        let renewals = || store.inspect("x").holders[0].grant.renewals;
        let before = renewals();
        until("it is still renewed", || renewals() > before + 1);
        assert!(support::lives(command));
        terminal.type_in("\x04");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=0.");
    }
}

#[test]
fn nothing_of_the_command_runs_while_nothing_renews_its_lock() {
    for store in [file(), sqlite()] {
        // A daemon that the terminal does not reach, and a child that does not care.
        let script = "setsid sh -c 'while :; do echo >>daemon; sleep 0.01; done' &
            (trap '' TSTP; while :; do echo >>deaf; sleep 0.01; done) &
            echo $$ >pid; exec sleep 600";
        std::fs::write(store.path("script"), script).unwrap();
        let mut terminal = shell(&store);
        terminal.type_in("lh --ttl 60s --kill-leftovers x -- sh script\n");
        let command = pid_in(&store.path("pid"));
        let size = |name| std::fs::metadata(store.path(name)).map_or(0, |data| data.len());
        let grows = |name| {
            let before = size(name);
            until("it runs", || size(name) > before);
        };
        for _ in 0..2 {
            ["daemon", "deaf"].into_iter().for_each(grows);
            suspended(&mut terminal, command, ctrl_z);
            if store.ttl {
                let before = (size("daemon"), size("deaf"));
                std::thread::sleep(Duration::from_millis(300));
                assert_eq!((size("daemon"), size("deaf")), before, "they run on");
            } else {
                // The lock stays held, so they do what they do without us.
                ["daemon", "deaf"].into_iter().for_each(grows);
            }
            terminal.type_in("fg\n");
            terminal.sees("leasehold run");
        }
        ["daemon", "deaf"].into_iter().for_each(grows);
        terminal.type_in("\x03");
        terminal.sees("ready> ");
    }
}

/// `leasehold` itself, from the command.
fn parent(command: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", command.as_raw_nonzero())).unwrap();
    let parent = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    support::pid(parent)
}

#[test]
fn whoever_is_told_to_stop_stops_both_and_one_that_is_stopped_already_is_enough() {
    for store in [file(), sqlite()] {
        let mut terminal = shell(&store);
        terminal.type_in("lh x -- sh -c 'echo $$ >pid; exec sed -u s/.*/got-\\&./'\n");
        let command = pid_in(&store.path("pid"));
        let leasehold = parent(command);
        suspended(&mut terminal, command, |_| kill_process(leasehold, Signal::TSTP).unwrap());
        brought_back(&mut terminal, "one");
        suspended(&mut terminal, command, |_| kill_process(command, Signal::TSTP).unwrap());
        brought_back(&mut terminal, "two");
        // The command alone: somebody wants to hold it up, and the lock is held on.
        kill_process(command, Signal::STOP).unwrap();
        until("it is stopped", || is_stopped(command));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!is_stopped(leasehold));
        suspended(&mut terminal, command, ctrl_z);
        brought_back(&mut terminal, "three");
        terminal.type_in("\x03");
        terminal.sees("ready> ");
    }
}

#[test]
fn a_shell_inside_that_suspends_itself_gives_the_terminal_up_and_has_it_again() {
    let store: Store = sqlite();
    let mut terminal = shell(&store);
    terminal.type_in("PS1='inner> ' lh x -- bash --norc --noprofile -i\n");
    terminal.sees("inner> ");
    terminal.type_in("bind 'set enable-bracketed-paste off'\n");
    terminal.sees("inner> ");
    terminal.type_in("echo $$ >pid\n");
    let inner = pid_in(&store.path("pid"));
    terminal.sees("inner> ");
    for _ in 0..2 {
        suspended(&mut terminal, inner, |terminal| terminal.type_in("suspend\n"));
        terminal.type_in("fg\n");
        terminal.sees("leasehold run");
        terminal.type_in("echo inside-$((1+1))\n");
        terminal.sees("inside-2");
        terminal.sees("inner> ");
        // Its jobs are its own as before.
        terminal.type_in("sh -c 'echo go >go; exec cat'\n");
        line_in(&store.path("go"));
        std::fs::remove_file(store.path("go")).unwrap();
        ctrl_z(&mut terminal);
        terminal.sees("Stopped");
        terminal.sees("inner> ");
        terminal.type_in("fg\n");
        terminal.sees("cat");
        terminal.type_in("\x04");
        terminal.sees("inner> ");
    }
    terminal.type_in("exit 3\n");
    terminal.sees("ready> ");
    terminal.type_in("echo code=$?.\n");
    terminal.sees("code=3.");
}

/// A command that takes the terminal for a group of its own, once, and reads from it.
const TAKER: &str = "import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
print(os.getpid(), file=open('pid', 'w'), flush=True)
for line in sys.stdin:
    print('got-' + line.strip() + '.', flush=True)
";

#[test]
fn a_command_that_has_taken_the_terminal_has_it_again_when_it_is_brought_back() {
    for store in [file(), sqlite()] {
        std::fs::write(store.path("taker.py"), TAKER).unwrap();
        let mut terminal = shell(&store);
        terminal.type_in("lh x -- python3 taker.py\n");
        let command = pid_in(&store.path("pid"));
        for word in ["one", "two"] {
            // This reaches only the command.
            suspended(&mut terminal, command, ctrl_z);
            brought_back(&mut terminal, word);
        }
        terminal.type_in("\x04");
        terminal.sees("ready> ");
        terminal.type_in("echo code=$?.\n");
        terminal.sees("code=0.");
    }
}
