//! The `leasehold` command line: parse, run one command, exit with a code from one table.

mod args;
mod bench;
mod exit;
mod report;
mod serve;
mod stores;
mod token;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::report::Failure;

fn main() -> ExitCode {
    let outcome = match Args::try_parse() {
        Ok(args) => run(args),
        Err(error) => report::usage(&error),
    };
    let exit = outcome.unwrap_or_else(|failure| failure.report());
    exit.into()
}

fn run(args: Args) -> Result<Exit, Failure> {
    let out = match args.command {
        Command::Bench(args) => return bench::run(*args),
        Command::Serve(args) => return serve::run(*args),
        Command::Token(args) => token::run(&args)?,
        Command::Stores(args) => stores::run(&args)?,
    };
    // Not `print!`, which panics when the reader has gone away.
    let mut stdout = io::stdout().lock();
    stdout.write_all(out.as_bytes())?;
    stdout.flush()?;
    Ok(Exit::Success)
}
