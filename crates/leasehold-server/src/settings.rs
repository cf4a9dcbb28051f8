//! The settings of a server.

use std::time::Duration;

use leasehold::DEFAULT_NAMESPACE;

use crate::handlers::findings::Examiner;
use crate::log::Log;
use crate::token::Tokens;

/// The settings of a server.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The namespace of all its names in the store.
    pub namespace: String,
    /// The longest ttl a client may ask for; the store's own bound may be lower.
    pub max_ttl: Duration,
    /// Host names under which clients may address it, besides `localhost` and IP addresses. With tokens, any.
    pub hosts: Vec<String>,
    /// Which token may do what. With `None`, everybody may do everything.
    pub tokens: Option<Tokens>,
    /// Examines how the store is set up, for clients that may see it. With `None`, the server does not report it.
    pub examiner: Option<Examiner>,
    /// Where log lines go.
    pub log: Log,
    /// Whether logs show lock names and owners as they are, instead of hashes of the names.
    pub log_names: bool,
    /// How often expired leases are swept and counted.
    pub sweep_every: Duration,
    /// The greatest number of open connections. A separate address for metrics has a sixteenth of them, at least 16
    /// (at most half) and at most 512.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request, and again for its body.
    pub read_timeout: Duration,
    /// Metrics and the dashboard have their own address, and are absent from the server's: see
    /// [`serve_figures`](crate::serve_figures).
    pub figures_elsewhere: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            namespace: DEFAULT_NAMESPACE.into(),
            max_ttl: Duration::from_secs(600),
            hosts: Vec::new(),
            tokens: None,
            examiner: None,
            log: Log::none(),
            log_names: false,
            sweep_every: Duration::from_millis(500),
            max_connections: 20_000,
            read_timeout: Duration::from_secs(10),
            figures_elsewhere: false,
        }
    }
}
