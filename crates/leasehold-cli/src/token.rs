//! `leasehold token`: tokens for the lock server.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use leasehold::{Error, ErrorKind};
use leasehold_server::{Limits, NewToken, Scope, Verb};

use crate::args::Output;
use crate::report::{Failure, say};
use crate::view;

/// Make tokens for the lock server.
#[derive(Debug, clap::Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make a token: its secret is printed once, its hash is added to the file.
    Create(Create),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold token create --name ci --prefix ci/
  umask 077; leasehold token create --name look --allow read > token
  kill -HUP PID  Let the server read its tokens again; its log says whether it could
  LEASEHOLD_TOKEN_FILE=token leasehold list

A running server accepts the token only after SIGHUP (systemctl reload).")]
struct Create {
    /// Token file of the server; created if missing.
    #[arg(long, env = "LEASEHOLD_TOKENS", default_value = "leasehold.tokens", value_name = "FILE")]
    tokens: PathBuf,
    /// What the token is for, as a label for people.
    #[arg(long, default_value = "token", value_name = "TEXT")]
    name: String,
    /// Allow only names that start with this; may be given several times [default: all names]
    #[arg(long, value_name = "TEXT")]
    prefix: Vec<String>,
    /// What the token allows: read, acquire, admin.
    #[arg(long, value_delimiter = ',', default_value = "acquire,read", value_name = "VERBS")]
    allow: Vec<Verb>,
    /// Most leases at a time on one server.
    #[arg(long, value_name = "N")]
    max_leases: Option<u64>,
    /// Most waiting requests at a time on one server.
    #[arg(long, value_name = "N")]
    max_waiters: Option<u64>,
    /// Most requests a second on one server.
    #[arg(long, value_name = "N")]
    max_rate: Option<u32>,
    /// How to print the token.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Output,
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: &Token) -> Result<String, Failure> {
    let What::Create(create) = &args.what;
    let prefixes = if create.prefix.is_empty() { vec![String::new()] } else { create.prefix.clone() };
    let scopes = prefixes.into_iter().map(|prefix| Scope { prefix, allow: create.allow.clone() }).collect();
    let limits = Limits {
        leases: create.max_leases,
        waiters: create.max_waiters,
        requests_per_second: create.max_rate,
    };
    let token = NewToken::create(&create.name, scopes, limits)?;
    // Not an error: a user who replaces a token has two with the same name for a while.
    let namesakes = std::fs::read_to_string(&create.tokens).unwrap_or_default();
    let namesakes = namesakes.lines().filter(|line| name_in(line).as_deref() == Some(&create.name)).count();
    let append = || {
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&create.tokens)?;
        // A manual edit may have left the last line without a line break.
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        let begin = if last == *b"\n" { "" } else { "\n" };
        file.write_all(format!("{begin}{}\n", token.line).as_bytes())
    };
    append().map_err(|error: std::io::Error| {
        let message = format!("cannot write the token file {:?}", create.tokens);
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?;
    if namesakes > 0 {
        say(&format!(
            "leasehold: {} has another token named {:?}; logs cannot tell them apart, and --name names them",
            create.tokens.display(),
            create.name
        ));
    }
    Ok(match create.output {
        Output::Json => view::json(&serde_json::json!({ "name": create.name, "token": token.secret }))?,
        Output::Table => format!("{}\n", token.secret),
    })
}

/// The name of the token on a line of the file.
fn name_in(line: &str) -> Option<String> {
    let entry: serde_json::Value = serde_json::from_str(line).ok()?;
    Some(entry.get("name")?.as_str()?.to_owned())
}
