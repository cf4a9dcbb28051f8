//! A socket that can be read and written from more than one runtime, though only from one at a time: from the home
//! of its store, which is never blocked, or from where a call was made, which saves two switches of threads.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::runtime::{Handle, Id};

/// A connected socket that does not block.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(buf),
            Socket::Unix(stream) => (&*stream).read(buf),
        }
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(buf),
            Socket::Unix(stream) => (&*stream).write(buf),
        }
    }

    fn finish(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Write),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

/// Runtimes that do no I/O, as far as is known. They cannot be asked: one that is tried panics, which is caught, but
/// may have been printed. So each is tried once, whatever connection it was for.
#[derive(Debug, Clone, Default)]
pub(crate) struct WithoutIo(Arc<Mutex<Vec<Id>>>);

/// Runtimes that are remembered; there is hardly ever one. One that is forgotten is tried again.
const WITHOUT_IO_KNOWN: usize = 64;

impl WithoutIo {
    /// Ids may be used again: the next one would then have its I/O done at home, which is slower and right.
    fn has(&self, runtime: &Handle) -> bool {
        self.0.lock().contains(&runtime.id())
    }

    fn add(&self, runtime: &Handle) {
        let mut known = self.0.lock();
        if known.len() == WITHOUT_IO_KNOWN {
            known.remove(0);
        }
        known.push(runtime.id());
    }
}

/// The socket as one runtime watches it.
struct Watch {
    runtime: Handle,
    fd: AsyncFd<Arc<Socket>>,
    /// Whether it is watched for room to write too. Hardly ever needed, and to begin with it costs a wake-up.
    writes: bool,
}

impl Watch {
    fn new(runtime: &Handle, without_io: &WithoutIo, socket: &Arc<Socket>, writes: bool) -> io::Result<Self> {
        if without_io.has(runtime) {
            return Err(no_io());
        }
        let interest = if writes { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let _entered = runtime.enter();
        // Deprecated because a type whose descriptor changes under it could misuse it; ours cannot, and the successor
        // needs `unsafe`. A runtime without I/O panics, and cannot be asked beforehand.
        #[allow(deprecated)]
        let fd = catch_unwind(AssertUnwindSafe(|| AsyncFd::with_interest(Arc::clone(socket), interest)))
            .map_err(|_| {
            without_io.add(runtime);
            no_io()
        })??;
        Ok(Watch { runtime: runtime.clone(), fd, writes })
    }
}

struct Inside {
    socket: Arc<Socket>,
    without_io: WithoutIo,
    home: Handle,
    /// Made anew whenever the socket comes home: while it is away, home is not to be woken by it.
    at_home: Option<Watch>,
    /// Kept: most calls come from one runtime.
    away: Option<Watch>,
    is_away: bool,
}

/// The socket. It is at home to begin with.
pub(crate) struct Line(Mutex<Option<Inside>>);

impl Line {
    /// A socket whose home is the runtime this is called on.
    pub(crate) fn new(socket: Socket, without_io: WithoutIo) -> io::Result<Arc<Self>> {
        let (home, socket) = (Handle::current(), Arc::new(socket));
        let at_home = Some(Watch::new(&home, &without_io, &socket, false)?);
        let inside = Inside { socket, without_io, home, at_home, away: None, is_away: false };
        Ok(Arc::new(Line(Mutex::new(Some(inside)))))
    }

    /// Lets another runtime watch it.
    pub(crate) fn go_to(&self, runtime: &Handle) -> io::Result<()> {
        let mut inside = self.0.lock();
        let inside = inside.as_mut().ok_or_else(closed)?;
        if runtime.id() == inside.home.id() {
            return inside.come_home();
        }
        if inside.away.as_ref().is_none_or(|watch| watch.runtime.id() != runtime.id()) {
            // At most one besides home: the older one is given up first.
            inside.away = None;
            inside.away = Some(Watch::new(runtime, &inside.without_io, &inside.socket, false)?);
        }
        (inside.at_home, inside.is_away) = (None, true);
        Ok(())
    }

    /// Lets home watch it again.
    pub(crate) fn come_home(&self) -> io::Result<()> {
        self.0.lock().as_mut().ok_or_else(closed)?.come_home()
    }

    /// Closes it, whatever is still to be read or written.
    pub(crate) fn close(&self) {
        let _closed = self.0.lock().take();
    }
}

impl Inside {
    fn come_home(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_away) {
            self.at_home = Some(Watch::new(&self.home, &self.without_io, &self.socket, false)?);
        }
        Ok(())
    }

    fn watch(&mut self) -> io::Result<&mut Watch> {
        let watch = if self.is_away { &mut self.away } else { &mut self.at_home };
        watch.as_mut().ok_or_else(closed)
    }

    /// A watch fails when its runtime has ended, and not for anything that happened to the socket: it lives on at home.
    fn escape(&mut self, failed: io::Error) -> io::Result<()> {
        if !self.is_away {
            return Err(failed);
        }
        self.away = None;
        self.come_home()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let watched = ready!(self.watch()?.fd.poll_read_ready(cx));
            let mut ready = match watched {
                Ok(ready) => ready,
                Err(failed) => {
                    self.escape(failed)?;
                    continue;
                }
            };
            let room = buf.initialize_unfilled();
            let asked = room.len();
            match ready.try_io(|fd| fd.get_ref().read(room)) {
                Ok(Ok(count)) => {
                    // Fewer than asked for: that was all. The next bytes are an event of their own on Linux.
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

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.socket.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
            let socket = Arc::clone(&self.socket);
            let watch = self.watch()?;
            if !watch.writes {
                // One watch per runtime and socket: the narrow one goes first, and with it whoever waited to read.
                let (runtime, is_away) = (watch.runtime.clone(), self.is_away);
                let slot = if is_away { &mut self.away } else { &mut self.at_home };
                *slot = None;
                match Watch::new(&runtime, &self.without_io, &socket, true) {
                    Ok(watch) => *slot = Some(watch),
                    Err(failed) => {
                        self.escape(failed)?;
                        continue;
                    }
                }
                cx.waker().wake_by_ref();
            }
            let watched = ready!(self.watch()?.fd.poll_write_ready(cx));
            match watched {
                Ok(mut ready) => ready.clear_ready(),
                Err(failed) => self.escape(failed)?,
            }
        }
    }
}

/// The socket as the driver of the protocol uses it.
pub(crate) struct LineStream(pub(crate) Arc<Line>);

impl LineStream {
    fn with<T>(&self, act: impl FnOnce(&mut Inside) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut *self.0.0.lock() {
            Some(inside) => act(inside),
            None => Poll::Ready(Err(closed())),
        }
    }
}

impl AsyncRead for LineStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.with(|inside| inside.poll_read(cx, buf))
    }
}

impl AsyncWrite for LineStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|inside| inside.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|inside| Poll::Ready(inside.socket.finish()))
    }
}

fn no_io() -> io::Error {
    io::Error::other("this runtime does no I/O")
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is closed")
}
