//! `leasehold run`, suspended and resumed under a shell with job control, behaves as if it were not there.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::shell::{is_stopped, shell};
use support::{Store, file, line_in, pid_in, sqlite, until};
use testkit::pty::Terminal;

/// Reads lines from the terminal. On a stop signal it first cleans up, which takes a while, and then stops in the way
/// that the first argument names.
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

/// Suspends the job in this way. Checks that the command is stopped as soon as the shell accepts input, and that the
/// shell gets what is typed.
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

/// Resumes it, and lets the command read a line.
#[track_caller]
fn brought_back(terminal: &mut Terminal, line: &str) {
    terminal.type_in("fg\n");
    terminal.sees("leasehold run");
    terminal.type_in(&format!("{line}\n"));
    terminal.sees(&format!("got-{line}."));
}

#[test]
fn the_prompt_returns_only_after_a_slow_command_has_stopped() {
    for store in [file(), sqlite()] {
        std::fs::write(store.path("slow.py"), SLOW).unwrap();
        // The last one is not our child but the command's: it gets its time too.
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
                // No person is quicker. A process that catches a stop may miss one that comes as it continues; it does
                // not get it again, because nobody can see whether it has received it.
                std::thread::sleep(Duration::from_secs(1));
            }
            terminal.type_in("\x04");
            terminal.sees("ready> ");
        }
    }
}

#[test]
fn after_quick_suspends_the_command_never_reads_shell_input() {
    // On a busy processor the command is scheduled late.
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
fn a_shell_about_to_start_a_program_is_suspended_too() {
    for store in [file(), sqlite()] {
        let mut terminal = shell(&store);
        // While the shell starts a program they share memory, and the shell cannot stop before the program continues.
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
    // One command ignores the stop, and one handles it and continues.
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
        // A daemon that the terminal does not reach, and a child that ignores it.
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
                // The lock stays held, so they run on as they would without leasehold.
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

/// The `leasehold` process that runs the command.
fn parent(command: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", command.as_raw_nonzero())).unwrap();
    let parent = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    support::pid(parent)
}

#[test]
fn stopping_either_process_stops_both() {
    for store in [file(), sqlite()] {
        let mut terminal = shell(&store);
        terminal.type_in("lh x -- sh -c 'echo $$ >pid; exec sed -u s/.*/got-\\&./'\n");
        let command = pid_in(&store.path("pid"));
        let leasehold = parent(command);
        suspended(&mut terminal, command, |_| kill_process(leasehold, Signal::TSTP).unwrap());
        brought_back(&mut terminal, "one");
        suspended(&mut terminal, command, |_| kill_process(command, Signal::TSTP).unwrap());
        brought_back(&mut terminal, "two");
        // Only the command is stopped, by hand, and the lock stays held.
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
fn a_shell_inside_that_suspends_itself_regains_the_terminal() {
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
        // Its job control works as before.
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

/// A command that once takes the terminal for its own group, and reads from it.
const TAKER: &str = "import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
print(os.getpid(), file=open('pid', 'w'), flush=True)
for line in sys.stdin:
    print('got-' + line.strip() + '.', flush=True)
";

#[test]
fn a_command_that_took_the_terminal_regains_it_after_fg() {
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
