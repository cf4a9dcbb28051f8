//! Reads a connection ahead of hyper, to notice that the client has disconnected.
//!
//! While hyper answers a request, it reads on only if its buffer is empty. A single byte after a request, such as a
//! second request or an empty line, would hide the disconnect.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much a client may send ahead while it waits for an answer.
const MOST: usize = 64 << 10;

/// One of several handles to a stream. One task uses all of them.
pub(super) struct Ahead<S>(Arc<Mutex<Buffered<S>>>);

struct Buffered<S> {
    stream: S,
    /// Bytes read ahead that hyper has not asked for yet.
    read: Vec<u8>,
}

impl<S> Ahead<S> {
    pub(super) fn new(stream: S) -> Self {
        Ahead(Arc::new(Mutex::new(Buffered { stream, read: Vec::new() })))
    }

    /// Another handle to the same stream.
    pub(super) fn another(&self) -> Self {
        Ahead(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + Unpin> Ahead<S> {
    /// Reads what has arrived. Ready when the client has disconnected, or has sent more than it may.
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
            // Few clients ever send ahead, and those seldom twice: free the buffer.
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
