//! Findings about how a server is set up, as far as a client can see.

use std::time::Duration;

use super::{Http, Options, Pool};
use crate::doctor::{Finding, in_the_clear};
use crate::error::Result;
use crate::wire;

/// How long a server may take to examine its store: it opens a new connection for that.
const EXAMINING: Duration = Duration::from_secs(15);

impl Http {
    /// Examines how the server is set up, as far as a client can see: TLS, whether it asks for a token, and what it
    /// reports about its store.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind.
    ///
    /// # Errors
    /// Faults of the server.
    pub async fn findings(&self) -> Result<Vec<Finding>> {
        self.examine(true).await
    }

    /// As [`findings`](Http::findings), but makes no call that a server with tokens refuses, counts and logs. So a
    /// client with a token does not learn whether the server also accepts clients without one.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind.
    ///
    /// # Errors
    /// Faults of the server.
    pub async fn quiet_findings(&self) -> Result<Vec<Finding>> {
        self.examine(self.pool.options().token.is_none()).await
    }

    async fn examine(&self, without_token: bool) -> Result<Vec<Finding>> {
        let able: wire::Capabilities = self.pool.get("/v1/capabilities").await?.ok()?;
        let options = self.pool.options();
        let mut found = vec![
            Finding::ok(format!("this is leasehold {}, before {}:", able.version, able.store)),
            encryption(options),
        ];
        if without_token {
            found.push(who_may(options).await?);
        }
        found.extend(self.store(&able.store).await?);
        Ok(found)
    }

    /// The server's own findings about its store.
    async fn store(&self, scheme: &str) -> Result<Vec<Finding>> {
        if scheme == "memory" {
            return Ok(vec![Finding::risk(
                "the server keeps leases in its memory",
                "a restart frees every lock while its holder still believes that it has it",
                "start it with --store sqlite:path, or before Redis or PostgreSQL",
            )]);
        }
        let unseen = |what: String, fix: &str| {
            Ok(vec![Finding::note(what).because("a store that forgets lets a second holder in", fix)])
        };
        let answer = self.pool.get_within("/v1/findings", EXAMINING).await?;
        match answer.status {
            403 => unseen(
                format!("this token is not told how the {scheme}: store of the server is set up"),
                "call `leasehold doctor` with a token that may read every name",
            ),
            // An older server, or one that does not know the URL of its store.
            404 => unseen(
                format!("the server does not say how its {scheme}: store is set up"),
                "call `leasehold doctor` with the URL of that store where the server runs",
            ),
            _ => {
                let told: wire::Findings = answer.ok()?;
                let behind = told.findings.into_iter().filter_map(Finding::behind_a_server);
                Ok(behind.map(|one| one.about("its store")).collect())
            }
        }
    }
}

fn encryption(options: &Options) -> Finding {
    if options.tls {
        Finding::ok("what is said to it is encrypted, and its certificate was checked")
    } else if options.is_loopback() {
        Finding::ok("it is on this machine; nobody on a network can listen")
    } else {
        in_the_clear("give the server a certificate (serve --tls-cert --tls-key), and use https:")
    }
}

/// Whether a client without a token is accepted.
async fn who_may(options: &Options) -> Result<Finding> {
    let nobody = Pool::new(Options { token: None, ..options.clone() })?;
    let refused = matches!(nobody.get("/v1/locks?limit=1").await?.status, 401 | 403);
    Ok(match (refused, options.identity.is_some()) {
        (true, _) => Finding::ok("nobody gets in without a token"),
        (false, true) => Finding::ok("no token is wanted; a certificate may be"),
        (false, false) if options.is_loopback() => {
            Finding::note("who is on this machine gets in without a token").because(
                "every user of this machine can revoke every lock",
                "make tokens with `leasehold token create`, and start the server with --tokens",
            )
        }
        (false, false) => Finding::risk(
            "everybody who can reach the server gets in without a token",
            "anybody can revoke every lock",
            "make tokens with `leasehold token create`, and start the server with --tokens",
        ),
    })
}
