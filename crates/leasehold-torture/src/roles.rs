//! The processes of a run, and how they are started.
//!
//! The supervisor starts its own program again, as `PROGRAM torture process`, and writes what the process is to do, a
//! `Part` as JSON, to its standard input as the first line. Not as arguments: everybody on the machine can read
//! those, and a URL may contain a password. So a program that tortures has to handle these arguments:
//!
//! - `leasehold` has a hidden subcommand, which calls [`play`];
//! - a test or an example that uses this crate calls [`play_if_asked`] before anything else, and ends if it gets a
//!   code.

use std::io::{self, BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::supervise::{many, rest};
use crate::{lock_server, resource, worker};

/// The arguments with which a process of a run is started.
const ARGUMENTS: [&str; 2] = ["torture", "process"];

/// What a process does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Takes locks.
    Worker(worker::Task),
    /// The resource that the locks protect.
    Resource { socket: PathBuf, history: PathBuf },
    /// A lock server.
    Server { store: String, port: u16 },
    /// Checks the store at rest.
    Rest(rest::Rest),
    /// Sweeps the store and lists its names all the time.
    Looker(many::Looker),
}

/// The first line of a process's standard input.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    parent: u32,
    role: Role,
}

/// Plays the part that standard input names, and returns the exit code.
pub fn play() -> ExitCode {
    let mut line = String::new();
    // The rest of the input belongs to the role.
    let read = io::stdin().lock().read_line(&mut line);
    let Some(Part { parent, role }) = read.ok().and_then(|_| serde_json::from_str(&line).ok()) else {
        eprintln!("`torture process` is for processes that `leasehold torture` starts");
        return ExitCode::from(64);
    };
    // Also if it is stopped while its parent is killed.
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    let orphan = getppid().is_none_or(|pid| pid.as_raw_nonzero().get().unsigned_abs() != parent);
    if bound.is_err() || orphan {
        return ExitCode::FAILURE;
    }
    let played = match role {
        Role::Worker(task) => worker::run(task),
        Role::Resource { socket, history } => resource::serve(&socket, &history),
        Role::Server { store, port } => lock_server::serve(&store, port),
        Role::Rest(rest) => rest.look(),
        Role::Looker(looker) => looker.look(),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// [`play`], if this process was started for that; else `None`.
pub fn play_if_asked() -> Option<ExitCode> {
    std::env::args().skip(1).eq(ARGUMENTS).then(play)
}

/// The surroundings of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Around {
    /// Variables of its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// The start of the command line that enters its mount namespace.
    pub(crate) entered: Vec<String>,
}

/// Starts a process that plays a part. It ends when the thread that called this ends.
pub(crate) fn start(role: Role, errors: Stdio, around: &Around) -> io::Result<Child> {
    let part = serde_json::to_string(&Part { parent: std::process::id(), role })? + "\n";
    let own = std::env::current_exe()?;
    let mut line = around.entered.iter().map(PathBuf::from).chain([own]);
    let mut child = Command::new(line.next().unwrap_or_default())
        .args(line)
        .args(ARGUMENTS)
        .envs(around.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        // Ctrl-C is for the supervisor, which then ends the others in order.
        .process_group(0)
        .spawn()?;
    if let Some(input) = &mut child.stdin {
        // If the process ends before it has read this, its end is noticed.
        let _ = input.write_all(part.as_bytes());
    }
    Ok(child)
}
