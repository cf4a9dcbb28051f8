//! What a person is told when a command fails.

use std::error::Error as _;
use std::io::{self, Write};

use crate::exit::Exit;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library said so.
    Lock(leasehold::Error),
    /// The same, about the store that is shown like this.
    Store(String, leasehold::Error),
    /// The answer could not be written.
    Output(io::Error),
    /// The call is wrong.
    Usage(String),
    /// It ended in another way that has a code.
    Ended(Exit, String),
}

impl From<leasehold::Error> for Failure {
    fn from(error: leasehold::Error) -> Self {
        Failure::Lock(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

impl Failure {
    /// A fault of the system that is no answer of the store.
    pub(crate) fn system(what: &str, error: impl Into<io::Error>) -> Self {
        Failure::Ended(Exit::Internal, format!("{what}: {}", error.into()))
    }

    /// What happened, in one line, and how to exit; `None` if there is nothing to tell.
    pub(crate) fn describe(&self) -> (Exit, Option<String>) {
        match self {
            Failure::Lock(error) => (error.kind().into(), Some(whole(error))),
            Failure::Store(store, error) => (error.kind().into(), Some(format!("{store}: {}", whole(error)))),
            // The reader went away having seen enough, as `head` does; that is not a failure.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => (Exit::Success, None),
            Failure::Output(error) => (Exit::Output, Some(format!("cannot write the answer: {error}"))),
            Failure::Usage(line) => (Exit::Usage, Some(line.clone())),
            Failure::Ended(exit, line) => (*exit, Some(line.clone())),
        }
    }

    /// Says on one line of stderr what happened, and returns how to exit.
    pub(crate) fn report(&self) -> Exit {
        let (exit, line) = self.describe();
        if let Some(line) = line {
            say(&format!("leasehold: {line}"));
        }
        exit
    }
}

/// An error with all its causes.
pub(crate) fn whole(error: &leasehold::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    line
}

/// One line on stderr. With stderr gone there is nobody left to tell, and the exit code still says it;
/// `eprintln!` would panic.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes the answer of a command. Not `print!`, which panics when the reader has gone away.
pub(crate) fn answer(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// Prints what clap has to say: help and version are answers, everything else is a wrong call.
pub(crate) fn usage(error: &clap::Error) -> Result<Exit, Failure> {
    if error.use_stderr() {
        let _ = error.print();
        return Ok(Exit::Usage);
    }
    error.print()?;
    Ok(Exit::Success)
}
