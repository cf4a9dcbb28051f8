use std::time::Instant;

use testkit::until::{in_time, until_async};
use tokio::task::JoinHandle;

use super::*;

/// The least time to watch for something that must not happen.
const A_WHILE: Duration = Duration::from_millis(20);

/// A server that sends back what it gets, and keeps it.
struct Echo {
    proxy: Proxy,
    heard: Arc<Mutex<Vec<u8>>>,
    server: JoinHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::before(listener.local_addr().unwrap()).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let all = Arc::clone(&all);
                connections.spawn(async move {
                    let mut bytes = [0; 1024];
                    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                        all.lock().extend_from_slice(&bytes[..read]);
                        if stream.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Echo { proxy, heard, server }
    }

    async fn connect(&self) -> TcpStream {
        in_time("a connection", TcpStream::connect(self.proxy.address())).await.unwrap()
    }

    fn heard(&self) -> String {
        String::from_utf8(self.heard.lock().clone()).unwrap()
    }

    async fn until_heard(&self, what: &str) {
        until_async(what, async || self.heard() == what).await;
    }

    async fn until_open(&self, connections: u64) {
        until_async("so many connections are open", async || self.proxy.counts().open == connections).await;
    }

    /// Waits until the proxy has read this many bytes of requests.
    async fn until_read(&self, bytes: u64) {
        until_async("the request is read", async || self.proxy.counts().from_clients == bytes).await;
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn ask(stream: &mut TcpStream, what: &str) {
    in_time("a request is written", stream.write_all(what.as_bytes())).await.unwrap();
}

/// Expects exactly these bytes next.
async fn comes(stream: &mut TcpStream, what: &str) {
    let mut bytes = vec![0; what.len()];
    in_time(what, stream.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), what);
}

/// Expects nothing for the time in which many requests are answered through another proxy.
async fn nothing_comes(stream: &mut TcpStream) {
    let other = Echo::start().await;
    let mut quick = other.connect().await;
    for _ in 0..20 {
        ask(&mut quick, "x").await;
        comes(&mut quick, "x").await;
    }
    let mut byte = [0];
    let read = tokio::time::timeout(A_WHILE, stream.read(&mut byte)).await;
    assert!(read.is_err(), "{read:?}");
}

/// The result of reading when the stream is over.
async fn ends(stream: &mut TcpStream) -> io::Result<usize> {
    let mut bytes = [0; 16];
    in_time("the end of a connection", stream.read(&mut bytes)).await
}

fn is_reset(end: io::Result<usize>) -> bool {
    end.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn everything_passes_and_is_counted() {
    let echo = Echo::start().await;
    let (mut one, mut two) = (echo.connect().await, echo.connect().await);
    ask(&mut one, "hello").await;
    comes(&mut one, "hello").await;
    ask(&mut two, "you").await;
    comes(&mut two, "you").await;
    let counts = echo.proxy.counts();
    assert_eq!(
        counts,
        Counts { accepted: 2, open: 2, from_clients: 8, to_server: 8, to_client: 8, swallowed: 0, cut: 0 }
    );
    // The end of one half is passed on too: the server closes, and so does the client's other half.
    in_time("one half is closed", one.shutdown()).await.unwrap();
    assert_eq!(ends(&mut one).await.unwrap(), 0);
    drop((one, two));
    echo.until_open(0).await;
}

#[tokio::test]
async fn each_direction_has_its_delay_and_chunks_are_independent() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    let delay = Duration::from_millis(100);
    for direction in BOTH {
        echo.proxy.delay(direction, delay);
        let started = Instant::now();
        ask(&mut stream, "slow").await;
        comes(&mut stream, "slow").await;
        assert!(started.elapsed() >= delay, "{direction:?}: {:?}", started.elapsed());
        echo.proxy.pass();
    }
    // A hundred in flight together take about as long as one, not a hundred times as long.
    echo.proxy.delay(Direction::ToServer, 4 * delay);
    let started = Instant::now();
    for _ in 0..100 {
        ask(&mut stream, "x").await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    comes(&mut stream, &"x".repeat(100)).await;
    assert!(started.elapsed() >= 4 * delay && started.elapsed() < 100 * delay, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_blackhole_keeps_connections_open_and_delivers_when_it_ends() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    ask(&mut stream, "a").await;
    comes(&mut stream, "a").await;
    echo.proxy.blackhole();
    ask(&mut stream, "b").await;
    // New connections are accepted, and get nothing either.
    let mut new = echo.connect().await;
    ask(&mut new, "c").await;
    echo.until_open(2).await;
    echo.until_read(2).await;
    nothing_comes(&mut new).await;
    nothing_comes(&mut stream).await;
    assert_eq!(echo.heard(), "a");
    echo.proxy.pass();
    comes(&mut stream, "b").await;
    comes(&mut new, "c").await;
}

#[tokio::test]
async fn a_blackhole_may_end_without_delivering_what_it_held() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    ask(&mut stream, "a").await;
    comes(&mut stream, "a").await;
    echo.proxy.blackhole();
    ask(&mut stream, "b").await;
    echo.until_read(2).await;
    nothing_comes(&mut stream).await;
    echo.proxy.discard();
    ask(&mut stream, "c").await;
    comes(&mut stream, "c").await;
    assert_eq!(echo.heard(), "ac");
}

#[tokio::test]
async fn a_blackhole_one_way_lets_the_other_pass() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    echo.proxy.blackhole_one_way(Direction::ToClient);
    ask(&mut stream, "a").await;
    echo.until_heard("a").await;
    nothing_comes(&mut stream).await;
    echo.proxy.pass();
    comes(&mut stream, "a").await;
    echo.proxy.blackhole_one_way(Direction::ToServer);
    ask(&mut stream, "b").await;
    echo.until_read(2).await;
    nothing_comes(&mut stream).await;
    assert_eq!(echo.heard(), "a");
}

#[tokio::test]
async fn a_reset_is_seen_as_one_and_new_connections_work() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    ask(&mut stream, "a").await;
    comes(&mut stream, "a").await;
    echo.proxy.reset();
    assert!(is_reset(ends(&mut stream).await));
    echo.until_open(0).await;
    let mut stream = echo.connect().await;
    ask(&mut stream, "b").await;
    comes(&mut stream, "b").await;
    // Also in the middle of a blackhole.
    echo.proxy.blackhole();
    let mut deaf = echo.connect().await;
    echo.until_open(2).await;
    echo.proxy.reset();
    assert!(is_reset(ends(&mut deaf).await));
    assert!(is_reset(ends(&mut stream).await));
}

#[tokio::test]
async fn refusing_new_connections_keeps_old_ones_and_can_end() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    ask(&mut stream, "a").await;
    comes(&mut stream, "a").await;
    echo.proxy.refuse(true);
    let refused = in_time("a refusal", TcpStream::connect(echo.proxy.address())).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    ask(&mut stream, "b").await;
    comes(&mut stream, "b").await;
    echo.proxy.refuse(false);
    let mut new = echo.connect().await;
    ask(&mut new, "c").await;
    comes(&mut new, "c").await;
}

