//! A server in this process, and a client that writes its requests byte by byte.

use leasehold::Locks;
use leasehold::backend::Backend;
use leasehold::backends::memory::Memory;
use leasehold::clock::SystemClock;
use leasehold_server::{App, Log, LogForm, Settings, serve};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use testkit::faulty::{Faulty, Verb};
use testkit::until::{in_time, until_async};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) app: Arc<App>,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Server::on(Locks::connect("memory:").await.unwrap(), Settings::default()).await
    }

    pub(crate) async fn on(locks: Locks, settings: Settings) -> Self {
        let app = App::new(locks, settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(Arc::clone(&app), listener, None, async {
            let _ = stopped.await;
        }));
        Server { address, app, stop: Some(stop), task }
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the server has ended.
    pub(crate) async fn ended(&mut self) {
        in_time("the server ends", &mut self.task).await.unwrap().unwrap();
    }

    /// Stops the server, and starts another on the same store. By then all background work of the first is done.
    pub(crate) async fn replaced(mut self, store: &Faulty) -> Self {
        self.stop();
        self.ended().await;
        // Everything still running holds a reference to this.
        let app = &self.app;
        until_async("nothing of the server is left", async || Arc::strong_count(app) == 1).await;
        Server::on(locks(store), Settings::default()).await
    }

    /// Disconnects, and returns when the server has noticed. For servers that share one thread with their test: they
    /// handle events in order of arrival, and the disconnect arrives before the exchange.
    pub(crate) async fn hang_up(&self, connection: TcpStream) {
        drop(connection);
        assert_eq!(self.get("/healthz").await.status, 200);
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body).await
    }

    /// POST to a verb of a lock.
    pub(crate) async fn verb(&self, name: &str, verb: &str, body: Value) -> Answer {
        let path = format!("/v1/locks/{}/{verb}", leasehold::wire::segment(name));
        self.post(&path, &body.to_string()).await
    }

    pub(crate) async fn acquire(&self, name: &str) -> Answer {
        self.verb(name, "acquire", serde_json::json!({"owner_id": "me", "ttl_ms": 30_000})).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let bytes = request(method, path, headers, body);
        let read = async {
            let mut stream = self.raw(&bytes).await;
            let mut answer = Vec::new();
            // Even if the server resets the connection after its answer, the answer has arrived.
            let _ = stream.read_to_end(&mut answer).await;
            Answer::parse(&answer)
        };
        in_time("the server answers", read).await
    }

    /// Opens a connection and sends these bytes on it.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may refuse before it has read everything.
        let _ = stream.write_all(bytes).await;
        stream
    }

    /// Looks at a lock until the condition holds.
    pub(crate) async fn until(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/locks/{}", leasehold::wire::segment(name));
        let mut seen = Value::Null;
        until_async(&format!("{name:?} is as the test expects"), async || {
            seen = self.get(&path).await.body;
            is_so(&seen)
        })
        .await;
        seen
    }
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer {
            status,
            head: head.to_ascii_lowercase(),
            text: body.to_owned(),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.starts_with(&format!("{name}: ")))?;
        line.split_once(": ").map(|(_, value)| value)
    }

    /// Checks that it is an error in the form of RFC 9457, with this code.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["code"], code, "{self:?}");
        assert!(self.body["error"].is_string() && self.body["retryable"].is_boolean(), "{self:?}");
        assert!(self.body["type"] == "about:blank" && self.body["title"].is_string(), "{self:?}");
        assert_eq!(self.body["detail"], self.body["error"]);
    }
}

/// A server on a store whose calls can be observed, delayed and made to fail.
pub(crate) async fn faulty() -> (Server, Faulty) {
    faulty_with(Settings::default()).await
}

pub(crate) async fn faulty_with(settings: Settings) -> (Server, Faulty) {
    let store = Faulty::new(Memory::new(), Arc::new(SystemClock));
    (Server::on(locks(&store), settings).await, store)
}

/// The locks of such a store.
pub(crate) fn locks(store: &Faulty) -> Locks {
    Locks::builder(Arc::new(store.clone()) as Arc<dyn Backend>).build()
}

/// Waits until the store was asked this often.
pub(crate) async fn asked(store: &Faulty, verb: Verb, times: usize) {
    until_async(&format!("{verb:?} number {times}"), async || store.count(verb) >= times).await;
}

/// Waits until the store has answered this often.
pub(crate) async fn answered(store: &Faulty, verb: Verb, times: usize) {
    let is_answered = |call: &testkit::faulty::Call| call.answer.is_some();
    let count = || store.calls(verb).into_iter().filter(is_answered).count();
    until_async(&format!("the answer to {verb:?} number {times}"), async || count() >= times).await;
}

/// The log lines of a server.
pub(crate) struct Lines {
    log: Log,
    written: Written,
}

/// A buffer from which a log can be read back.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Sends the log of these settings into the buffer.
    pub(crate) fn of(settings: &mut Settings, form: LogForm) -> Self {
        let written = Written::default();
        settings.log = Log::to(written.clone(), form).unwrap();
        Lines { log: settings.log.clone(), written }
    }

    /// Everything logged so far.
    pub(crate) fn text(&self) -> String {
        self.log.flush();
        String::from_utf8(self.written.0.lock().unwrap().clone()).unwrap()
    }

    /// The JSON log lines about operations, without those of sweeps.
    pub(crate) fn json(&self) -> Vec<Value> {
        let lines =
            self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        lines.into_iter().filter(|line| line["op"] != "sweep").collect()
    }
}
