//! The message a user reads when a command fails.

use std::error::Error as _;
use std::io::{self, Write};

use crate::exit::Exit;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error from the library.
    Lock(leasehold::Error),
    /// An error from the library about the store with this displayed URL.
    Store(String, leasehold::Error),
    /// The output could not be written.
    Output(io::Error),
    /// Wrong usage.
    Usage(String),
    /// Another failure, with its exit code.
    Ended(Exit, String),
}

impl From<leasehold::Error> for Failure {
    fn from(error: leasehold::Error) -> Self {
        Failure::Lock(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::system("a call to the system failed", error)
    }
}

impl Failure {
    /// A system error that did not come from the store.
    pub(crate) fn system(what: &str, error: impl Into<io::Error>) -> Self {
        Failure::Ended(Exit::Internal, format!("{what}: {}", error.into()))
    }

    /// Whether the output could not be written because its reader has gone.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The one-line message and the exit code; no message if there is nothing to say.
    pub(crate) fn describe(&self) -> (Exit, Option<String>) {
        match self {
            Failure::Lock(error) => (error.kind().into(), Some(whole(error))),
            Failure::Store(store, error) => (error.kind().into(), Some(format!("{store}: {}", whole(error)))),
            // The reader closed the pipe having seen enough, as `head` does; that is not a failure.
            Failure::Output(_) if self.is_unread() => (Exit::Success, None),
            Failure::Output(error) => (Exit::Output, Some(format!("cannot write the answer: {error}"))),
            Failure::Usage(line) => (Exit::Usage, Some(line.clone())),
            Failure::Ended(exit, line) => (*exit, Some(line.clone())),
        }
    }

    /// Whether it may pass by itself: the store cannot be reached now, or is too busy.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Failure::Lock(error) | Failure::Store(_, error) => error.is_retryable(),
            Failure::Ended(exit, _) => *exit == Exit::Store,
            Failure::Output(_) | Failure::Usage(_) => false,
        }
    }

    /// Prints the message on stderr and returns the exit code.
    pub(crate) fn report(&self) -> Exit {
        let (exit, line) = self.describe();
        if let Some(line) = line {
            say(&format!("leasehold: {line}"));
        }
        exit
    }
}

/// An error with all its causes, as text.
pub(crate) fn whole(error: &leasehold::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    line
}

/// Prints a line on stderr. If stderr is closed, the exit code still tells; `eprintln!` would panic.
pub(crate) fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a command's output. A reader that has closed the pipe, as `head` does, changes nothing: the command goes on to
/// its own exit code.
pub(crate) fn answer(text: &str) -> Result<(), Failure> {
    match deliver(text) {
        Err(failure) if failure.is_unread() => Ok(()),
        outcome => outcome,
    }
}

/// As [`answer`], but fails if the reader has closed the pipe. Not `print!`, which would panic.
pub(crate) fn deliver(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// Prints clap's message: help and version are output, everything else is wrong usage.
pub(crate) fn usage(error: &clap::Error) -> Result<Exit, Failure> {
    if error.use_stderr() {
        let _ = error.print();
        return Ok(Exit::Usage);
    }
    error.print().map_err(Failure::Output)?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_output_is_called_output() {
        let broken = || io::Error::from(io::ErrorKind::PermissionDenied);
        let (exit, line) = Failure::from(broken()).describe();
        assert_eq!((exit, line.unwrap().contains("answer")), (Exit::Internal, false));
        let (exit, line) = Failure::Output(broken()).describe();
        assert_eq!((exit, line.unwrap().contains("answer")), (Exit::Output, true));
    }
}
