//! How a server is set up, as far as a client can see.

use super::{Http, Options, Pool};
use crate::error::Result;
use crate::finding::{Finding, in_the_clear};
use crate::wire;

impl Http {
    /// How the server is set up, as far as a client can see: its store, TLS, and whether it wants to know who asks.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left.
    ///
    /// # Errors
    /// Faults of the server.
    pub async fn findings(&self) -> Result<Vec<Finding>> {
        let able: wire::Capabilities = self.pool.get("/v1/capabilities").await?.ok()?;
        let options = self.pool.options();
        Ok(vec![
            Finding::ok(format!("this is leasehold {}, before {}:", able.version, able.store)),
            store(&able.store),
            encryption(options),
            who_may(options).await?,
        ])
    }
}

fn store(scheme: &str) -> Finding {
    match scheme {
        "memory" => Finding::risk(
            "the server keeps leases in its memory",
            "a restart frees every lock while its holder still believes to have it",
            "start it with --store sqlite:path, or before Redis or PostgreSQL",
        ),
        "sqlite" => Finding::ok("the server has grants on disk before it answers"),
        other => Finding::note(format!("how its {other}: store is set up cannot be seen from here")).because(
            "a store that forgets lets a second holder in",
            "call `leasehold doctor` with the URL of that store where the server runs",
        ),
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

/// Whether somebody without a token gets in.
async fn who_may(options: &Options) -> Result<Finding> {
    let nobody = Pool::new(Options { token: None, ..options.clone() })?;
    let refused = matches!(nobody.get("/v1/locks?limit=1").await?.status, 401 | 403);
    Ok(match (refused, options.identity.is_some()) {
        (true, _) => Finding::ok("nobody gets in without a token"),
        (false, true) => Finding::ok("no token is wanted; a certificate may be"),
        (false, false) if options.is_loopback() => {
            Finding::note("who is on this machine gets in without a token").because(
                "every user of this machine can release and revoke every lock",
                "make tokens with `leasehold token create`, and start the server with --tokens",
            )
        }
        (false, false) => Finding::risk(
            "everybody who can reach the server gets in without a token",
            "anybody can release and revoke every lock",
            "make tokens with `leasehold token create`, and start the server with --tokens",
        ),
    })
}
