//! Where the server listens: every address of the names it was given.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use leasehold::Error;
use leasehold_server::Listeners;

use crate::exit::Exit;
use crate::report::{self, Failure};

/// The addresses that an option names.
pub(super) struct Addresses {
    option: &'static str,
    text: String,
    pub(super) all: Vec<SocketAddr>,
}

impl Addresses {
    /// All addresses of a name and a port, each once.
    pub(super) async fn of(option: &'static str, text: &str) -> Result<Self, Error> {
        let bad =
            || Error::invalid(format!("`{option}` takes an address and a port, for example 127.0.0.1:7420"));
        // Not on this thread: a name server may take its time, and signals are heeded meanwhile.
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

    /// Listens on all of them, and says which of them this machine does not have.
    pub(super) fn listen(&self) -> Result<Listeners, Failure> {
        let listeners = leasehold_server::listen(&self.all).map_err(|(address, error)| {
            // No fault of the store, but as it is there: later or elsewhere it may go well.
            Failure::Ended(Exit::Store, format!("cannot listen on {address}: {error}"))
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

/// Under which URLs clients reach it.
pub(super) fn urls(scheme: &str, listeners: &Listeners) -> Result<Vec<String>, Failure> {
    let url = |address: SocketAddr| format!("{scheme}://{}", reachable(address));
    Ok(listeners.addresses()?.into_iter().map(url).collect())
}

/// An address to connect to, where the one listened on is "any".
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => ([127, 0, 0, 1], address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}
