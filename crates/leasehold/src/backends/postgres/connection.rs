//! Decides which runtime does a connection's I/O: the task at home, or the call under way.
//!
//! A connection lives at home, on the library's runtime (`backends/runtimes.rs`). So it outlives its callers' runtimes,
//! and its end is noticed while they are blocked. But a call that is alone on the connection does the I/O itself, on
//! its own runtime: then no other thread has to be woken to send the request or to receive the answer. The task at home
//! takes the I/O back as soon as two calls meet, and 20 ms after the last call. Not sooner, because moving the socket
//! back and forth between calls costs a tenth of their speed.
//!
//! This is needed to meet the floor of `make bench-postgres` for session locks, 0.9 of bare statements. Their sessions
//! cannot live on a caller's runtime, as connections to Redis do, because they hold locks that outlive it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Sleep;

use super::connect::Protocol;
use super::socket::MovableSocket;
use crate::backends::runtimes::PerRuntime;
use crate::engine::reporter;

/// How long the socket stays with the runtime of the last call, so that its next call need not fetch it back.
const LINGER: Duration = Duration::from_millis(20);

/// A connection whose calls may come from any runtime.
pub(crate) struct Connection {
    socket: Arc<MovableSocket>,
    runtimes: Arc<PerRuntime>,
    state: Mutex<State>,
    home: Arc<HomeTask>,
}

struct State {
    /// `None` when the connection has ended.
    protocol: Option<Protocol>,
    /// Calls under way.
    calls: usize,
    io: Io,
    last_number: u64,
    /// The task at home has set its timer, and will look again by itself.
    is_timed: bool,
}

/// Which side does the I/O.
enum Io {
    /// The task at home.
    Home,
    /// The call with this number; the waker wakes it.
    Call(u64, Waker),
    /// Neither: the last call ended at this time, and the socket is still registered with its runtime.
    Lingering(Instant),
}

/// Wakes the task at home, unless it has no I/O to do.
#[derive(Default)]
struct HomeTask {
    waker: AtomicWaker,
    is_free: AtomicBool,
}

impl Wake for HomeTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_free.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

impl Connection {
    /// Makes a connection; [`run`](Connection::run) must be polled at the socket's home.
    pub(crate) fn new(
        protocol: Protocol,
        socket: Arc<MovableSocket>,
        runtimes: &Arc<PerRuntime>,
    ) -> Arc<Self> {
        let state =
            State { protocol: Some(protocol), calls: 0, io: Io::Home, last_number: 0, is_timed: false };
        let (runtimes, state) = (Arc::clone(runtimes), Mutex::new(state));
        Arc::new(Connection { socket, runtimes, state, home: Arc::default() })
    }

    /// The task at home, until the connection ends. Dropping it closes the connection, because nothing would notice
    /// its end.
    pub(crate) async fn run(self: Arc<Self>) {
        let _closing = Closing(&self);
        let mut timer = pin!(tokio::time::sleep(LINGER));
        std::future::poll_fn(|cx| self.poll_at_home(timer.as_mut(), cx)).await;
    }

    fn poll_at_home(&self, mut timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        self.home.waker.register(cx.waker());
        let mut state = self.state.lock();
        state.is_timed = false;
        match state.io {
            Io::Home => self.step_at_home(&mut state),
            Io::Call(..) => {}
            Io::Lingering(since) => {
                timer.as_mut().reset((since + LINGER).into());
                state.is_timed = timer.poll(cx).is_pending();
                if !state.is_timed {
                    self.come_home(&mut state);
                }
            }
        }
        if state.protocol.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn step_at_home(&self, state: &mut State) {
        self.step(state, &Waker::from(Arc::clone(&self.home)));
    }

    /// Reads and writes what is possible, and makes sure that this waker is woken for more.
    fn step(&self, state: &mut State, waker: &Waker) {
        let Some(protocol) = &mut state.protocol else { return };
        if let Poll::Ready(ended) = Pin::new(protocol).poll(&mut Context::from_waker(waker)) {
            if let Err(error) = ended {
                reporter::log(
                    move || tracing::debug!(%error, "a connection to the PostgreSQL server has ended"),
                );
            }
            self.end(state);
        }
    }

    fn end(&self, state: &mut State) {
        // This tells the calls that still wait for an answer.
        state.protocol = None;
        self.socket.close();
        // So that the task ends.
        self.home.waker.wake();
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        self.end(&mut state);
        let io = std::mem::replace(&mut state.io, Io::Home);
        drop(state);
        wake_call(io);
    }

    /// Makes a call on the connection; the call may wait only for the connection. As soon as the task at home runs,
    /// every call must go through this.
    pub(crate) async fn call<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let mut call = Call { connection: self, io: CallIo::NotBegun };
        std::future::poll_fn(|cx| call.poll(work.as_mut(), cx)).await
    }

