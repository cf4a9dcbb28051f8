//! Who does a connection's I/O: a task at the store's home, or the call that is under way.
//!
//! A call that is alone on its connection does the I/O itself, on its own runtime: nobody else has to be woken for
//! the question, nor for the answer. A little after it, and as soon as two calls meet, it is done at home: so a
//! connection lives on when the runtime of a call is blocked or gone, and its end is noticed there. Not at once: to
//! move the socket back and forth for calls that follow each other costs as much as a tenth of them.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::line::Line;
use super::reach::Connection;
use crate::engine::reporter;

/// How long after a call nobody does the I/O: until then the next one need not fetch it.
const VACANT: Duration = Duration::from_millis(20);

/// One connection's I/O.
pub(crate) struct Driver {
    line: Arc<Line>,
    inside: Mutex<Inside>,
    home: Arc<Home>,
}

struct Inside {
    /// None when it is over.
    connection: Option<Connection>,
    /// Calls under way.
    calls: usize,
    /// The call that does the I/O, and how it is woken.
    guest: Option<(u64, Waker)>,
    last_guest: u64,
    /// Since when nobody does it, after a guest has left.
    vacant: Option<Instant>,
    /// The task at home looks again by itself.
    is_watched: bool,
}

/// Wakes the task at home, unless a guest does its work, or did a moment ago.
#[derive(Default)]
struct Home {
    task: AtomicWaker,
    is_free: AtomicBool,
}

impl Wake for Home {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_free.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl Driver {
    /// The I/O of a connection; [`run`](Driver::run) has to be polled at its home.
    pub(crate) fn new(connection: Connection, line: Arc<Line>) -> Arc<Self> {
        let inside = Inside {
            connection: Some(connection),
            calls: 0,
            guest: None,
            last_guest: 0,
            vacant: None,
            is_watched: false,
        };
        Arc::new(Driver { line, inside: Mutex::new(inside), home: Arc::default() })
    }

    /// The task at home, until the connection is over. Dropped, it closes the connection.
    pub(crate) async fn run(self: Arc<Self>) {
        let _closing = Closing::new(&self);
        let mut timer = pin!(tokio::time::sleep(VACANT));
        std::future::poll_fn(|cx| self.poll_at_home(timer.as_mut(), cx)).await;
    }

    fn poll_at_home(&self, mut timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        self.home.task.register(cx.waker());
        let mut inside = self.inside.lock();
        if let Some(since) = inside.vacant {
            timer.as_mut().reset((since + VACANT).into());
            inside.is_watched = timer.poll(cx).is_pending();
            if !inside.is_watched {
                self.come_home(&mut inside);
            }
        } else {
            inside.is_watched = false;
            if inside.guest.is_none() {
                self.step(&mut inside, &Waker::from(Arc::clone(&self.home)));
            }
        }
        if inside.connection.is_none() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads and writes what there is, and sees to it that this waker is woken for more.
    fn step(&self, inside: &mut Inside, waker: &Waker) {
        let Some(connection) = &mut inside.connection else { return };
        if let Poll::Ready(ended) = Pin::new(connection).poll(&mut Context::from_waker(waker)) {
            if let Err(error) = ended {
                reporter::log(
                    move || tracing::debug!(%error, "a connection to the PostgreSQL server has ended"),
                );
            }
            self.end(inside);
        }
    }

    fn end(&self, inside: &mut Inside) {
        // Whoever still waits for an answer is told so by this.
        inside.connection = None;
        self.line.close();
        // So that the task ends.
        self.home.task.wake();
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        let mut inside = self.inside.lock();
        self.end(&mut inside);
        let guest = inside.guest.take();
        drop(inside);
        if let Some((_, waker)) = guest {
            waker.wake();
        }
    }

    /// A call on the connection, which must wait for nothing but the connection. Every call has to be made through
    /// this.
    pub(crate) async fn call<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let mut aboard = Aboard { driver: self, seat: Seat::None };
        std::future::poll_fn(|cx| aboard.poll(work.as_mut(), cx)).await
    }

