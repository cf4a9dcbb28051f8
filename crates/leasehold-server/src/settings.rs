//! What can be set on a server.

use std::time::Duration;

use leasehold::DEFAULT_NAMESPACE;

use crate::handlers::findings::Examiner;
use crate::log::Log;
use crate::token::Tokens;

/// How a server behaves.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The namespace of all its names in the store.
    pub namespace: String,
    /// The longest ttl a client may ask for; the store's own bound may be lower.
    pub max_ttl: Duration,
    /// Host names under which it may be addressed, besides `localhost` and plain addresses. With tokens any.
    pub hosts: Vec<String>,
    /// Who may do what; `None`: everybody everything.
    pub tokens: Option<Tokens>,
    /// What looks at how its store is set up, for those who may know; `None`: nobody is told.
    pub examiner: Option<Examiner>,
    /// Where its lines go.
    pub log: Log,
    /// Whether logs show lock names and owners as they are, and not only hashes of the names.
    pub log_names: bool,
    /// How often what has expired is swept away and counted.
    pub sweep_every: Duration,
    /// Connections at a time at most.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request, and how long its body.
    pub read_timeout: Duration,
    /// Metrics and the dashboard have an address of their own, and are not at the server's: see
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