    /// Takes the I/O home from a call whose runtime may be blocked.
    pub(crate) fn take_home(&self) {
        let mut state = self.state.lock();
        let io = std::mem::replace(&mut state.io, Io::Home);
        if !matches!(io, Io::Home) {
            self.come_home(&mut state);
        }
        drop(state);
        // From now on its answer has to wake it.
        wake_call(io);
    }

    fn come_home(&self, state: &mut State) {
        state.io = Io::Home;
        self.home.is_free.store(false, Ordering::SeqCst);
        match self.socket.come_home() {
            // This sees what came meanwhile; later data wakes the task.
            Ok(()) => self.step_at_home(state),
            Err(_) => self.end(state),
        }
    }

    /// Begins a call. It does the I/O itself if it is alone, on a runtime that can.
    fn begin(&self, waker: &Waker) -> CallIo {
        let here = self.runtimes.here();
        let mut state = self.state.lock();
        state.calls += 1;
        if state.calls > 1 {
            drop(state);
            self.take_home();
            return CallIo::AtHome;
        }
        match here {
            Some(here) if state.protocol.is_some() && self.socket.move_to(&here).is_ok() => {
                state.last_number += 1;
                let number = state.last_number;
                state.io = Io::Call(number, waker.clone());
                self.home.is_free.store(true, Ordering::SeqCst);
                CallIo::Own(number)
            }
            _ => {
                if let Io::Lingering(_) = state.io {
                    self.come_home(&mut state);
                }
                CallIo::AtHome
            }
        }
    }

    /// One step of a call. Returns whether it still does its own I/O.
    fn step_of_call(&self, number: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        match &mut state.io {
            Io::Call(current, known) if *current == number => known.clone_from(waker),
            _ => return false,
        }
        self.step(&mut state, waker);
        state.protocol.is_some()
    }

    fn end_of_call(&self, io: &CallIo) {
        if let CallIo::NotBegun = io {
            return;
        }
        let mut state = self.state.lock();
        state.calls -= 1;
        if let (CallIo::Own(number), Io::Call(current, _)) = (io, &state.io)
            && number == current
        {
            state.io = Io::Lingering(Instant::now());
            if !std::mem::replace(&mut state.is_timed, true) {
                drop(state);
                self.home.waker.wake();
            }
        }
    }
}

fn wake_call(io: Io) {
    if let Io::Call(_, waker) = io {
        waker.wake();
    }
}

struct Closing<'a>(&'a Connection);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Who does a call's I/O.
enum CallIo {
    NotBegun,
    AtHome,
    /// By the call, which has this number.
    Own(u64),
}

/// A call under way, until it is dropped.
struct Call<'a> {
    connection: &'a Connection,
    io: CallIo,
}

impl Call<'_> {
    fn poll<F: Future>(&mut self, mut work: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let CallIo::NotBegun = self.io {
            self.io = self.connection.begin(cx.waker());
        }
        let CallIo::Own(number) = self.io else { return work.poll(cx) };
        // Answers come only through our own steps, so nothing has to wake us for them.
        let mut quietly = Context::from_waker(Waker::noop());
        let asked = work.as_mut().poll(&mut quietly);
        if asked.is_ready() {
            return asked;
        }
        if self.connection.step_of_call(number, cx.waker()) {
            return work.poll(&mut quietly);
        }
        self.io = CallIo::AtHome;
        work.poll(cx)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.connection.end_of_call(&self.io);
    }
}