#[tokio::test]
async fn a_cut_lets_exactly_so_many_bytes_pass() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    echo.proxy.cut_after(Direction::ToClient, 7);
    ask(&mut stream, "abcd").await;
    comes(&mut stream, "abcd").await;
    ask(&mut stream, "efgh").await;
    comes(&mut stream, "efg").await;
    assert_eq!(ends(&mut stream).await.unwrap_or(0), 0);
    assert_eq!((echo.heard().as_str(), echo.proxy.counts().to_client), ("abcdefgh", 7));
    // Once.
    let mut stream = echo.connect().await;
    ask(&mut stream, "0123456789").await;
    comes(&mut stream, "0123456789").await;
    echo.proxy.cut_after(Direction::ToServer, 2);
    ask(&mut stream, "xyz").await;
    assert_eq!(ends(&mut stream).await.map_or(0, |read| read.saturating_sub(2)), 0);
    echo.until_heard("abcdefgh0123456789xy").await;
}

#[tokio::test]
async fn exactly_one_answer_is_swallowed_that_of_the_request() {
    let echo = Echo::start().await;
    let (mut one, mut two) = (echo.connect().await, echo.connect().await);
    echo.proxy.swallow_answer(b"secret");
    ask(&mut two, "other").await;
    comes(&mut two, "other").await;
    ask(&mut one, "a secret").await;
    until_async("the answer is swallowed", async || echo.proxy.counts().swallowed == 1).await;
    nothing_comes(&mut one).await;
    for stream in [&mut one, &mut two] {
        ask(stream, "a secret again").await;
        comes(stream, "a secret again").await;
    }
}

