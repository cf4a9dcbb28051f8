//! Wake-ups: one subscriber per client and runtime, on a channel of its own, and who waits for what comes there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::link::Link;
use super::{fault, keys};
use crate::backend::{Claim, Wake};
use crate::backends::waiting::Slot;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;

/// While somebody waits the channel is looked after this often.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// A channel that does not answer for so long is given up: together with the above less than a second.
const CHECK_LIMIT: Duration = Duration::from_millis(400);

/// A channel that nobody needs for so long is given up.
const LINGER: Duration = Duration::from_secs(30);

/// Between two tries to get the channel back.
const PAUSE: Duration = Duration::from_millis(200);

/// The channel, and who waits.
pub(super) struct Wakes {
    pub(super) channel: String,
    inner: Mutex<Inner>,
    /// Rings when somebody begins to wait.
    bell: Notify,
}

#[derive(Default)]
struct Inner {
    waiters: HashMap<LeaseId, Waiter>,
    ids: HashMap<u64, LeaseId>,
    numbers: u64,
    state: Channel,
    /// Counts how often the channel has come up: what was sent before that may be lost.
    epoch: u64,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Channel {
    /// Nobody has waited yet.
    #[default]
    Unused,
    Connecting,
    Up,
    /// The last try to get it failed, or takes long.
    Down,
}

struct Waiter {
    number: u64,
    slot: Arc<Slot>,
    /// When the channel had come up when the attempt was made; `None` if it was not.
    epoch: Option<u64>,
    /// Its place lapses if it does not come back before this.
    until: Instant,
}

impl Wakes {
    pub(super) fn new() -> Self {
        Wakes {
            // As unguessable as an id: nobody else needs to know it.
            channel: format!("{}{}", keys::CHANNEL, LeaseId::random().expose()),
            inner: Mutex::default(),
            bell: Notify::new(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a queued attempt is sent: whatever comes from here on is for it. Gives its wake number.
    pub(super) fn expect(&self, claim: &Claim, ticket_ttl: Duration) -> u64 {
        let mut inner = self.inner();
        let epoch = (inner.state == Channel::Up).then_some(inner.epoch);
        let until = Instant::now() + ticket_ttl.min(Duration::from_secs(3600));
        let slot = Slot::new();
        if let Some(waiter) = inner.waiters.get_mut(&claim.id) {
            // A newer attempt with the same id takes over.
            std::mem::replace(&mut waiter.slot, slot).ring(None);
            (waiter.epoch, waiter.until) = (epoch, until);
            return waiter.number;
        }
        inner.numbers += 1;
        let number = inner.numbers;
        inner.ids.insert(number, claim.id);
        inner.waiters.insert(claim.id, Waiter { number, slot, epoch, until });
        number
    }

    /// It waits no longer.
    pub(super) fn forget(&self, id: &LeaseId) {
        let mut inner = self.inner();
        if let Some(waiter) = inner.waiters.remove(id) {
            inner.ids.remove(&waiter.number);
            drop(inner);
            waiter.slot.ring(None);
        }
    }

    /// After a queued attempt was told to wait: sees to it that there is a channel. True the first time: then
    /// the caller has to start [`listen`](Wakes::listen).
    pub(super) fn begin(&self) -> bool {
        let mut inner = self.inner();
        let first = inner.state == Channel::Unused;
        if first {
            inner.state = Channel::Connecting;
        }
        drop(inner);
        self.bell.notify_one();
        first
    }

    pub(super) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let slot = {
            let inner = self.inner();
            let Some(waiter) = inner.waiters.get(&claim.id) else { return Ok(Wake::Retry) };
            match inner.state {
                Channel::Down => {
                    return Err(Error::new(ErrorKind::Unavailable, "there is no channel for wake-ups"));
                }
                // It came up after the attempt, so a message may be lost.
                Channel::Up if waiter.epoch != Some(inner.epoch) => return Ok(Wake::Retry),
                _ => Arc::clone(&waiter.slot),
            }
        };
        slot.wait().await;
        Ok(Wake::Retry)
    }

    /// The channel has changed: whoever waits looks for itself.
    fn change(&self, state: Channel) {
        let mut inner = self.inner();
        if state == Channel::Up {
            inner.epoch += 1;
        }
        inner.state = state;
        inner.waiters.values().for_each(|waiter| waiter.slot.ring(None));
    }

    fn ring(&self, number: u64) {
        let inner = self.inner();
        if let Some(waiter) = inner.ids.get(&number).and_then(|id| inner.waiters.get(id)) {
            waiter.slot.ring(None);
        }
    }

    /// Whether anybody waits whose place has not lapsed; the others are forgotten.
    fn is_awaited(&self) -> bool {
        let now = Instant::now();
        let mut inner = self.inner();
        let Inner { waiters, ids, .. } = &mut *inner;
        waiters.retain(|_, waiter| {
            let keep = waiter.until > now;
            if !keep {
                ids.remove(&waiter.number);
                waiter.slot.ring(None);
            }
            keep
        });
        !waiters.is_empty()
    }

    async fn awaited(&self) {
        while !self.is_awaited() {
            self.bell.notified().await;
        }
    }

    /// Keeps the channel while somebody waits. Runs until it is aborted.
    pub(super) async fn listen(self: Arc<Self>, links: impl Fn() -> Vec<Arc<Link>>) {
        loop {
            self.awaited().await;
            let mut connecting = std::pin::pin!(self.subscribe_to_any(links()));
            let up = match timeout(CHECK_LIMIT, connecting.as_mut()).await {
                Ok(up) => up,
                // It may take longer, but nobody waits for what cannot come: meanwhile they look for themselves.
                Err(_) => {
                    self.change(Channel::Down);
                    connecting.await
                }
            };
            match up {
                Some((sink, stream)) => {
                    self.change(Channel::Up);
                    self.serve(sink, stream).await;
                    self.change(Channel::Connecting);
                }
                None => {
                    self.change(Channel::Down);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// In a cluster a message reaches all nodes: any will do.
    async fn subscribe_to_any(&self, links: Vec<Arc<Link>>) -> Option<(PubSubSink, PubSubStream)> {
        for link in links {
            if let Ok(Ok(channel)) = timeout(link.address.connect_timeout, self.subscribe(&link)).await {
                return Some(channel);
            }
        }
        None
    }

    async fn subscribe(&self, link: &Link) -> Result<(PubSubSink, PubSubStream)> {
        let client = link.client().await?;
        let pubsub = client.get_async_pubsub().await.map_err(|fault| fault::error(&fault))?;
        let (mut sink, stream) = pubsub.split();
        sink.subscribe(&self.channel).await.map_err(|fault| fault::error(&fault))?;
        Ok((sink, stream))
    }

    /// Until the channel breaks, or nobody has needed it for long.
    async fn serve(&self, mut sink: PubSubSink, mut stream: PubSubStream) {
        let mut check = std::pin::pin!(tokio::time::sleep(CHECK_EVERY));
        let mut idle = false;
        loop {
            tokio::select! {
                biased;
                message = stream.next() => {
                    let Some(message) = message else { return };
                    let number = std::str::from_utf8(message.get_payload_bytes()).ok();
                    if let Some(number) = number.and_then(|number| number.parse().ok()) {
                        self.ring(number);
                    }
                }
                () = self.bell.notified(), if idle => {
                    idle = false;
                    check.as_mut().reset(Instant::now() + CHECK_EVERY);
                }
                () = &mut check => {
                    let awaited = self.is_awaited();
                    if !awaited && idle {
                        return;
                    }
                    if awaited && !matches!(timeout(CHECK_LIMIT, sink.ping::<redis::Value>()).await, Ok(Ok(_))) {
                        return;
                    }
                    idle = !awaited;
                    check.as_mut().reset(Instant::now() + if idle { LINGER } else { CHECK_EVERY });
                }
            }
        }
    }
}
