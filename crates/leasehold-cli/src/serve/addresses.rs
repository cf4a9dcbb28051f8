//! The addresses the server listens on: every address of the given names.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use leasehold::Error;
use leasehold_server::Listeners;

use crate::exit::Exit;
use crate::report::{self, Failure};

/// The addresses that an option names.
pub(crate) struct Addresses {
    option: &'static str,
    text: String,
    pub(super) all: Vec<SocketAddr>,
}

impl Addresses {
    /// All addresses of a host and port, each once.
    pub(crate) async fn of(option: &'static str, text: &str) -> Result<Self, Error> {
        let bad =
            || Error::invalid(format!("`{option}` takes an address and a port, for example 127.0.0.1:7420"));
        // Not on this thread: a name server may be slow, and signals must be handled meanwhile.
        let found = tokio::net::lookup_host(text).await.map_err(|error| bad().with_source(error))?;
        let mut all: Vec<SocketAddr> = Vec::new();
        for address in found {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        if all.is_empty() {
            return Err(bad());
        }
        Ok(Addresses { option, text: text.to_owned(), all })
    }

    /// Where they would be served, in one text.
    pub(super) fn shown(&self, scheme: &str) -> String {
        self.all.iter().map(|address| format!("{scheme}://{address}")).collect::<Vec<_>>().join(", ")
    }

    /// Listens on all of them, and warns about those that this machine does not have.
    pub(crate) fn listen(&self) -> Result<Listeners, Failure> {
        let listeners = leasehold_server::listen(&self.all).map_err(|(address, error)| {
            // Not the store's fault, but like an unavailable store: it may work later or elsewhere.
            Failure::Ended(
                Exit::Store,
                format!(
                    "cannot listen on {address}: {error}; if it is taken, stop what uses it or choose another"
                ),
            )
        })?;
        let bound = listeners.addresses()?;
        let is_bound = |address: &&SocketAddr| bound.iter().any(|bound| bound.ip() == address.ip());
        for missing in self.all.iter().filter(|address| !is_bound(address)) {
            report::say(&format!(
                "leasehold: `{}` {} is also {}, which this machine does not have; it is left out",
                self.option,
                self.text,
                missing.ip()
            ));
        }
        Ok(listeners)
    }
}

/// The URLs under which clients reach the server.
pub(crate) fn urls(scheme: &str, listeners: &Listeners) -> Result<Vec<String>, Failure> {
    let url = |address: SocketAddr| format!("{scheme}://{}", reachable(address));
    Ok(listeners.addresses()?.into_iter().map(url).collect())
}

/// An address to connect to, if the server listens on "any".
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => ([127, 0, 0, 1], address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}
