//! Turns with a bare HTTP client of a lock server: it waits behind a holder, and vanishes at some stage, with a close,
//! a half-close or a reset, and with or without more bytes after its request.

use std::time::Duration;

use leasehold::{Guard, LeaseId};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::history::record::{Face, Kind};

use super::Player;
use super::leases::margin;
use super::pen::{Pen, now};
use super::turns::BESIDE;

/// How long the bare client would wait.
const WAIT: Duration = Duration::from_secs(5);

/// How long, and how often, the holder checks whether a vanished client leaves the queue. The judge reports a
/// violation sooner.
const LOOKS_FOR: Duration = Duration::from_secs(4);
const LOOKS_EVERY: Duration = Duration::from_millis(20);

/// When the bare client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// After a part of the head of its request.
    Head,
    /// After a part of the request's body.
    Body,
    /// As soon as it has sent the whole request.
    Sent,
    /// In the queue, by closing the connection.
    Queued,
    /// In the queue, by closing only its sending side.
    HalfClosed,
    /// In the queue, by resetting the connection.
    Reset,
    /// In the queue, after it has also sent a second, whole request.
    Pipelined,
    /// In the queue, after it has also sent a part of a second request.
    PartBehind,
    /// Not at all: it gets the lock.
    Never,
}

const STAGES: [Stage; 9] = [
    Stage::Head,
    Stage::Body,
    Stage::Sent,
    Stage::Queued,
    Stage::HalfClosed,
    Stage::Reset,
    Stage::Pipelined,
    Stage::PartBehind,
    Stage::Never,
];

/// The server's host and port, if no secret is needed to use it.
fn address(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://")?;
    let host = rest.split(['/', '?']).next()?;
    (!host.contains('@')).then_some(host)
}

fn post(host: &str, name: &str, verb: &str, body: &Value) -> (String, String) {
    let (name, body) = (name.replace('/', "%2F"), body.to_string());
    let head = format!(
        "POST /v1/locks/{name}/{verb} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head, body)
}

/// One answer: its status and its body. `None` if the connection closes first.
async fn answer(stream: &mut TcpStream) -> Option<(u16, Value)> {
    let mut read = Vec::new();
    let (head, length) = loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            read.drain(..end + 4);
            break (head, length.unwrap_or(0));
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    };
    while read.len() < length {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, serde_json::from_slice(&read[..length]).unwrap_or(Value::Null)))
}

impl Player {
    /// Holds the lock, lets a bare client wait behind it, and checks whether that leaves the queue when it vanishes.
    pub(super) async fn vanish(&mut self) {
        let task = std::sync::Arc::clone(&self.task);
        let Some(host) = address(&task.url) else { return };
        let Some(guard) = self.acquire_guard(Face::Usual).await else { return };
        let patience = Duration::from_millis(self.task.patience_ms);
        let Ok(Ok(mut stream)) = tokio::time::timeout(patience, TcpStream::connect(host)).await else {
            return self.finish(guard).await;
        };
        let stage = STAGES[self.dice.below(STAGES.len() as u64) as usize];
        let mut beside = self.pen.clone();
        (beside.task, beside.claim) =
            (self.pen.task + BESIDE, self.claims.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        beside.know(None, 0);
        let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
        let body = serde_json::json!({
            "owner_id": super::queue::owner(beside.worker, beside.claim),
            "ttl_ms": u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            "wait_ms": wait_ms,
        });
        let (head, body) = post(host, &self.name().name, "acquire", &body);
        let request = match stage {
            Stage::Head => head[..head.len() / 2].to_owned(),
            Stage::Body => head + &body[..body.len() / 2],
            Stage::Pipelined => head + &body + "GET /healthz HTTP/1.1\r\nhost: behind\r\n\r\n",
            Stage::PartBehind => head + &body + "POST /v1/lo",
            _ => head + &body,
        };
        let sent = now();
        beside.call(sent, self.asked(), WAIT.as_nanos() as u64, Face::Raw);
        let written = stream.write_all(request.as_bytes()).await.is_ok();
        if !matches!(stage, Stage::Head | Stage::Body | Stage::Sent) {
            self.until_listed(&beside, true, patience).await;
        }
        if stage == Stage::Never && written {
            return self.hand_over(guard, beside, stream, (sent, host)).await;
        }
        match stage {
            Stage::HalfClosed => {
                let _ = stream.shutdown().await;
                // Until the server has closed it too, or does not.
                let _ = tokio::time::timeout(patience, answer(&mut stream)).await;
            }
            // Dropping the socket then resets the connection.
            Stage::Reset => drop(rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))),
            _ => {}
        }
        drop(stream);
        beside.note(Kind::AcquireDropped, now(), 0, 0);
        self.until_listed(&beside, false, LOOKS_FOR).await;
        self.finish(guard).await;
    }

    /// Lists the waiters until one is among them, or is gone, for at most this long.
    async fn until_listed(&self, who: &Pen, wanted: bool, patience: Duration) {
        let end = now() + patience.as_nanos() as u64;
        while now() < end && !*self.finished.borrow() {
            let listed = self.list().await;
            if listed.is_some_and(|listed| listed.contains(&(who.worker, who.claim)) == wanted) {
                return;
            }
            tokio::time::sleep(LOOKS_EVERY).await;
        }
    }

    /// Lets the bare client have the lock, which it releases.
    async fn hand_over(&mut self, guard: Guard, mut beside: Pen, mut stream: TcpStream, sent: (u64, &str)) {
        let (sent, host) = sent;
        self.finish(guard).await;
        let answered = tokio::time::timeout(WAIT * 2, answer(&mut stream)).await;
        let Ok(Some((200, body))) = answered else {
            let kind = if matches!(answered, Ok(Some((409, _)))) { Kind::Busy } else { Kind::AcquireDropped };
            drop(stream);
            return beside.note(kind, now(), 0, 0);
        };
        let number = |field: &str| body[field].as_u64().unwrap_or(0);
        let Some(id) = body["lease_id"].as_str().and_then(|id| LeaseId::parse(id).ok()) else {
            return beside.note(Kind::AcquireFailed, now(), 0, 0);
        };
        beside.know(Some(id), number("fencing_token"));
        let left = Duration::from_millis(number("waited_ms") + number("expires_in_ms"));
        let (at, until) = (now(), margin(sent, left));
        beside.note(Kind::Granted, at, until.max(at), 0);
        tokio::time::sleep(Duration::from_micros(self.dice.between(500, 5_000))).await;
        let at = now();
        if at < until {
            beside.note(Kind::Held, at, until, 0);
        }
        let (head, body) =
            post(host, &self.name().name, "release", &serde_json::json!({"lease_id": id.expose()}));
        beside.note(Kind::ReleaseCall, now(), 0, 0);
        let asked = async {
            stream.write_all((head + &body).as_bytes()).await.ok()?;
            answer(&mut stream).await
        };
        let kind = match tokio::time::timeout(WAIT, asked).await {
            Ok(Some((200, body))) if body["released"] == Value::Bool(true) => Kind::Released,
            Ok(Some((200, _))) => Kind::ReleasedNothing,
            _ => Kind::ReleaseFailed,
        };
        beside.note(kind, now(), 0, 0);
    }
}
