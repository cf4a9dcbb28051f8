//! Whether a pooler stands between us and the server: then the server process we were told of at login is not the
//! one that answers.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex,
};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::config::OwnOptions;
use crate::error::Result;

/// What stands between this client and the server, with the same words for both stores: a URL says
/// `pooler=auto|none|session|transaction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooler {
    /// To be found out: if the server process that answers is not the one the login told of, there is a pooler, and
    /// it is taken for one that shares connections for the length of a transaction.
    #[default]
    Auto,
    /// Nothing. A pooler that is found all the same is refused.
    None,
    /// A pooler that gives each client a connection of its own for as long as it stays: as good as none.
    Session,
    /// A pooler that shares connections for the length of a transaction. Leases in tables then do without prepared
    /// statements and wake-ups; session locks cannot be had.
    Transaction,
}

impl Pooler {
    /// The option of a URL.
    pub(super) fn take(own: &mut OwnOptions) -> Result<Self> {
        let words = [
            ("auto", Pooler::Auto),
            ("none", Pooler::None),
            ("session", Pooler::Session),
            ("transaction", Pooler::Transaction),
        ];
        Ok(own.choice("pooler", &words)?.unwrap_or_default())
    }
}

/// Whether the server process that answers, by its own word, is the one that the login told of. No I/O.
pub(super) async fn is_direct(client: &Client, answers: i32) -> bool {
    told_pid(client).await == Some(answers)
}

/// The process that the login told of. The driver keeps it for cancelling, so this lets it write a request to cancel
/// into a pipe and reads it there.
async fn told_pid(client: &Client) -> Option<i32> {
    let (theirs, mut ours) = duplex(64);
    // The answer to a question for TLS, if it asks one.
    ours.write_all(b"S").await.ok()?;
    client.cancel_token().cancel_query_raw(theirs, Plain).await.ok()?;
    let mut written = Vec::new();
    ours.read_to_end(&mut written).await.ok()?;
    // Its length, its code, the process, its key.
    let request = written.last_chunk::<16>()?;
    let pid = request[8..12].try_into().ok()?;
    Some(i32::from_be_bytes(pid))
}

/// TLS that does nothing.
struct Plain;

struct PlainStream(DuplexStream);

impl TlsConnect<DuplexStream> for Plain {
    type Stream = PlainStream;
    type Error = io::Error;
    type Future = Ready<io::Result<PlainStream>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        ready(Ok(PlainStream(stream)))
    }
}

impl TlsStream for PlainStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
