//! A TCP proxy in front of a real server that delays, swallows, holds back, cuts, resets and refuses on command.
//!
//! It runs on its own thread, so that its users may block their runtime or pause their time. When it is dropped,
//! everything is closed.
//!
//! One file because each fault is a method and a branch in the one loop that copies bytes, and both are read together.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Answers.
    ToClient,
}

/// Both of them.
const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// A proxy in front of one server. A chunk, below, is the result of one read from a socket: on loopback, one request
/// or answer that was written at once, or several that were in flight together.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    commands: UnboundedSender<Command>,
    thread: Option<JoinHandle<()>>,
}

/// What has passed a [`Proxy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Connections so far.
    pub accepted: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Bytes read from clients, passed on or not.
    pub from_clients: u64,
    /// Bytes passed on to the server.
    pub to_server: u64,
    /// Bytes passed on to clients.
    pub to_client: u64,
    /// Answers dropped by [`Proxy::swallow_answer`] and [`Proxy::lose_answers`].
    pub swallowed: u64,
    /// Connections that [`Proxy::cut_after`] closed.
    pub cut: u64,
}

/// A request held back by [`Proxy::hold_request`]. If it is dropped before delivery, its connection is reset and the
/// request never arrives.
#[derive(Debug)]
pub struct HeldRequest {
    caught: watch::Receiver<bool>,
    deliver: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Shared {
    plan: watch::Sender<Plan>,
    traps: Mutex<Traps>,
    accepted: AtomicU64,
    open: AtomicU64,
    from_clients: AtomicU64,
    passed: [AtomicU64; 2],
    swallowed: AtomicU64,
    cut: AtomicU64,
}

/// What applies to all bytes from now on.
#[derive(Debug, Default, Clone, Copy)]
struct Plan {
    lanes: [Lane; 2],
    /// Connections of an earlier generation are reset.
    generation: u64,
    /// How often traps were disarmed: connections whose answers are lost are then reset.
    disarmed: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Lane {
    delay: Duration,
    held: bool,
    /// Chunks read in an earlier epoch are dropped.
    epoch: u64,
}

/// Faults that happen once.
#[derive(Debug, Default)]
struct Traps {
    cuts: [Option<u64>; 2],
    swallow: Vec<(Vec<u8>, Swallow)>,
    hold: Vec<Trap>,
}

/// What happens to answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swallow {
    None,
    One,
    All,
}

#[derive(Debug)]
struct Trap {
    request: Vec<u8>,
    caught: watch::Sender<bool>,
    deliver: watch::Receiver<bool>,
}

#[derive(Debug)]
enum Command {
    /// Whether new connections are refused; the channel reports when that is in effect.
    Refuse(bool, mpsc::Sender<io::Result<()>>),
}

impl Proxy {
    /// A proxy on a free loopback port, in front of this server, that passes everything on.
    ///
    /// # Errors
    /// Those of the system, if no port or no thread is available.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into())?.listen(BACKLOG)?;
        drop(entered);
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (commands, receiver) = unbounded_channel();
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || runtime.block_on(serve(listener, address, server, &serving, receiver)))?;
        Ok(Proxy { address, shared, commands, thread: Some(thread) })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has passed until now.
    pub fn counts(&self) -> Counts {
        let Shared { accepted, open, from_clients, passed: [to_server, to_client], swallowed, cut, .. } =
            &*self.shared;
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        Counts {
            accepted: read(accepted),
            open: read(open),
            from_clients: read(from_clients),
            to_server: read(to_server),
            to_client: read(to_client),
            swallowed: read(swallowed),
            cut: read(cut),
        }
    }

    fn change(&self, directions: &[Direction], change: impl Fn(&mut Lane)) {
        self.shared
            .plan
            .send_modify(|plan| directions.iter().for_each(|d| change(&mut plan.lanes[*d as usize])));
    }

