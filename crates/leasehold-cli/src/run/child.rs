//! Starts the command so that it cannot outlive this process.
//!
//! The command is started through this program itself, which asks the system to kill it when its parent dies, checks
//! that the parent is still alive, and then becomes the command. The system ties this to the *thread* that started it,
//! so that must be the main thread, which lives as long as the process.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{Access, Mode, StatVfsMountFlags, access};
use rustix::process::{Pid, Signal, geteuid, getpid, getppid, set_parent_process_death_signal};

use crate::exit::Exit;
use crate::report::{Failure, say};

use super::signals;

/// The first argument that tells this program to become the command.
pub(crate) const BECOME: &str = "__become";

/// The command to start, with its environment.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Variables to set or to remove.
    pub(crate) env: Vec<(&'static str, Option<OsString>)>,
    /// Descriptors that the command and its children keep open: not closed on exec.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Start {
    /// A command line for the shell, or a program and its arguments; `None` if there is neither.
    pub(crate) fn new(line: Option<&OsStr>, command: &[OsString]) -> Option<Self> {
        let (program, args) = match (line, command.split_first()) {
            (Some(line), _) => (shell(), vec!["-c".into(), line.to_owned()]),
            (None, Some((program, args))) => (program.clone(), args.to_vec()),
            (None, None) => return None,
        };
        Some(Start { program, args, env: Vec::new(), descriptors: Vec::new() })
    }

    /// The file of the program, if it is found.
    fn file(&self) -> Option<PathBuf> {
        let program = Path::new(&self.program);
        if program.components().count() > 1 {
            return program.is_file().then(|| program.to_owned());
        }
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
    }

    /// Fails if the program is not there, or may not be run.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let program = self.program.to_string_lossy();
        let failed = |exit, why: &str| Err(Failure::Ended(exit, format!("cannot run {program}: {why}")));
        match self.file() {
            None if std::env::var_os("PATH").is_none() => Ok(()),
            None => failed(Exit::NotFound, "there is no such file"),
            Some(file) if access(&file, Access::EXEC_OK).is_err() => {
                failed(Exit::CannotRun, "the system does not let this user execute it")
            }
            Some(_) => Ok(()),
        }
    }

    /// The program, if it can switch to another user, whose processes we may not be allowed to kill: `sudo`, `su`.
    pub(crate) fn changes_user(&self) -> Option<String> {
        let user = geteuid();
        if user.is_root() {
            return None;
        }
        let found = self.file()?;
        let file = found.metadata().ok()?;
        let set_user = Mode::from_raw_mode(file.mode()).contains(Mode::SUID) && file.uid() != user.as_raw();
        // Where the system ignores the set-user-id bit, the user stays the same.
        let ignored = rustix::fs::statvfs(&found)
            .is_ok_and(|at| at.f_flag.contains(StatVfsMountFlags::NOSUID))
            || rustix::thread::no_new_privs().unwrap_or(false);
        (set_user && !ignored).then(|| Path::new(&self.program).display().to_string())
    }

    /// Starts the command. Call only on the main thread.
    pub(crate) fn spawn(self) -> Result<Pid, Failure> {
        let failed = |error| Failure::system("the command cannot be started", error);
        let mut command = Command::new("/proc/self/exe");
        command.arg0("leasehold").arg(BECOME).arg(getpid().to_string()).arg(self.program).args(self.args);
        for (name, value) in self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // This process starts nothing else, so no other child inherits the descriptors.
        let child = command.spawn().map_err(failed)?;
        drop(self.descriptors);
        i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Failure::Ended(Exit::Internal, "the command has no process id".into()))
    }
}

/// Becomes the command. The arguments after [`BECOME`] are the parent, the program and its arguments.
pub(crate) fn become_command(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|parent| parent.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), Some(program)) = (parent, args.next()) else {
        say("leasehold: this command is for leasehold itself; use `leasehold run`");
        return Exit::Usage.into();
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Failure::system("the system cannot tie the command to leasehold", error).report().into();
    }
    // If the parent had died before that, no signal would come.
    if getppid() != Some(parent) {
        return Exit::Lost.into();
    }
    signals::unblock();
    let error = Command::new(&program).args(args).exec();
    let exit = if error.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotRun };
    say(&format!("leasehold: cannot run {}: {error}", program.to_string_lossy()));
    exit.into()
}

/// The shell for `-c`, as flock chooses it.
fn shell() -> OsString {
    std::env::var_os("SHELL")
        .filter(|shell| !shell.is_empty())
        .unwrap_or_else(|| OsStr::new("/bin/sh").into())
}
