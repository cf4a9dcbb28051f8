//! The `leasehold` command line: parses, runs one command, and exits with a code from one table.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the command line of leasehold builds on Linux only: it follows a command's processes through pidfds and /proc"
);

mod access;
mod acquire;
mod args;
mod bench;
mod completions;
mod cron;
mod doctor;
mod duration;
mod elect;
mod exit;
mod fences;
mod interrupt;
mod lease;
mod list;
mod lock;
mod report;
mod revoke;
mod run;
mod serve;
mod store;
mod stores;
mod table;
mod token;
mod torture;
mod url;
mod view;
mod wait;
mod warnings;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::report::Failure;

fn main() -> ExitCode {
    // `run` starts this program for every command. Check only the first argument: building the parser of all
    // subcommands would make that start slower.
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
        Command::Run(args) => run::run(*args),
        Command::Elect(args) => elect::run(*args),
        Command::Cron(args) => cron::run(*args),
        Command::Acquire(args) => acquire::run(args),
        Command::Renew(args) => runtime()?.block_on(lease::renew(args)),
        Command::Release(args) => runtime()?.block_on(lease::release(args)),
        Command::Wait(args) => runtime()?.block_on(wait::wait(args)),
        Command::List(args) => runtime()?.block_on(list::list(args)),
        Command::Show(args) => runtime()?.block_on(list::show(args)),
        Command::Watch(args) => runtime()?.block_on(wait::watch(args)),
        Command::Revoke(args) => runtime()?.block_on(revoke::run(args)),
        Command::Doctor(args) => runtime()?.block_on(doctor::run(args)),
        Command::Completions(args) => completions::completions(&args),
        Command::Man(args) => completions::man(&args),
        Command::Bench(args) => bench::run(*args).map(ExitCode::from),
        Command::Serve(args) => serve::run(*args).map(ExitCode::from),
        Command::Token(args) => report::answer(&token::run(&args)?).map(|()| Exit::Success.into()),
        Command::Torture(args) => torture::run(*args),
        Command::Fences(args) => report::answer(&fences::run(&args)?).map(|()| Exit::Success.into()),
        Command::Stores(args) => report::answer(&stores::run(&args)?).map(|()| Exit::Success.into()),
    }
}

/// The runtime for all commands, on the main thread, as `run` requires.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::system("cannot start the async runtime", error))
}