    /// Passes everything on again, without delay, including what was held back.
    pub fn pass(&self) {
        self.change(&BOTH, |lane| (lane.delay, lane.held) = (Duration::ZERO, false));
    }

    /// Delays every chunk in that direction by this much. Chunks do not wait for each other.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.change(&[direction], |lane| lane.delay = delay);
    }

    /// Holds back everything, both ways, until [`pass`](Proxy::pass) or [`discard`](Proxy::discard): connections stay
    /// open and new ones are accepted, but nothing arrives, neither bytes nor the end of a connection.
    pub fn blackhole(&self) {
        self.change(&BOTH, |lane| lane.held = true);
    }

    /// As [`blackhole`](Proxy::blackhole), one way only.
    pub fn blackhole_one_way(&self, direction: Direction) {
        self.change(&[direction], |lane| lane.held = true);
    }

    /// Passes everything on again, but drops what was held back, except the end of a connection.
    pub fn discard(&self) {
        self.change(&BOTH, |lane| {
            *lane = Lane { epoch: lane.epoch + 1, ..Lane::default() };
        });
    }

    /// Resets all open connections, to both sides.
    pub fn reset(&self) {
        self.shared.plan.send_modify(|plan| plan.generation += 1);
    }

    /// Refuses new connections, or accepts them again. In effect when this returns.
    ///
    /// # Panics
    /// If the port cannot be taken again.
    pub fn refuse(&self, refuse: bool) {
        let (done, answer) = mpsc::channel();
        self.commands.send(Command::Refuse(refuse, done)).expect("the proxy runs");
        answer.recv().expect("the proxy runs").expect("the port is still free");
    }

    /// Closes the connection on which this many more bytes have passed in that direction, counted over all connections
    /// from now on; not one more passes. Once.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.shared.traps.lock().cuts[direction as usize] = Some(bytes);
    }

    /// Passes on the next request that contains these bytes in one chunk, and drops the first chunk that the server
    /// then sends on that connection. Once. No bytes: any request.
    pub fn swallow_answer(&self, request: &[u8]) {
        self.shared.traps.lock().swallow.push((request.to_owned(), Swallow::One));
    }

    /// Passes on the next request that contains these bytes in one chunk, and drops everything that the server then
    /// sends on that connection, like a network that loses an answer: no later one takes its place. Once. No bytes:
    /// any request.
    pub fn lose_answers(&self, request: &[u8]) {
        self.shared.traps.lock().swallow.push((request.to_owned(), Swallow::All));
    }

    /// Disarms [`cut_after`](Proxy::cut_after), [`swallow_answer`](Proxy::swallow_answer) and
    /// [`lose_answers`](Proxy::lose_answers) if they have not struck yet. A connection whose answers are lost is
    /// reset: otherwise its client would not notice, and for it the fault would never end.
    pub fn disarm(&self) {
        let mut traps = self.shared.traps.lock();
        traps.cuts = [None, None];
        traps.swallow.clear();
        drop(traps);
        self.shared.plan.send_modify(|plan| plan.disarmed += 1);
    }

    /// Holds back the next request that contains these bytes in one chunk, and what follows on that connection, until
    /// delivery, even after the client has closed it. Once. No bytes: any request.
    pub fn hold_request(&self, request: &[u8]) -> HeldRequest {
        let (caught, is_caught) = watch::channel(false);
        let (deliver, is_delivered) = watch::channel(false);
        let trap = Trap { request: request.to_owned(), caught, deliver: is_delivered };
        self.shared.traps.lock().hold.push(trap);
        HeldRequest { caught: is_caught, deliver }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The thread ends, and closes everything, when its command channel closes.
        (self.commands, _) = unbounded_channel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl HeldRequest {
    /// Waits until such a request has come.
    ///
    /// # Panics
    /// If the proxy is gone.
    pub async fn caught(&mut self) {
        self.caught.wait_for(|caught| *caught).await.expect("the proxy runs");
    }

    /// Whether such a request has come.
    pub fn is_caught(&self) -> bool {
        *self.caught.borrow()
    }

    /// Passes it on to the server, however late.
    pub fn deliver(self) {
        self.deliver.send_replace(true);
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}

/// Takes a port without listening on it. The proxy takes its port a second time before it lets go of it: otherwise
/// another process could take it in between.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Accepts connections until the command channel closes.
async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    server: SocketAddr,
    shared: &Arc<Shared>,
    mut commands: UnboundedReceiver<Command>,
) {
    let mut listener = Some(listener);
    // While connections are refused, the port stays taken.
    let mut silent = None;
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Refuse(refuse, done)) => {
                    let changed = match (refuse, listener.take(), silent.take()) {
                        (true, Some(open), _) => bind(address).map(|socket| {
                            silent = Some(socket);
                            drop(open);
                        }),
                        (false, _, Some(socket)) => socket.listen(BACKLOG).map(|open| listener = Some(open)),
                        (_, open, socket) => {
                            (listener, silent) = (open, socket);
                            Ok(())
                        }
                    };
                    let _ = done.send(changed);
                }
                None => return,
            },
            Ok((client, _)) = accept => {
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                shared.open.fetch_add(1, Ordering::SeqCst);
                let plan = shared.plan.subscribe();
                let connection = Connection { shared: Arc::clone(shared), swallow: Mutex::new(Swallow::None) };
                connections.spawn(async move { connection.run(client, server, plan).await });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// A client's connection, and the matching one to the server.
struct Connection {
    shared: Arc<Shared>,
    /// What happens to the next chunk from the server.
    swallow: Mutex<Swallow>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What was read: bytes, or the end.
struct Chunk {
    bytes: Option<Vec<u8>>,
    at: Instant,
    epoch: u64,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

impl Connection {
    async fn run(self, mut client: TcpStream, server: SocketAddr, mut plan: watch::Receiver<Plan>) {
        let generation = plan.borrow_and_update().generation;
        let mut resets = plan.clone();
        let is_reset = async {
            let mut disarmed = resets.borrow().disarmed;
            loop {
                let changed =
                    resets.wait_for(|plan| (plan.generation, plan.disarmed) != (generation, disarmed));
                let Ok(now) = changed.await.map(|plan| *plan) else { return };
                disarmed = now.disarmed;
                if now.generation != generation || *self.swallow.lock() == Swallow::All {
                    return;
                }
            }
        };
        let connect = async {
            // While requests do not pass, a new connection does not either.
            let _ = plan.wait_for(|plan| !plan.lanes[Direction::ToServer as usize].held).await;
            TcpStream::connect(server).await
        };
        let mut is_reset = std::pin::pin!(is_reset);
        let server = tokio::select! {
            _ = is_reset.as_mut() => None,
            server = connect => server.ok(),
        };
        let Some(mut server) = server else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let end = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let there = self.lane(Direction::ToServer, from_client, to_server);
            let back = self.lane(Direction::ToClient, from_server, to_client);
            let both = async { tokio::try_join!(there, back).err().unwrap_or(End::Closed) };
            tokio::select! {
                _ = is_reset.as_mut() => End::Reset,
                end = both => end,
            }
        };
        if end == End::Reset {
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
    }

    /// Copies one direction. Both stay open until each side has ended its half; an error ends both at once.
    async fn lane(&self, direction: Direction, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), End> {
        let (send, queue) = unbounded_channel();
        tokio::try_join!(self.read(direction, from, send), self.write(direction, queue, to)).map(drop)
    }

    async fn read(
        &self,
        direction: Direction,
        mut from: ReadHalf<'_>,
        send: UnboundedSender<Chunk>,
    ) -> Result<(), End> {
        loop {
            let mut bytes = Vec::with_capacity(64 * 1024);
            let read = from.read_buf(&mut bytes).await;
            let (at, epoch) = (Instant::now(), self.shared.plan.borrow().lanes[direction as usize].epoch);
            match read {
                Ok(1..) => {
                    if direction == Direction::ToServer {
                        self.shared.from_clients.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                    } else if self.swallows() {
                        self.shared.swallowed.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    let _ = send.send(Chunk { bytes: Some(bytes), at, epoch });
                }
                // A client that has disconnected may have left a request behind that is held back.
                Ok(0) | Err(_) if read.is_ok() || direction == Direction::ToServer => {
                    let _ = send.send(Chunk { bytes: None, at, epoch });
                    return Ok(());
                }
                _ => return Err(End::Reset),
            }
        }
    }

    /// Whether to drop the answer that has just come.
    fn swallows(&self) -> bool {
        let mut swallow = self.swallow.lock();
        let now = *swallow;
        if now == Swallow::One {
            *swallow = Swallow::None;
        }
        now != Swallow::None
    }

    async fn write(
        &self,
        direction: Direction,
        mut queue: UnboundedReceiver<Chunk>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), End> {
        let mut plan = self.shared.plan.subscribe();
        while let Some(chunk) = queue.recv().await {
            if direction == Direction::ToServer {
                self.spring_traps(&chunk).await?;
            }
            if !wait_for_turn(direction, &chunk, &mut plan).await {
                continue;
            }
            let Some(mut bytes) = chunk.bytes else {
                let _ = to.shutdown().await;
                return Ok(());
            };
            let cut = self.cut(direction, &mut bytes);
            self.shared.passed[direction as usize].fetch_add(bytes.len() as u64, Ordering::SeqCst);
            to.write_all(&bytes).await.map_err(|_| End::Reset)?;
            if cut {
                self.shared.cut.fetch_add(1, Ordering::SeqCst);
                return Err(End::Closed);
            }
        }
        Ok(())
    }

    /// Holds back a request that matches a trap, and waits until it may pass.
    async fn spring_traps(&self, chunk: &Chunk) -> Result<(), End> {
        let Some(bytes) = &chunk.bytes else { return Ok(()) };
        let trap = {
            let mut traps = self.shared.traps.lock();
            if let Some(index) = traps.swallow.iter().position(|(request, _)| contains(bytes, request)) {
                let (_, swallow) = traps.swallow.remove(index);
                *self.swallow.lock() = swallow;
            }
            let index = traps.hold.iter().position(|trap| contains(bytes, &trap.request));
            index.map(|index| traps.hold.remove(index))
        };
        if let Some(mut trap) = trap {
            trap.caught.send_replace(true);
            trap.deliver.wait_for(|deliver| *deliver).await.map_err(|_| End::Reset)?;
        }
        Ok(())
    }

    /// Shortens the chunk to what may still pass; returns whether it was cut.
    fn cut(&self, direction: Direction, bytes: &mut Vec<u8>) -> bool {
        let mut traps = self.shared.traps.lock();
        let cut = &mut traps.cuts[direction as usize];
        let Some(left) = *cut else { return false };
        let length = bytes.len() as u64;
        *cut = (length < left).then(|| left - length);
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        cut.is_none()
    }
}

/// Waits until the chunk may pass; false if it never may.
async fn wait_for_turn(direction: Direction, chunk: &Chunk, plan: &mut watch::Receiver<Plan>) -> bool {
    loop {
        let lane = plan.borrow_and_update().lanes[direction as usize];
        if chunk.epoch < lane.epoch && chunk.bytes.is_some() {
            return false;
        }
        let due = chunk.at + lane.delay;
        if !lane.held && due <= Instant::now() {
            return true;
        }
        let sleep = async {
            if lane.held { std::future::pending().await } else { tokio::time::sleep_until(due).await }
        };
        tokio::select! {
            () = sleep => {}
            changed = plan.changed() => if changed.is_err() { return false },
        }
    }
}

#[cfg(test)]
mod tests;
