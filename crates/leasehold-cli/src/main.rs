//! The `leasehold` command line: parse, run one command, exit with a code from one table.

mod args;
mod duration;
mod exit;
mod lock;
mod report;
mod run;
mod store;
mod stores;
mod url;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::report::Failure;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == run::child::BECOME) {
        return run::child::become_command(arguments);
    }
    let outcome = match Args::try_parse() {
        Ok(args) => dispatch(args.command),
        Err(error) => report::usage(&error).map(ExitCode::from),
    };
    outcome.unwrap_or_else(|failure| failure.report().into())
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => return run::run(*args),
        Command::Stores(args) => report::answer(&stores::run(&args)?)?,
    }
    Ok(Exit::Success.into())
}

/// Where the commands run: on the main thread, which `run` relies on.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::system("no runtime can be had", error))
}
