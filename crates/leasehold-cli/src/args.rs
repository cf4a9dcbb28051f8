//! The definition of commands and options.

use clap::{Parser, Subcommand, ValueEnum};

use crate::cron::Cron;
use crate::elect::Elect;
use crate::exit;
use crate::run::Run;
use crate::{acquire, completions, doctor, lease, list, revoke, wait};

const EXAMPLES: &str = "\
Examples:
  leasehold run backup -- ./backup.sh     Run a command under a lock
  leasehold run -n backup -- ./backup.sh  Run it only if the lock is free
  leasehold elect sync -- ./sync          Keep it running in one of several places
  leasehold cron '0 2 * * *' report -- ./r  Run it at 02:00 on one of several nodes
  leasehold list                          List the locks in use
  leasehold show backup                   Show the holder and the queue
  leasehold serve                         Start a lock server on 127.0.0.1:7420
  leasehold doctor                        Check that the store is safe to use
  leasehold stores                        List the stores this build can open";

/// Distributed locks that can be trusted.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXAMPLES, after_long_help = long_help())]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Elect(Box<Elect>),
    Cron(Box<Cron>),
    Acquire(acquire::Acquire),
    Renew(lease::Renew),
    Release(lease::Release),
    Wait(wait::Wait),
    List(list::List),
    Show(list::Show),
    Watch(wait::Watch),
    Revoke(revoke::Revoke),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    Man(completions::Man),
    /// Put load on a server or a store, and check that it keeps its promises.
    Bench(Box<crate::bench::Bench>),
    /// Run the lock server.
    Serve(Box<crate::serve::Serve>),
    /// Create access tokens for the lock server.
    Token(crate::token::Token),
    Fences(crate::fences::Fences),
    /// Test a store under faults, and check that it kept its promises.
    Torture(Box<crate::torture::Torture>),
    /// List the stores this build can open, and what each can do.
    Stores(Stores),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold stores\n  leasehold stores --output json | jq -r '.[].url'")]
pub(crate) struct Stores {
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(crate) enum Output {
    // No help on these values: it would spread every option over several lines.
    #[default]
    Table,
    Json,
}

fn long_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::table())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Splits a line of the examples as a shell would, up to a pipe or a comment.
    fn words(line: &str) -> Vec<String> {
        let line = line.trim().trim_start_matches("eval \"$(").replace(")\"", "  ");
        let line = line.split_once("  ").map_or(line.as_str(), |(call, _)| call);
        let line = line.split([';', '|', '>']).next().unwrap_or_default().trim();
        let line = line.split(" && ").next().unwrap_or_default().replace("'a", "a");
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn every_command_has_examples_in_its_help_that_can_be_called() {
        let mut commands = vec![Args::command()];
        let mut examples = 0;
        while let Some(mut command) = commands.pop() {
            // Hidden commands have no examples.
            commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
            let help = command.render_long_help().to_string();
            let name = command.get_name().to_owned();
            let lines = help
                .lines()
                .filter(|line| line.starts_with("  leasehold ") || line.starts_with("  eval \"$(leasehold "));
            let calls: Vec<_> = lines.map(words).collect();
            assert!(name == "token" || !calls.is_empty(), "{name} has no example:\n{help}");
            for call in calls {
                examples += 1;
                if let Err(error) = Args::try_parse_from(&call) {
                    panic!("{name}: {call:?}: {error}");
                }
            }
            let wide = help.lines().find(|line| line.chars().count() > 100);
            assert!(wide.is_none(), "{name}: {wide:?}");
        }
        assert!(examples > 30, "{examples}");
    }

    #[test]
    fn the_definition_of_the_arguments_is_consistent() {
        Args::command().debug_assert();
    }
}
