//! The sockets a server listens on: one for each address of the given name.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How many connections may wait to be accepted, if the system allows it (`net.core.somaxconn`). After a restart all
/// clients reconnect at once, and one that finds no room retries only after a second.
const BACKLOG: u32 = 16_384;

/// How often to retry when the system chooses a port that is free on one address and taken on another.
const TRIES: usize = 16;

/// Several sockets that accept connections as if they were one.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<TcpListener>,
    /// Which socket is checked first. The sockets take turns, so that a busy one keeps out no client of another.
    next: usize,
}

impl From<TcpListener> for Listeners {
    fn from(listener: TcpListener) -> Self {
        Listeners { all: vec![listener], next: 0 }
    }
}

impl Listeners {
    /// The addresses of the sockets.
    ///
    /// # Errors
    /// Those of the operating system.
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

/// Listens on all of these addresses, with room for many clients at once. Port 0 becomes one free port for all of
/// them.
///
/// An address that this machine does not have is left out, unless there is no other: a name often has an IPv6 address
/// where IPv6 is off.
///
/// # Errors
/// The address that cannot be used, and why.
pub fn listen(addresses: &[SocketAddr]) -> Result<Listeners, (SocketAddr, io::Error)> {
    let is_free_choice = addresses.iter().all(|address| address.port() == 0);
    for _ in 1..TRIES {
        match listen_once(addresses) {
            // The port is free on one address and taken on another: let the system choose again.
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

/// Whether this machine lacks the address, or its whole address family.
fn is_missing(error: &io::Error) -> bool {
    let no_kind = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_kind)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Lets a restarted server reuse its address while old connections are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
