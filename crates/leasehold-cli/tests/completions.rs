//! Completions are loaded and used in their shells; manual pages are written.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Ended, ended};
use tempfile::TempDir;
use testkit::pty::Terminal;

/// Writes the completions for a shell into a file of this name, in a directory that also has the binary.
fn completions(shell: &str, file: &str) -> (TempDir, PathBuf) {
    let outcome = ended(support::leasehold(&["completions", shell]));
    assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""));
    for hidden in ["__become", "torture,process", "standard input says which"] {
        assert!(!outcome.out.contains(hidden), "{shell}: {hidden}: that one is for ourselves");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::write(&path, outcome.out).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), dir.path().join("leasehold")).unwrap();
    (dir, path)
}

/// A shell that reads no user settings, and finds the binary.
fn shell(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", dir.display())).env("HOME", dir).env("TERM", "dumb");
    for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "ZDOTDIR"] {
        command.env(name, dir);
    }
    command.current_dir(dir);
    command
}

/// What a script prints; it must neither fail nor complain.
#[track_caller]
fn printed(mut command: Command, script: &str) -> String {
    command.args(["-c", script]);
    let outcome: Ended = ended(command);
    assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""), "{outcome:?}");
    outcome.out
}

#[test]
fn bash_completes_commands_options_and_their_values() {
    let (dir, path) = completions("bash", "leasehold.bash");
    let script = r#"set -eu; source "$0"; complete -p leasehold >bound
        ask() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _leasehold leasehold "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[*]}"
        }
        ask leasehold ru; ask leasehold run --max; ask leasehold list --output ''; ask leasehold re"#;
    let mut bash = shell("bash", dir.path());
    bash.args(["--norc", "-c", script]).arg(&path);
    let outcome = ended(bash);
    assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""), "{outcome:?}");
    assert_eq!(outcome.out, "run\n--max-hold\ntable json\nrenew release revoke\n");
    assert!(std::fs::read_to_string(dir.path().join("bound")).unwrap().contains("-F _leasehold"));
}

#[test]
fn fish_completes_commands_options_and_their_values() {
    let (dir, path) = completions("fish", "leasehold.fish");
    let ask = |line: &str| {
        let mut fish = shell("fish", dir.path());
        fish.arg("--no-config");
        printed(fish, &format!("source {}; complete -C '{line}'", path.display()))
    };
    assert_eq!(ask("leasehold ru"), "run\tRun a command under a lock\n");
    assert!(ask("leasehold run --max").starts_with("--max-hold\tEnd the command"));
    assert_eq!(ask("leasehold list --output "), "json\ntable\n");
    let commands: Vec<String> =
        ask("leasehold re").lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
    assert_eq!(commands, ["release", "renew", "revoke"]);
    // Each command completes its own options only.
    assert_eq!(ask("leasehold list --max"), "");
}

#[test]
fn zsh_completes_commands_options_values_and_the_program_to_run() {
    let (dir, _path) = completions("zsh", "_leasehold");
    std::fs::write(dir.path().join("only-one-such-program"), "").unwrap();
    let programs = dir.path().join("only-one-such-program");
    std::fs::set_permissions(&programs, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut zsh = shell("zsh", dir.path());
    zsh.args(["-f", "-i"]).env("PS1", "ready> ");
    let mut terminal = Terminal::start(&zsh, 200);
    terminal.sees("ready> ");
    // As in a user's .zshrc.
    terminal
        .type_in("unset zle_bracketed_paste; fpath=($HOME $fpath); autoload -Uz compinit && compinit -u\n");
    terminal.sees("ready> ");
    // Press Tab after each.
    for (typed, completed) in [
        ("leasehold ru\t", "leasehold run "),
        ("leasehold run --max\t", "leasehold run --max-hold"),
        ("leasehold list --output j\t", "leasehold list --output json"),
        ("leasehold completions z\t", "leasehold completions zsh"),
        ("leasehold run x -- only-o\t", "leasehold run x -- only-one-such-program"),
        ("leasehold re\t", "revoke   -- Take a lock away from its holder"),
    ] {
        terminal.type_in(typed);
        let shown = terminal.sees(completed);
        assert!(!shown.contains("not found") && !shown.contains("_leasehold"), "{shown}");
        // Clears the line.
        terminal.type_in("\x15");
    }
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    assert_eq!(ended(support::leasehold(&["man", "--dir", pages.to_str().unwrap()])).code(), 0);
    ended(support::leasehold(&["man", "--dir", "/dev/null/x"])).says(74, "/dev/null/x");
    let page = std::fs::read_to_string(pages.join("leasehold-run.1")).unwrap();
    assert!(page.contains("kill\\-after") && page.contains("Examples"), "{page}");
    assert!(ended(support::leasehold(&["man"])).out.contains("leasehold"));
}
