//! `leasehold completions` and `leasehold man`: generated from the argument definitions.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::Exit;
use crate::report::{Failure, answer};

/// Print completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold completions bash > /etc/bash_completion.d/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write all of them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  leasehold man | man -l -\n  leasehold man --dir /usr/local/share/man/man1"
)]
pub(crate) struct Man {
    /// Write the pages of all commands into this directory; created if missing.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &Completions) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    let mut command = Args::command().mut_subcommands(without_hidden);
    clap_complete::generate(args.shell, &mut command, "leasehold", &mut text);
    answer(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Success.into())
}

/// Removes the hidden subcommand of `torture`, which the generated scripts would offer; leaves other commands
/// unchanged.
fn without_hidden(command: Command) -> Command {
    if command.get_name() != "torture" {
        return command;
    }
    Command::new("torture")
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().cloned())
        .subcommands(command.get_subcommands().filter(|part| !part.is_hide_set()).cloned())
}

pub(crate) fn man(args: &Man) -> Result<ExitCode, Failure> {
    match &args.dir {
        Some(dir) => {
            let written =
                std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Args::command(), dir));
            written.map_err(|error| {
                Failure::Ended(Exit::Output, format!("cannot write manual pages into {dir:?}: {error}"))
            })?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Args::command()).render(&mut page)?;
            answer(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Exit::Success.into())
}
