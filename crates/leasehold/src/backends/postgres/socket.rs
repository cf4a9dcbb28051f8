//! A socket that one runtime after the other can read and write: its store's home, which callers never block, or the
//! runtime of a call, which saves that call two thread switches.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Handle, Id};

/// The socket as registered with one runtime.
type Watch = AsyncFd<Arc<OwnedFd>>;

fn watch(runtime: &Handle, fd: &Arc<OwnedFd>) -> io::Result<Watch> {
    let _entered = runtime.enter();
    // Deprecated because a type whose descriptor changes could misuse it. Ours cannot, and the successor needs
    // `unsafe`.
    #[allow(deprecated)]
    AsyncFd::new(Arc::clone(fd))
}

struct Open {
    fd: Arc<OwnedFd>,
    home: Handle,
    /// Registered anew whenever the socket comes home: while it is away, it does not wake home.
    at_home: Option<Watch>,
    /// Kept when the socket comes home: most calls come from one runtime.
    away: Option<(Id, Watch)>,
    is_away: bool,
}

/// A connected, non-blocking socket. It starts at home.
pub(crate) struct MovableSocket(Mutex<Option<Open>>);

impl MovableSocket {
    /// Makes a socket whose home is the runtime that calls this.
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> io::Result<Arc<Self>> {
        let (home, fd) = (Handle::current(), Arc::new(fd.into()));
        let at_home = Some(watch(&home, &fd)?);
        Ok(Arc::new(MovableSocket(Mutex::new(Some(Open { fd, home, at_home, away: None, is_away: false })))))
    }

    /// Moves the socket to this runtime, which must support I/O.
    pub(crate) fn move_to(&self, runtime: &Handle) -> io::Result<()> {
        let mut open = self.0.lock();
        let open = open.as_mut().ok_or_else(closed)?;
        let id = runtime.id();
        if id == open.home.id() {
            return open.come_home();
        }
        if open.away.as_ref().is_none_or(|(known, _)| *known != id) {
            // At most one registration besides home: the older one ends first.
            open.away = None;
            open.away = Some((id, watch(runtime, &open.fd)?));
        }
        (open.at_home, open.is_away) = (None, true);
        Ok(())
    }

    /// Moves the socket back home.
    pub(crate) fn come_home(&self) -> io::Result<()> {
        self.0.lock().as_mut().ok_or_else(closed)?.come_home()
    }

    /// Closes the socket, whatever is still to be read or written.
    pub(crate) fn close(&self) {
        let _closed = self.0.lock().take();
    }
}

impl Open {
    fn come_home(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_away) {
            self.at_home = Some(watch(&self.home, &self.fd)?);
        }
        Ok(())
    }

    fn watch(&self) -> io::Result<&Watch> {
        let away = self.away.as_ref().map(|(_, watch)| watch).filter(|_| self.is_away);
        away.or(self.at_home.as_ref()).ok_or_else(closed)
    }

    /// A registration fails only when its runtime has ended, not because of the socket, which lives on at home.
    fn watch_failed(&mut self, failed: io::Error) -> io::Result<()> {
        if !self.is_away {
            return Err(failed);
        }
        self.away = None;
        self.come_home()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let watched = ready!(self.watch()?.poll_read_ready(cx));
            let mut ready = match watched {
                Ok(ready) => ready,
                Err(failed) => {
                    self.watch_failed(failed)?;
                    continue;
                }
            };
            let room = buf.initialize_unfilled();
            let asked = room.len();
            match ready.try_io(|fd| Ok(recv(fd.get_ref(), &mut *room, RecvFlags::empty())?.0)) {
                Ok(Ok(count)) => {
                    // Fewer bytes than asked for: that was all. On Linux the next bytes are a new event.
                    if cfg!(target_os = "linux") && 0 < count && count < asked {
                        ready.clear_ready();
                    }
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }

    /// Write first, then wait for room: there nearly always is some, and a new registration would have to learn that
    /// first.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match send(&self.fd, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let watched = ready!(self.watch()?.poll_write_ready(cx));
                    match watched {
                        Ok(mut ready) => ready.clear_ready(),
                        Err(failed) => self.watch_failed(failed)?,
                    }
                }
                done => return Poll::Ready(done),
            }
        }
    }
}

/// The socket as a stream for the protocol.
pub(crate) struct SocketStream {
    pub(crate) socket: Arc<MovableSocket>,
    pub(crate) closes: Closes,
}

/// Which side closes a connection that is no longer needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closes {
    Client,
    /// After a cancel: the server closes when it has passed the cancel on. If the client closed first, it would not
    /// know when that is, and PgBouncer may crash (seen with 1.18).
    Server,
}

impl SocketStream {
    fn with<T>(&self, act: impl FnOnce(&mut Open) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.socket.0.lock().as_mut().map_or_else(|| Poll::Ready(Err(closed())), act)
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.with(|open| open.poll_read(cx, buf))
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|open| open.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closes == Closes::Client {
            return self.with(|open| Poll::Ready(Ok(shutdown(&open.fd, Shutdown::Write)?)));
        }
        let mut bytes = [0; 64];
        loop {
            let mut buf = ReadBuf::new(&mut bytes);
            // However it ends, it is over.
            if ready!(self.as_mut().poll_read(cx, &mut buf)).is_err() || buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is closed")
}
