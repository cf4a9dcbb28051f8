//! The sockets that a server listens on: one for each address of the name it was given.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How many may wait to be accepted, if the system allows it (`net.core.somaxconn`). All clients of a server that was
/// started again come at once; one that finds no room tries again only after a second.
const BACKLOG: u32 = 16_384;

/// How often the system may choose a port that is free for one address and taken for another.
const TRIES: usize = 16;

/// Several sockets that are accepted from as if they were one.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<TcpListener>,
    /// Whose turn it is to be looked at first: one with many clients does not keep out those of another.
    next: usize,
}

impl From<TcpListener> for Listeners {
    fn from(listener: TcpListener) -> Self {
        Listeners { all: vec![listener], next: 0 }
    }
}

impl Listeners {
    /// Where they listen.
    ///
    /// # Errors
    /// Those of the system.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.all.iter().map(TcpListener::local_addr).collect()
    }

    pub(crate) async fn accept(&mut self) -> io::Result<TcpStream> {
        poll_fn(|cx| {
            for place in 0..self.all.len() {
                let which = (self.next + place) % self.all.len();
                if let Poll::Ready(accepted) = self.all[which].poll_accept(cx) {
                    self.next = which + 1;
                    return Poll::Ready(accepted.map(|(stream, _)| stream));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Listens on all of these addresses, where many clients may come at once. Port 0 becomes one free port for all of them.
///
/// An address that this machine does not have is left out, unless there is no other: a name often has one for IPv6 where
/// that is off.
///
/// # Errors
/// With the address that cannot be had, and why.
pub fn listen(addresses: &[SocketAddr]) -> Result<Listeners, (SocketAddr, io::Error)> {
    let is_free_choice = addresses.iter().all(|address| address.port() == 0);
    for _ in 1..TRIES {
        match listen_once(addresses) {
            // The port is free for one address and taken for another: the system chooses again.
            Err((_, error)) if is_free_choice && error.kind() == io::ErrorKind::AddrInUse => {}
            outcome => return outcome,
        }
    }
    listen_once(addresses)
}

fn listen_once(addresses: &[SocketAddr]) -> Result<Listeners, (SocketAddr, io::Error)> {
    let (mut all, mut missing, mut chosen) = (Vec::new(), None, None);
    for &address in addresses {
        let mut address = address;
        if let (0, Some(port)) = (address.port(), chosen) {
            address.set_port(port);
        }
        match listen_on(address) {
            Ok(listener) => {
                chosen = listener.local_addr().ok().map(|bound| bound.port());
                all.push(listener);
            }
            Err(error) if is_missing(&error) => missing = Some((address, error)),
            Err(error) => return Err((address, error)),
        }
    }
    match missing {
        Some(missing) if all.is_empty() => Err(missing),
        _ => Ok(Listeners { all, next: 0 }),
    }
}

/// Whether this machine has no such address, or not even its kind.
fn is_missing(error: &io::Error) -> bool {
    let no_kind = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_kind)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // So that a restarted server gets its address back while its old connections are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
