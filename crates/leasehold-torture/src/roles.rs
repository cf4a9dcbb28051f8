//! The parts that a run's processes play: the supervisor starts its own binary again, which then calls [`play`] first.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::supervise::{many, rest};
use crate::{lock_server, resource, worker};

/// Where a process is told its part.
const ROLE: &str = "LEASEHOLD_TORTURE_ROLE";

/// A part.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Takes locks.
    Worker(worker::Task),
    /// What the locks protect.
    Resource { socket: PathBuf, history: PathBuf },
    /// A lock server.
    Server { store: String, port: u16 },
    /// Looks at the store at rest.
    Rest(rest::Rest),
    /// Sweeps the store and lists its names all the time.
    Looker(many::Looker),
}

/// What a process is told.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    parent: u32,
    role: Role,
}

/// Plays the part that this process was started for, and says how it ended; `None` if it was started for none.
///
/// A binary that tortures calls this before anything else, and ends if it gets a code.
pub fn play() -> Option<ExitCode> {
    let part = std::env::var(ROLE).ok()?;
    let Ok(Part { parent, role }) = serde_json::from_str(&part) else {
        eprintln!("{ROLE} is for processes that `leasehold torture` starts");
        return Some(ExitCode::from(64));
    };
    // Also when it stands still while its parent is killed.
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    let orphan = getppid().is_none_or(|pid| pid.as_raw_nonzero().get().unsigned_abs() != parent);
    if bound.is_err() || orphan {
        return Some(ExitCode::FAILURE);
    }
    let played = match role {
        Role::Worker(task) => worker::run(task),
        Role::Resource { socket, history } => resource::serve(&socket, &history),
        Role::Server { store, port } => lock_server::serve(&store, port),
        Role::Rest(rest) => rest.look(),
        Role::Looker(looker) => looker.look(),
    };
    Some(match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    })
}

/// What a process finds around itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Around {
    /// Variables of its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// The start of the command line that leads to where it runs.
    pub(crate) entered: Vec<String>,
}

/// Starts a process that plays a part. It ends when the thread that called this ends.
pub(crate) fn start(role: Role, errors: Stdio, around: &Around) -> io::Result<Child> {
    let part = serde_json::to_string(&Part { parent: std::process::id(), role })?;
    let own = std::env::current_exe()?;
    let mut line = around.entered.iter().map(PathBuf::from).chain([own]);
    Command::new(line.next().unwrap_or_default())
        .args(line)
        .env(ROLE, part)
        .envs(around.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        // Ctrl-C is for the supervisor, which then ends the others in order.
        .process_group(0)
        .spawn()
}
