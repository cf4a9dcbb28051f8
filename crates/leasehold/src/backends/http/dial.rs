//! Connects to the first address of a host that answers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long an address may be silent before the next one is tried beside it. A name often has an address that its
/// network cannot reach.
const SILENCE: Duration = Duration::from_millis(500);

/// Connects to the first of these addresses that accepts. Tries them in order: the next one when an attempt fails, or
/// when none has succeeded for [`SILENCE`]. If dropped, all attempts end.
pub(super) async fn dial(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut addresses = addresses.into_iter().peekable();
    let mut attempts = JoinSet::new();
    let mut failure = None;
    loop {
        if let Some(address) = addresses.next() {
            attempts.spawn(TcpStream::connect(address));
        }
        let patience = if addresses.peek().is_some() { SILENCE } else { Duration::MAX };
        let ended = match tokio::time::timeout(patience, attempts.join_next()).await {
            Err(_) => continue,
            Ok(None) => break,
            Ok(Some(ended)) => ended,
        };
        match ended.map_err(io::Error::other).and_then(|connected| connected) {
            Ok(stream) => return Ok(stream),
            // The first address is the one that its owner prefers, so its failure says most.
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

#[cfg(test)]
mod tests {
    use testkit::until::in_time;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// An address that ignores connection attempts: its listener's queue is full.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = tokio::time::timeout(SILENCE, TcpStream::connect(address)).await {
            queue.push(stream.unwrap());
        }
        (address, listener, queue)
    }

    /// An address where nothing listens.
    async fn closed() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn a_silent_or_closed_address_does_not_hide_the_next() {
        let (silent, _listener, _queue) = silent().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (open, closed) = (listener.local_addr().unwrap(), closed().await);
        for addresses in
            [vec![silent, open], vec![closed, open], vec![silent, closed, open], vec![open, silent]]
        {
            // As long as the pool allows for connecting.
            let connected = tokio::time::timeout(super::super::pool::CONNECT, dial(addresses.clone())).await;
            let stream = connected.unwrap_or_else(|_| panic!("{addresses:?}: no connection")).unwrap();
            assert_eq!(stream.peer_addr().unwrap(), open, "{addresses:?}");
        }
    }

    #[tokio::test]
    async fn if_no_address_accepts_the_first_failure_is_reported() {
        let closed = closed().await;
        let error = in_time("it fails", dial([closed, closed])).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(in_time("it fails", dial([])).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
