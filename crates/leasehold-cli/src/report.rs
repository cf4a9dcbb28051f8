//! What a person is told when a command fails.

use std::error::Error as _;
use std::io::{self, Write};

use crate::exit::Exit;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library said so.
    Lock(leasehold::Error),
    /// The answer could not be written.
    Output(io::Error),
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
    /// Says on one line of stderr what happened, and returns how to exit.
    pub(crate) fn report(self) -> Exit {
        match self {
            Failure::Lock(error) => {
                let mut line = format!("leasehold: {error}");
                let mut source = error.source();
                while let Some(cause) = source {
                    line.push_str(&format!(": {cause}"));
                    source = cause.source();
                }
                say(&line);
                error.kind().into()
            }
            // The reader went away having seen enough, as `head` does; that is not a failure.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
            Failure::Output(error) => {
                say(&format!("leasehold: cannot write the answer: {error}"));
                Exit::Output
            }
        }
    }
}

/// One line on stderr. With stderr gone there is nobody left to tell, and the exit code still says it;
/// `eprintln!` would panic.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
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
