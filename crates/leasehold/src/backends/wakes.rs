//! Who waits in this client for a store that calls them by number, and the one connection on which it does.
//!
//! A claim that queues is entered here before its attempt is sent, under a number that its ticket carries. The store
//! sends the numbers of those it lets in to a channel of this client's own. The connection is made when somebody has
//! to wait for the first time, and given up when nobody has for a while. Whenever it breaks or comes back, everybody
//! is told to try again, so that nothing can be missed in between.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::waiting::Slot;
use crate::backend::{Claim, Wake};
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;

/// While somebody waits, the connection is asked this often whether it is there.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// One that does not answer for so long is given up: together with the above less than a second.
const CHECK_LIMIT: Duration = Duration::from_millis(400);

/// One that nobody needs for so long is given up.
const LINGER: Duration = Duration::from_secs(30);

/// Between two tries to get one: a server that is out of connections is asked no more often than this by each client.
const PAUSE: Duration = Duration::from_millis(500);

/// A place counts as lapsed after so long, whatever its ttl: no clock can count for ever.
const LONGEST_PLACE: Duration = Duration::from_secs(24 * 3600);

/// How a store calls those who wait.
#[async_trait]
pub(crate) trait Subscribe: Send + Sync + 'static {
    /// A connection on which it does, as something that can be asked.
    type Connection: Send;

    /// A new connection that listens on this channel, and what comes there: wake numbers, with spaces between them.
    /// Nothing need happen on the connection unless that is read.
    async fn subscribe(&self, channel: &str) -> Result<(Self::Connection, BoxStream<'static, String>)>;

    /// Asks whether it is still there, while what comes is being read.
    async fn check(connection: &mut Self::Connection) -> bool;
}

/// Those who wait, and the task that listens for them until this is dropped.
pub(crate) struct Wakes<S> {
    table: Arc<Table>,
    store: Arc<S>,
    runtime: Handle,
    listener: OnceLock<AbortHandle>,
}

struct Table {
    channel: String,
    expected: Mutex<Expected>,
    /// Rings when somebody has to wait.
    bell: Notify,
}

#[derive(Default)]
struct Expected {
    waiting: HashMap<u64, Waiter>,
    numbers: HashMap<(Name, LeaseId), u64>,
    last: u64,
    /// The last try to listen has failed, or takes long: nobody waits for what cannot come.
    down: bool,
}

struct Waiter {
    key: (Name, LeaseId),
    slot: Arc<Slot>,
    /// Its place lapses if it does not come back before this.
    until: Instant,
}

impl<S: Subscribe> Wakes<S> {
    /// On a channel whose name begins so, over a connection that will live on this runtime.
    pub(crate) fn new(prefix: &str, store: Arc<S>, runtime: Handle) -> Self {
        // As unguessable as an id: nobody else needs to know it.
        let channel = format!("{prefix}{}", LeaseId::random().expose());
        let table = Arc::new(Table { channel, expected: Mutex::default(), bell: Notify::new() });
        Wakes { table, store, runtime, listener: OnceLock::new() }
    }

    /// Where the numbers are to be sent.
    pub(crate) fn channel(&self) -> &str {
        &self.table.channel
    }

    /// Enters a claim whose attempt is about to be sent; the number it waits under, never 0. What comes from here on is
    /// for it.
    pub(crate) fn enter(&self, claim: &Claim, ticket_ttl: Duration) -> u64 {
        let key = (claim.name.clone(), claim.id);
        let until = Instant::now() + ticket_ttl.min(LONGEST_PLACE);
        let mut expected = self.table.expected.lock();
        let Expected { waiting, numbers, last, .. } = &mut *expected;
        let number = *numbers.entry(key.clone()).or_insert_with(|| {
            *last += 1;
            *last
        });
        let older = waiting.insert(number, Waiter { key, slot: Slot::new(), until });
        drop(expected);
        // A newer attempt with the same id takes over from the older one, which learns so by trying again.
        ring(older);
        number
    }

    /// Takes out a claim that no longer waits. Whoever still waits on it learns so by trying again.
    pub(crate) fn leave(&self, name: &Name, id: &LeaseId) {
        let mut expected = self.table.expected.lock();
        let number = expected.numbers.remove(&(name.clone(), *id));
        let gone = number.and_then(|number| expected.waiting.remove(&number));
        drop(expected);
        ring(gone);
    }

    /// Sees to it that somebody listens: after an attempt was told to wait.
    pub(crate) fn listen(&self) {
        self.listener.get_or_init(|| {
            let (table, store) = (Arc::clone(&self.table), Arc::clone(&self.store));
            self.runtime.spawn(async move { table.listen(&*store).await }).abort_handle()
        });
        self.table.bell.notify_one();
    }

    /// Waits until the claim is called, or nothing is sure any more.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let slot = {
            let expected = self.table.expected.lock();
            let number = expected.numbers.get(&(claim.name.clone(), claim.id));
            // Not there: it has come to an end. Trying again tells.
            let Some(waiter) = number.and_then(|number| expected.waiting.get(number)) else {
                return Ok(Wake::Retry);
            };
            if expected.down {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the connection for wake-ups is down; until it is back the client polls",
                ));
            }
            Arc::clone(&waiter.slot)
        };
        slot.wait().await;
        Ok(Wake::Retry)
    }
}