#[tokio::test]
async fn after_a_lost_answer_no_other_takes_its_place() {
    let echo = Echo::start().await;
    let (mut one, mut two) = (echo.connect().await, echo.connect().await);
    echo.proxy.lose_answers(b"secret");
    ask(&mut one, "a secret").await;
    echo.until_heard("a secret").await;
    ask(&mut one, " more").await;
    echo.until_heard("a secret more").await;
    nothing_comes(&mut one).await;
    ask(&mut two, "a secret again").await;
    comes(&mut two, "a secret again").await;
}

#[tokio::test]
async fn a_held_request_is_delivered_after_its_client_is_gone() {
    let echo = Echo::start().await;
    let mut held = echo.proxy.hold_request(b"late");
    let (mut one, mut two) = (echo.connect().await, echo.connect().await);
    ask(&mut one, "first ").await;
    comes(&mut one, "first ").await;
    assert!(!held.is_caught());
    ask(&mut one, "late ").await;
    in_time("the request is caught", held.caught()).await;
    drop(one);
    ask(&mut two, "second ").await;
    comes(&mut two, "second ").await;
    assert_eq!(echo.heard(), "first second ");
    held.deliver();
    echo.until_heard("first second late ").await;
    drop(two);
    echo.until_open(0).await;
}

#[tokio::test]
async fn a_held_request_that_is_let_go_of_never_arrives() {
    let echo = Echo::start().await;
    let mut held = echo.proxy.hold_request(b"");
    let mut stream = echo.connect().await;
    ask(&mut stream, "late").await;
    in_time("the request is caught", held.caught()).await;
    drop(held);
    assert!(is_reset(ends(&mut stream).await));
    assert_eq!(echo.heard(), "");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_reset() {
    // Taken, so that nobody else gets it, and nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let proxy = Proxy::before(socket.local_addr().unwrap()).unwrap();
    // The reset may come before the client knows that it is connected.
    match in_time("a connection", TcpStream::connect(proxy.address())).await {
        Ok(mut stream) => assert!(is_reset(ends(&mut stream).await)),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[tokio::test]
async fn dropped_it_closes_everything() {
    let echo = Echo::start().await;
    let mut stream = echo.connect().await;
    ask(&mut stream, "a").await;
    comes(&mut stream, "a").await;
    let other = Proxy::before(echo.proxy.address()).unwrap();
    let address = other.address();
    let mut through = in_time("a connection", TcpStream::connect(address)).await.unwrap();
    ask(&mut through, "b").await;
    comes(&mut through, "b").await;
    drop(other);
    assert_eq!(ends(&mut through).await.unwrap_or(0), 0);
    assert!(in_time("a refusal", TcpStream::connect(address)).await.is_err());
    drop(stream);
    // And it passed on that its own connection ended.
    echo.until_open(0).await;
}

#[tokio::test]
async fn disarm_removes_unused_traps_and_resets_silenced_connections() {
    let echo = Echo::start().await;
    let (mut met, mut other) = (echo.connect().await, echo.connect().await);
    echo.proxy.lose_answers(b"lost");
    ask(&mut met, "lost").await;
    until_async("the answer is lost", async || echo.proxy.counts().swallowed == 1).await;
    echo.proxy.lose_answers(b"");
    echo.proxy.swallow_answer(b"");
    BOTH.iter().for_each(|direction| echo.proxy.cut_after(*direction, 3));
    echo.proxy.disarm();
    assert!(is_reset(ends(&mut met).await));
    ask(&mut other, "everything").await;
    comes(&mut other, "everything").await;
    let mut new = echo.connect().await;
    ask(&mut new, "everything").await;
    comes(&mut new, "everything").await;
}
