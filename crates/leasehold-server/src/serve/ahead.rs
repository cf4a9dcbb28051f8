//! Reads a connection ahead of hyper, to notice that the client has gone.
//!
//! While a request is answered, hyper reads on only if nothing lies unread in its buffer. One byte behind a request, as
//! of a second request or an empty line, and a client that goes is not seen to go.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much a client may send ahead while it waits for an answer.
const MOST: usize = 64 << 10;

/// One of the handles of a stream. All are used by one task.
pub(super) struct Ahead<S>(Arc<Mutex<Buffered<S>>>);

struct Buffered<S> {
    stream: S,
    /// What was read and not yet asked for.
    read: Vec<u8>,
}

impl<S> Ahead<S> {
    pub(super) fn new(stream: S) -> Self {
        Ahead(Arc::new(Mutex::new(Buffered { stream, read: Vec::new() })))
    }

    /// Another handle of the same stream.
    pub(super) fn another(&self) -> Self {
        Ahead(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin> Ahead<S> {
    /// Reads what is there. Ready when the other side has gone, or has sent more than it may.
    pub(super) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Buffered { stream, read } = &mut *self.0.lock();
        let mut bytes = [0; 1024];
        while read.len() <= MOST {
            let mut buffer = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => read.extend_from_slice(buffer.filled()),
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Buffered { stream, read } = &mut *self.0.lock();
        if read.is_empty() {
            return Pin::new(stream).poll_read(cx, buffer);
        }
        let taken = read.len().min(buffer.remaining());
        buffer.put_slice(&read[..taken]);
        read.drain(..taken);
        if read.is_empty() {
            // Few ever send ahead, and then once.
            *read = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.lock().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.lock().stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_shutdown(cx)
    }
}
