//! What can be typed.

use clap::{Parser, Subcommand, ValueEnum};

use crate::exit;

const EXAMPLES: &str = "\
Examples:
  leasehold serve                  A lock server on 127.0.0.1:7420, durable, in ./leasehold.db
  leasehold stores                 Which stores can this build open?
  leasehold stores --output json   The same for a program";

/// Distributed locks that can be trusted.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXAMPLES, after_long_help = long_help())]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load a server or a store, and check what it promises.
    Bench(Box<crate::bench::Bench>),
    /// Run the lock server.
    Serve(Box<crate::serve::Serve>),
    /// Make tokens for the lock server.
    Token(crate::token::Token),
    /// List the stores this build can open, and what each can do.
    Stores(Stores),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stores {
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum Output {
    /// Columns, for people.
    #[default]
    Table,
    /// JSON, for programs.
    Json,
}

fn long_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::table())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Args::command().debug_assert();
    }
}
