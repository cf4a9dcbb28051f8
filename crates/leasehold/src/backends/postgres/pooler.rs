//! Detects a pooler between the client and the server: with one, the server process that the login named is not the
//! one that answers.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Client;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::config::OwnOptions;
use crate::error::Result;

/// The pooler between this client and the server, if any. Both stores use the same words; in a URL:
/// `pooler=auto|none|session|transaction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooler {
    /// Detect it: if the server process that answers is not the one that the login named, there is a pooler, and the
    /// client assumes that it shares connections for the length of a transaction.
    #[default]
    Auto,
    /// No pooler. If one is found all the same, it is refused.
    None,
    /// A pooler that gives each client its own connection for as long as the client stays: as good as none.
    Session,
    /// A pooler that shares connections for the length of a transaction. Leases in tables then do without prepared
    /// statements and wake-ups; session locks are not possible.
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

/// Whether the server process that answers is the one that the login named. No I/O.
pub(super) async fn is_direct(client: &Client, answers: i32) -> bool {
    login_pid(client).await == Some(answers)
}

/// The process that the login named. Only the driver knows it, and shows it only in a cancel request. So this makes
/// the driver write one, and reads it.
async fn login_pid(client: &Client) -> Option<i32> {
    let written = Written::default();
    client.cancel_token().cancel_query_raw(written.clone(), written.clone()).await.ok()?;
    let written = written.0.lock();
    // Its length, its code, the process, its key.
    let request = written.last_chunk::<16>()?;
    Some(i32::from_be_bytes(*request[8..].first_chunk()?))
}

/// A connection to nowhere, with TLS that does nothing: keeps what is written, and answers that the server has TLS.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl TlsConnect<Written> for Written {
    type Stream = Written;
    type Error = io::Error;
    type Future = Ready<io::Result<Written>>;

    fn connect(self, stream: Written) -> Self::Future {
        ready(Ok(stream))
    }
}

impl TlsStream for Written {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Written {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buf.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Written {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
