//! An interactive shell on a separate terminal.

use std::process::Command;

use rustix::process::Pid;
use testkit::pty::Terminal;

use super::Store;

/// An interactive shell in which `lh` is `leasehold run`.
pub(crate) fn shell(store: &Store) -> Terminal {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"]).current_dir(store.dir.path());
    bash.env("LEASEHOLD_URL", &store.url)
        .env("PS1", "ready> ")
        .env_remove("PROMPT_COMMAND")
        .env("TERM", "dumb");
    let mut terminal = Terminal::start(&bash, 200);
    terminal.sees("ready> ");
    terminal.type_in(&format!(
        "bind 'set enable-bracketed-paste off'; lh() {{ {} run \"$@\"; }}\n",
        env!("CARGO_BIN_EXE_leasehold")
    ));
    terminal.sees("ready> ");
    terminal
}

/// Whether a process is stopped.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
}
