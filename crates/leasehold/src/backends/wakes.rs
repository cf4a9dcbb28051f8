//! Tracks this client's waiters. The store wakes each one by number, over a single shared connection.
//!
//! A claim that queues is entered here before its attempt is sent, under a number that its ticket carries. The store
//! sends the numbers of the waiters it lets in to this client's own channel. The connection is made when a claim has
//! to wait for the first time, and closed after it has been idle for a while. Whenever it breaks or comes back, every
//! waiter tries again, so that no wake-up can be missed in between.

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
use crate::backend::{Claim, Gone, Released, Wake};
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;

/// How often the connection is checked while a claim waits.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Close a connection that does not answer for this long: together with the above less than a second.
const CHECK_LIMIT: Duration = Duration::from_millis(400);

/// Close the connection after it has been idle this long.
const LINGER: Duration = Duration::from_secs(30);

/// The pause between two tries to connect: no client asks a server that is out of connections more often than this.
const PAUSE: Duration = Duration::from_millis(500);

/// A place counts as lapsed after this long, whatever its ttl: no clock can count for ever.
const LONGEST_PLACE: Duration = Duration::from_secs(24 * 3600);

/// Whether a release that was answered like this ends the wait of its id. After a fault too: then the client gives the
/// id up, and a claim that does wait tries again. After `Superseded` a newer attempt may still wait.
pub(crate) fn ends_wait(answer: &Result<Released>) -> bool {
    !matches!(answer, Ok(Released::Gone(Gone::Superseded)))
}

/// How a store wakes the waiters of a client.
#[async_trait]
pub(crate) trait Subscribe: Send + Sync + 'static {
    /// The connection that carries the wake-ups, for checks.
    type Connection: Send;

    /// Opens a connection that listens on this channel, and returns the stream of messages: wake numbers, separated by
    /// spaces. The connection need not make progress unless the stream is read.
    async fn subscribe(&self, channel: &str) -> Result<(Self::Connection, BoxStream<'static, String>)>;

    /// Checks that the connection still works, while the stream is being read.
    async fn check(connection: &mut Self::Connection) -> bool;
}

/// The waiters, and the task that listens for them until this is dropped.
pub(crate) struct Wakes<S> {
    table: Arc<Table>,
    store: Arc<S>,
    runtime: Handle,
    listener: OnceLock<AbortHandle>,
}

struct Table {
    channel: String,
    expected: Mutex<Expected>,
    /// Notified when a claim has to wait.
    bell: Notify,
}

#[derive(Default)]
struct Expected {
    waiting: HashMap<u64, Waiter>,
    numbers: HashMap<(Name, LeaseId), u64>,
    last: u64,
    /// The last try to connect failed, or takes long: no call may wait for wake-ups that cannot come.
    down: bool,
}

struct Waiter {
    key: (Name, LeaseId),
    slot: Arc<Slot>,
    /// The place lapses if the waiter does not come back before this.
    until: Instant,
}

impl<S: Subscribe> Wakes<S> {
    /// Makes the table, with a channel name that begins with `prefix` and a connection that will live on this runtime.
    pub(crate) fn new(prefix: &str, store: Arc<S>, runtime: Handle) -> Self {
        // As unguessable as an id: no other client needs to know it.
        let channel = format!("{prefix}{}", LeaseId::random().expose());
        let table = Arc::new(Table { channel, expected: Mutex::default(), bell: Notify::new() });
        Wakes { table, store, runtime, listener: OnceLock::new() }
    }

    /// The channel for the numbers.
    pub(crate) fn channel(&self) -> &str {
        &self.table.channel
    }

    /// Enters a claim whose attempt is about to be sent. Returns its wake number, never 0. From now on wake-ups reach
    /// it.
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
        // A newer attempt with the same id takes over from the older one, which learns of it by trying again.
        ring(older);
        number
    }

    /// Removes a claim that no longer waits. A caller that still waits on it finds out by trying again.
    pub(crate) fn leave(&self, name: &Name, id: &LeaseId) {
        let mut expected = self.table.expected.lock();
        let number = expected.numbers.remove(&(name.clone(), *id));
        let gone = number.and_then(|number| expected.waiting.remove(&number));
        drop(expected);
        ring(gone);
    }

    /// Makes sure that the task listens, after an attempt found the name busy.
    pub(crate) fn listen(&self) {
        self.listener.get_or_init(|| {
            let (table, store) = (Arc::clone(&self.table), Arc::clone(&self.store));
            self.runtime.spawn(async move { table.listen(&*store).await }).abort_handle()
        });
        self.table.bell.notify_one();
    }

    /// Waits until the store wakes the claim, or wake-ups may have been missed.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let slot = {
            let expected = self.table.expected.lock();
            let number = expected.numbers.get(&(claim.name.clone(), claim.id));
            // Not there: its wait has ended. A new attempt will tell.
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
    /// Keeps a connection while a claim waits. Runs until it is aborted.
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
                            tracing::warn!(%error, "no wake-ups from the store for now; waiters poll");
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
        // Connecting may take longer, but the waiters poll meanwhile.
        self.change(true);
        connecting.await
    }

    /// Serves until the connection breaks, or has been idle for long.
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

    /// Wakes the waiters with these numbers.
    fn call(&self, numbers: &str) {
        let expected = self.expected.lock();
        let called = numbers.split(' ').filter_map(|number| expected.waiting.get(&number.parse().ok()?));
        let slots: Vec<_> = called.map(|waiter| Arc::clone(&waiter.slot)).collect();
        drop(expected);
        slots.iter().for_each(|slot| slot.ring(None));
    }

    /// Wakes every waiter, because the connection has come or gone.
    fn change(&self, down: bool) {
        let mut expected = self.expected.lock();
        expected.down = down;
        let slots: Vec<_> = expected.waiting.values().map(|waiter| Arc::clone(&waiter.slot)).collect();
        drop(expected);
        slots.iter().for_each(|slot| slot.ring(None));
    }

    /// Whether any waiter has a place that has not lapsed; removes the others.
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

    /// A store that can fall silent: its connections stay open and answer nothing, and new ones never open.
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
        // The connection is silent from the beginning, or from this many milliseconds on.
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
