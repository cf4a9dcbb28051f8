//! `leasehold fences`: what makes a database or Redis refuse writers that have lost their lock.

use clap::{Subcommand, ValueEnum};

use crate::report::Failure;

/// The longest identifier that every dialect takes, less the ending of a trigger's name.
const LONGEST: usize = 48;

/// Print what makes a database or Redis refuse stale fences.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold fences sql --dialect postgres | psql mydb
  leasehold fences redis

docs/fencing.md explains how writers use it.")]
pub(crate) struct Fences {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Sql(Sql),
    Redis(Redis),
}

/// Print SQL that checks fences in the transaction that writes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold fences sql --dialect postgres | psql mydb
  leasehold fences sql --dialect mysql | mariadb mydb
  leasehold fences sql --dialect sqlite | sqlite3 my.db
  leasehold fences sql --dialect postgres --table report --key id | psql mydb

Without --table it prints the table `fences` and the function that checks a fence;
with --table, triggers that call it for every row of one table. Running either a
second time changes nothing.")]
struct Sql {
    /// The database it is for.
    #[arg(long, value_enum)]
    dialect: Dialect,
    /// Print the triggers for this table, which needs a column `fence`.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Each value of this column is a resource of its own: TABLE/VALUE. Otherwise the whole table is one.
    #[arg(long, value_name = "COLUMN", requires = "table")]
    key: Option<String>,
    /// The name of the resource, instead of the table's name.
    #[arg(long, value_name = "NAME", requires = "table")]
    resource: Option<String>,
}

/// Print a Redis script that checks a fence and writes in one step.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold fences redis > fenced.lua

Call it with: redis-cli EVAL \"$(cat fenced.lua)\" 2 '{report}' '{report}:fence' FENCE SET VALUE")]
struct Redis {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dialect {
    // No help on these values: it would spread the option over several lines.
    Postgres,
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: &Fences) -> Result<String, Failure> {
    match &args.what {
        What::Redis(Redis {}) => Ok(include_str!("fences/redis.lua").into()),
        What::Sql(sql) => match &sql.table {
            None => Ok(sql.dialect.functions().into()),
            Some(table) => sql.triggers(table),
        },
    }
}

impl Dialect {
    fn functions(self) -> &'static str {
        match self {
            Dialect::Postgres => include_str!("fences/postgres.sql"),
            Dialect::Mysql => include_str!("fences/mysql.sql"),
            Dialect::Sqlite => include_str!("fences/sqlite.sql"),
        }
    }

    fn trigger(self) -> &'static str {
        match self {
            Dialect::Postgres => include_str!("fences/postgres_trigger.sql"),
            Dialect::Mysql => include_str!("fences/mysql_trigger.sql"),
            Dialect::Sqlite => include_str!("fences/sqlite_trigger.sql"),
        }
    }

    fn identifier(self, name: &str) -> String {
        // Letters, digits and underscores only, so nothing needs escaping.
        if self == Dialect::Mysql { format!("`{name}`") } else { format!("\"{name}\"") }
    }
}

impl Sql {
    fn triggers(&self, table: &str) -> Result<String, Failure> {
        let dialect = self.dialect;
        identifier("--table", table)?;
        let resource = self.resource.as_deref().unwrap_or(table);
        let printable = !resource.is_empty() && !resource.contains(|c: char| c.is_control() || c == '\\');
        if !printable || resource.len() > 256 {
            let message = "`--resource` takes 1 to 256 bytes, without control characters and backslashes";
            return Err(Failure::Usage(message.into()));
        }
        let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let (mut arguments, mut expression) = (literal(resource), literal(resource));
        let mut shown = resource.to_owned();
        if let Some(key) = &self.key {
            identifier("--key", key)?;
            arguments += &format!(", {}", literal(key));
            let (begin, column) = (literal(&format!("{resource}/")), dialect.identifier(key));
            expression = match dialect {
                Dialect::Mysql => format!("CONCAT({begin}, NEW.{column})"),
                _ => format!("{begin} || NEW.{column}"),
            };
            shown += &format!("/VALUE, with the value of {key}");
        }
        let name = |verb: &str| dialect.identifier(&format!("{table}_check_{verb}"));
        let fill = [
            ("{insert_trigger}", name("insert")),
            ("{update_trigger}", name("update")),
            ("{table}", dialect.identifier(table)),
            ("{arguments}", arguments),
            ("{expression}", expression),
            // Last, because it is text of the caller's.
            ("{resource}", shown),
        ];
        Ok(fill.iter().fold(dialect.trigger().to_owned(), |sql, (from, to)| sql.replace(from, to)))
    }
}

/// Refuses a name that would need escaping, or that a database would cut.
fn identifier(option: &str, name: &str) -> Result<(), Failure> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && name.len() <= LONGEST && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "`{option}` takes a name of at most {LONGEST} letters, digits and underscores; for any other name, print the SQL \
         for a plain one and change it"
    )))
}
