//! The configuration file: `flag = value` on each line, `#` begins a comment. Flags and environment take precedence.
//!
//! An ambiguous line is refused: taken literally, `namespace = prod # main` would be another namespace than `prod`,
//! and two servers would share no lock.

use std::path::{Path, PathBuf};

use leasehold::Error;

use super::Serve;

/// The parsed lines of a file.
pub(super) struct File {
    path: PathBuf,
    lines: Vec<Line>,
}

struct Line {
    number: usize,
    key: String,
    value: String,
}

pub(super) fn read(path: &Path) -> Result<File, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!("the config file {path:?} cannot be read")).with_source(error)
    })?;
    let mut lines: Vec<Line> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(|| {
            Error::invalid(format!("config file {path:?}, line {number}: expected `option = value`"))
        })?;
        let key = key.trim().replace('_', "-");
        let value = plain(value.trim()).map_err(|why| bad(path, number, &key, why))?;
        // `host` may appear several times, like the flag.
        if let Some(before) = lines.iter().find(|line| line.key == key && key != "host") {
            let why = format!("line {} has set it already; remove one of the two", before.number);
            return Err(bad(path, number, &key, &why));
        }
        lines.push(Line { number, key, value });
    }
    Ok(File { path: path.to_owned(), lines })
}

/// The error for a line. Does not repeat the value, which may contain a password.
fn bad(path: &Path, number: usize, key: &str, why: &str) -> Error {
    Error::invalid(format!("config file {path:?}, line {number}, `{key}`: {why}"))
}

/// The value of a line, or why it is ambiguous.
fn plain(value: &str) -> Result<String, &'static str> {
    const COMMENT: &str = "a comment needs a line of its own; write the value alone, or in double quotes if the # or \
                           ; belongs to it";
    if let Some(quoted) = value.strip_prefix('"') {
        return match quoted.split_once('"') {
            Some((inside, "")) => Ok(inside.to_owned()),
            Some((_, rest)) if rest.trim_start().starts_with(['#', ';']) => Err(COMMENT),
            _ => Err("a double quote belongs at the beginning and at the end of the value, and nowhere else"),
        };
    }
    if value.is_empty() {
        return Err("there is no value; write one, or remove the line");
    }
    if value.contains('#') || value.starts_with(';') || value.contains(" ;") || value.contains("\t;") {
        return Err(COMMENT);
    }
    if value.contains('\'') {
        return Err("write the value without single quotes, or in double quotes if they belong to it");
    }
    if value.contains('"') {
        return Err("a double quote belongs at the beginning and at the end of the value, and nowhere else");
    }
    Ok(value.to_owned())
}

impl File {
    /// Fills in the options that neither a flag nor the environment has set.
    pub(super) fn apply(self, args: &mut Serve) -> Result<(), Error> {
        let hosts_are_said = !args.host.is_empty();
        for Line { number, key, value } in self.lines {
            let bad = |why: &str| bad(&self.path, number, &key, why);
            let switch = || match value.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(bad("expected true or false")),
            };
            match key.as_str() {
                "store" => drop(args.store.get_or_insert(value)),
                "listen" => drop(args.listen.get_or_insert(value)),
                "metrics-listen" => drop(args.metrics_listen.get_or_insert(value)),
                "tokens" => drop(args.tokens.get_or_insert(value.into())),
                "tls-cert" => drop(args.tls_cert.get_or_insert(value.into())),
                "tls-key" => drop(args.tls_key.get_or_insert(value.into())),
                "tls-client-ca" => drop(args.tls_client_ca.get_or_insert(value.into())),
                "namespace" => drop(args.namespace.get_or_insert(value)),
                "log" => drop(args.log.get_or_insert(value)),
                "max-ttl-ms" => {
                    let ms = value.parse().map_err(|_| bad("expected a whole number"))?;
                    args.max_ttl_ms.get_or_insert(ms);
                }
                "host" if hosts_are_said => {}
                "host" => args.host.extend(value.split(',').map(|name| name.trim().to_owned())),
                "insecure-no-auth" => drop(args.insecure_no_auth.get_or_insert(switch()?)),
                "accept-risks" => drop(args.accept_risks.get_or_insert(switch()?)),
                "log-names" => drop(args.log_names.get_or_insert(switch()?)),
                _ => return Err(bad("unknown option")),
            }
        }
        Ok(())
    }
}