impl<S> Drop for Wakes<S> {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl Table {
    /// Keeps a connection while somebody waits. Runs until it is aborted.
    async fn listen<S: Subscribe>(&self, store: &S) {
        let mut told = false;
        loop {
            self.awaited().await;
            match self.subscribe(store).await {
                Ok((connection, calls)) => {
                    told = false;
                    self.change(false);
                    self.serve::<S>(connection, calls).await;
                    self.change(false);
                }
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        reporter::log(move || {
                            tracing::warn!(%error, "no wake-ups from the store for now; those who wait poll");
                        });
                    }
                    self.change(true);
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn subscribe<S: Subscribe>(
        &self,
        store: &S,
    ) -> Result<(S::Connection, BoxStream<'static, String>)> {
        let mut connecting = std::pin::pin!(store.subscribe(&self.channel));
        if let Ok(made) = timeout(CHECK_LIMIT, connecting.as_mut()).await {
            return made;
        }
        // It may take longer, but meanwhile those who wait look for themselves.
        self.change(true);
        connecting.await
    }

    /// Until the connection breaks, or nobody has needed it for long.
    async fn serve<S: Subscribe>(
        &self,
        mut connection: S::Connection,
        mut calls: BoxStream<'static, String>,
    ) {
        let hear = async {
            while let Some(numbers) = calls.next().await {
                self.call(&numbers);
            }
        };
        let check = async {
            loop {
                sleep(CHECK_EVERY).await;
                let is_needed = timeout(LINGER, self.awaited()).await.is_ok();
                if !is_needed || timeout(CHECK_LIMIT, S::check(&mut connection)).await != Ok(true) {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            () = hear => {}
            () = check => {}
        }
    }

    /// Tells those with these numbers.
    fn call(&self, numbers: &str) {
        let expected = self.expected.lock();
        let called = numbers.split(' ').filter_map(|number| expected.waiting.get(&number.parse().ok()?));
        let slots: Vec<_> = called.map(|waiter| Arc::clone(&waiter.slot)).collect();
        drop(expected);
        slots.iter().for_each(|slot| slot.ring(None));
    }

    /// The connection has come or gone: everybody tries again.
    fn change(&self, down: bool) {
        let mut expected = self.expected.lock();
        expected.down = down;
        let slots: Vec<_> = expected.waiting.values().map(|waiter| Arc::clone(&waiter.slot)).collect();
        drop(expected);
        slots.iter().for_each(|slot| slot.ring(None));
    }

    /// Whether anybody waits whose place has not lapsed; the others are taken out.
    fn is_awaited(&self) -> bool {
        let now = Instant::now();
        let mut expected = self.expected.lock();
        let Expected { waiting, numbers, .. } = &mut *expected;
        let lapsed = waiting.extract_if(|_, waiter| waiter.until <= now);
        let lapsed: Vec<Waiter> = lapsed.map(|(_, waiter)| waiter).collect();
        lapsed.iter().for_each(|waiter| _ = numbers.remove(&waiter.key));
        let is_awaited = !waiting.is_empty();
        drop(expected);
        ring(lapsed);
        is_awaited
    }

    async fn awaited(&self) {
        while !self.is_awaited() {
            self.bell.notified().await;
        }
    }
}

/// Not under the lock: a waker may do anything.
fn ring(expected: impl IntoIterator<Item = Waiter>) {
    expected.into_iter().for_each(|waiter| waiter.slot.ring(None));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on has failed
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::stream;

    use super::*;
    use crate::backend::Mode;

    /// A store that can fall silent: its connections stay open and answer nothing, and new ones are never made.
    struct Silent(Arc<AtomicBool>);

    #[async_trait]
    impl Subscribe for Silent {
        type Connection = Arc<AtomicBool>;

        async fn subscribe(&self, _: &str) -> Result<(Self::Connection, BoxStream<'static, String>)> {
            answer(&self.0).await;
            Ok((Arc::clone(&self.0), stream::pending().boxed()))
        }

        async fn check(connection: &mut Self::Connection) -> bool {
            answer(connection).await;
            true
        }
    }

    async fn answer(silent: &AtomicBool) {
        if silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_ends_every_wait_within_a_second() {
        // Silent from the beginning, or from any moment after that.
        for after in [None, Some(0), Some(1), Some(499), Some(501), Some(1700)] {
            let silent = Arc::new(AtomicBool::new(after.is_none()));
            let wakes = Wakes::new("x", Arc::new(Silent(Arc::clone(&silent))), Handle::current());
            let hour = Duration::from_secs(3600);
            let claim = Claim::new(Name::new("x").unwrap(), Mode::Exclusive, hour, "test").queued(hour);
            if let Some(after) = after {
                wakes.enter(&claim, hour);
                wakes.listen();
                wakes.wait(&claim).await.unwrap(); // the connection has come
                sleep(Duration::from_millis(after)).await;
            }
            silent.store(true, Ordering::SeqCst);
            wakes.enter(&claim, hour);
            wakes.listen();
            let told = timeout(Duration::from_secs(1), wakes.wait(&claim)).await;
            assert!(told.is_ok(), "silent after {after:?}");
        }
    }
}
