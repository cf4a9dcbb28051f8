//! The server's file: `flag = value` on lines of their own, `#` begins a comment. Flags and environment come first.

use std::path::Path;

use leasehold::Error;

use super::Serve;

/// What a file says, line by line.
pub(super) struct File(Vec<(usize, String, String)>);

pub(super) fn read(path: &Path) -> Result<File, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!("the config file {path:?} cannot be read")).with_source(error)
    })?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(|| {
            Error::invalid(format!("line {} of the config file is not `flag = value`", number + 1))
        })?;
        let value = value.trim().trim_matches('"').to_owned();
        lines.push((number + 1, key.trim().replace('_', "-"), value));
    }
    Ok(File(lines))
}

impl File {
    /// Fills in what neither a flag nor the environment has said.
    pub(super) fn apply(self, args: &mut Serve) -> Result<(), Error> {
        let hosts_are_said = !args.host.is_empty();
        for (number, key, value) in self.0 {
            let bad = |why: &str| Error::invalid(format!("line {number} of the config file: {why}"));
            let switch = || match value.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(bad("true or false is expected")),
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
                    let ms = value.parse().map_err(|_| bad("a whole number is expected"))?;
                    args.max_ttl_ms.get_or_insert(ms);
                }
                "host" if hosts_are_said => {}
                "host" => args.host.extend(value.split(',').map(|name| name.trim().to_owned())),
                "insecure-no-auth" => drop(args.insecure_no_auth.get_or_insert(switch()?)),
                "accept-risks" => drop(args.accept_risks.get_or_insert(switch()?)),
                "log-names" => drop(args.log_names.get_or_insert(switch()?)),
                _ => return Err(bad("there is no such flag")),
            }
        }
        Ok(())
    }
}