    /// Takes the I/O home from a call whose runtime may be blocked.
    pub(crate) fn take_home(&self) {
        let mut inside = self.inside.lock();
        let guest = inside.guest.take();
        if guest.is_some() || inside.vacant.is_some() {
            self.come_home(&mut inside);
        }
        drop(inside);
        // It has to be woken by its answer from here on.
        if let Some((_, waker)) = guest {
            waker.wake();
        }
    }

    fn come_home(&self, inside: &mut Inside) {
        inside.vacant = None;
        self.home.is_free.store(false, Ordering::SeqCst);
        match self.line.come_home() {
            // What came meanwhile is seen by this, and what comes later wakes the task.
            Ok(()) => self.step(inside, &Waker::from(Arc::clone(&self.home))),
            Err(_) => self.end(inside),
        }
    }

    /// A call begins: as guest, if it is alone and on a runtime.
    fn enter(&self, waker: &Waker) -> Seat {
        let mut inside = self.inside.lock();
        inside.calls += 1;
        if inside.calls > 1 {
            drop(inside);
            self.take_home();
            return Seat::Passenger;
        }
        let here = Handle::try_current();
        match here {
            Ok(here) if inside.connection.is_some() && self.line.go_to(&here).is_ok() => {
                inside.last_guest += 1;
                let number = inside.last_guest;
                inside.guest = Some((number, waker.clone()));
                inside.vacant = None;
                self.home.is_free.store(true, Ordering::SeqCst);
                Seat::Guest(number)
            }
            _ => {
                if inside.vacant.is_some() {
                    self.come_home(&mut inside);
                }
                Seat::Passenger
            }
        }
    }

    /// A guest's turn; whether it still is one.
    fn step_as_guest(&self, number: u64, waker: &Waker) -> bool {
        let mut inside = self.inside.lock();
        let inside = &mut *inside;
        match &mut inside.guest {
            Some((guest, known)) if *guest == number => known.clone_from(waker),
            _ => return false,
        }
        self.step(inside, waker);
        inside.connection.is_some()
    }

    fn leave(&self, seat: Seat) {
        if let Seat::None = seat {
            return;
        }
        let mut inside = self.inside.lock();
        inside.calls -= 1;
        if let (Seat::Guest(number), Some((guest, _))) = (seat, &inside.guest)
            && number == *guest
        {
            inside.guest = None;
            inside.vacant = Some(Instant::now());
            if !inside.is_watched {
                inside.is_watched = true;
                drop(inside);
                self.home.task.wake();
            }
        }
    }
}

/// Closes the connection when it is dropped. The task at home has one: without that task nobody would notice the end
/// of the connection. Whoever sets a connection up has one too, in case that is given up.
pub(crate) struct Closing(Option<Arc<Driver>>);

impl Closing {
    pub(crate) fn new(driver: &Arc<Driver>) -> Self {
        Closing(Some(Arc::clone(driver)))
    }

    /// Leaves the connection open.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(driver) = &self.0 {
            driver.close();
        }
    }
}

#[derive(Clone, Copy)]
enum Seat {
    /// Not begun, or over.
    None,
    /// The I/O is done at home.
    Passenger,
    /// It does the I/O.
    Guest(u64),
}

/// A call's place on the connection, given up when it is dropped.
struct Aboard<'a> {
    driver: &'a Driver,
    seat: Seat,
}

impl Aboard<'_> {
    fn poll<F: Future>(&mut self, mut work: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let Seat::None = self.seat {
            self.seat = self.driver.enter(cx.waker());
        }
        let Seat::Guest(number) = self.seat else { return work.poll(cx) };
        // Answers come by our own steps alone, so nobody has to wake us for them.
        let mut quietly = Context::from_waker(Waker::noop());
        let asked = work.as_mut().poll(&mut quietly);
        if asked.is_ready() {
            return asked;
        }
        if self.driver.step_as_guest(number, cx.waker()) {
            return work.poll(&mut quietly);
        }
        self.seat = Seat::Passenger;
        work.poll(cx)
    }
}

impl Drop for Aboard<'_> {
    fn drop(&mut self) {
        self.driver.leave(self.seat);
    }
}
