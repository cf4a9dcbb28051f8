//! Wake-ups: who waits in this client, and the one connection on which the server tells of them.
//!
//! A claim that queues is entered here before its attempt is sent, under a number that the ticket carries. The
//! server notifies this client's own channel of the numbers that are let in. The connection is made when somebody
//! has to wait for the first time, and closed when nobody has for a while. Whenever it breaks or comes back,
//! everybody is told to try again, so that nothing can be missed in between.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::AsyncMessage;

use crate::backend::{Claim, Wake};
use crate::backends::postgres::reach::Reached;
use crate::backends::postgres::{Address, fault};
use crate::backends::waiting::Slot;
use crate::error::{Error, ErrorKind, Result};
use crate::lease_id::LeaseId;
use crate::name::Name;

/// While somebody waits, the connection is asked so often whether it is there, and has as long to answer: one that
/// is dead delays a hand-over by twice this, and less than a second.
const CHECK_EVERY: Duration = Duration::from_millis(400);

/// How long the connection is kept when nobody waits.
const IDLE: Duration = Duration::from_secs(60);

/// Between attempts to connect.
const RETRY: Duration = Duration::from_millis(500);

/// A claim that did not come back for so long after its place has lapsed waits no more.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Who waits in this client.
pub(super) struct Bell {
    address: Address,
    channel: String,
    runtime: Handle,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    waiting: HashMap<u64, Waiter>,
    numbers: HashMap<(Name, LeaseId), u64>,
    last: u64,
    line: Line,
    task: Option<AbortHandle>,
}

struct Waiter {
    key: (Name, LeaseId),
    slot: Arc<Slot>,
    kept_until: Instant,
}

/// The connection.
#[derive(Default, Clone, Copy, PartialEq)]
enum Line {
    /// Nobody has needed it.
    #[default]
    Off,
    /// About to listen: whoever waits will be told when it does, or cannot.
    Starting,
    On,
    /// Being tried again.
    Down,
}

impl Bell {
    /// A bell, which must be made on the runtime where its connection is to live.
    pub(super) fn new(address: Address) -> Arc<Self> {
        // Not to be guessed, and within the 63 bytes of an identifier.
        let channel = format!("leasehold_{}", LeaseId::random().expose());
        Arc::new(Bell { address, channel, runtime: Handle::current(), inside: Mutex::default() })
    }

    /// Where it listens.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a claim that is about to be sent; the number it waits under. What rings from here on is heard.
    pub(super) fn enter(&self, claim: &Claim, ticket_ttl: Duration) -> u64 {
        let mut inside = self.inside();
        let inside = &mut *inside;
        let key = (claim.name.clone(), claim.id);
        let kept_until = Instant::now() + ticket_ttl.min(Duration::from_secs(24 * 3600)) + FORGOTTEN;
        let number = *inside.numbers.entry(key.clone()).or_insert_with(|| {
            inside.last += 1;
            inside.last
        });
        let older = inside.waiting.insert(number, Waiter { key, slot: Slot::new(), kept_until });
        // A newer attempt with the same id takes over from the older one, which learns so by trying again.
        if let Some(older) = older {
            older.slot.ring(None);
        }
        number
    }

    /// Takes out a claim that no longer waits. Whoever still waits on it learns so by trying again.
    pub(super) fn leave(&self, name: &Name, id: &LeaseId) {
        let mut inside = self.inside();
        let gone =
            inside.numbers.remove(&(name.clone(), *id)).and_then(|number| inside.waiting.remove(&number));
        drop(inside);
        if let Some(waiter) = gone {
            waiter.slot.ring(None);
        }
    }

    /// Sees to it that somebody listens.
    pub(super) fn listen(self: &Arc<Self>) {
        let mut inside = self.inside();
        if inside.line == Line::Off {
            inside.line = Line::Starting;
            inside.task = Some(self.runtime.spawn(run(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Waits until the claim is called, or nothing is sure any more.
    pub(super) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let slot = {
            let inside = self.inside();
            if inside.line == Line::Down {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the connection for wake-ups is down; until it is back the client polls",
                ));
            }
            let number = inside.numbers.get(&(claim.name.clone(), claim.id));
            number.and_then(|number| inside.waiting.get(number)).map(|waiter| Arc::clone(&waiter.slot))
        };
        // Not there: it has come to an end. Trying again tells.
        let Some(slot) = slot else { return Ok(Wake::Retry) };
        slot.wait().await;
        Ok(Wake::Retry)
    }

    /// Tells those with these numbers.
    fn ring(&self, numbers: &str) {
        let inside = self.inside();
        let numbers = numbers.split(' ').filter_map(|number| number.parse().ok());
        let slots: Vec<_> =
            numbers.filter_map(|number: u64| Some(Arc::clone(&inside.waiting.get(&number)?.slot))).collect();
        drop(inside);
        slots.iter().for_each(|slot| slot.ring(None));
    }

    /// The connection's state has changed: everybody tries again.
    fn turn(&self, line: Line) {
        let mut inside = self.inside();
        inside.line = line;
        let slots: Vec<_> = inside.waiting.values().map(|waiter| Arc::clone(&waiter.slot)).collect();
        drop(inside);
        slots.iter().for_each(|slot| slot.ring(None));
    }

    /// Whether anybody waits. Claims that nobody asks about any more are dropped.
    fn is_needed(&self) -> bool {
        let now = Instant::now();
        let mut inside = self.inside();
        let inside = &mut *inside;
        inside.waiting.retain(|_, waiter| {
            let kept = waiter.kept_until > now;
            if !kept {
                inside.numbers.remove(&waiter.key);
                waiter.slot.ring(None);
            }
            kept
        });
        !inside.waiting.is_empty()
    }

    /// Ends the line if nobody waits; from then on the next who does starts it again.
    fn hang_up(&self) -> bool {
        let mut inside = self.inside();
        let ends = inside.waiting.is_empty();
        if ends {
            inside.line = Line::Off;
        }
        ends
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        if let Some(task) = self.inside().task.take() {
            task.abort();
        }
    }
}

/// Listens for as long as somebody waits, and a while longer.
async fn run(bell: Weak<Bell>) {
    loop {
        let ended = listen(&bell).await;
        let Some(bell) = bell.upgrade() else { return };
        match ended {
            Ok(()) => {
                if bell.hang_up() {
                    return;
                }
                bell.turn(Line::Starting);
            }
            Err(error) => {
                tracing::warn!(%error, "no wake-ups from the PostgreSQL server for now; those who wait poll");
                if !bell.is_needed() && bell.hang_up() {
                    return;
                }
                bell.turn(Line::Down);
                drop(bell);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Something the server is asked while messages are read.
type Question<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), fault::Fault>> + Send + 'a>>;

/// One connection, until it breaks or nobody needs it any more.
async fn listen(bell: &Weak<Bell>) -> Result<()> {
    // Not kept alive by this, which may take long.
    let Some((address, channel)) = bell.upgrade().map(|bell| (bell.address.clone(), bell.channel.clone()))
    else {
        return Ok(());
    };
    let Reached { client, mut connection, .. } = address.connect().await?;
    let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
    let listen = format!("LISTEN \"{channel}\"");
    let mut question: Option<Question<'_>> = Some(Box::pin(client.batch_execute(&listen)));
    let mut listening = false;
    let mut needed = Instant::now();
    let mut tick = tokio::time::interval_at(Instant::now() + CHECK_EVERY, CHECK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            message = messages.next() => match message {
                Some(Ok(AsyncMessage::Notification(note))) => {
                    if let Some(bell) = bell.upgrade() {
                        bell.ring(note.payload());
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(fault::statement(error)),
                None => return Err(ended("the PostgreSQL server has closed the connection for wake-ups")),
            },
            answer = async { match &mut question { Some(question) => question.await, None => std::future::pending().await } } => {
                answer.map_err(fault::statement)?;
                question = None;
                if !listening {
                    listening = true;
                    let Some(bell) = bell.upgrade() else { return Ok(()) };
                    bell.turn(Line::On);
                }
            }
            _ = tick.tick() => {
                let Some(bell) = bell.upgrade() else { return Ok(()) };
                if bell.is_needed() {
                    needed = Instant::now();
                    // The first question, to listen, may take longer: nobody relies on it yet.
                    if question.is_some() && listening {
                        return Err(ended("the connection for wake-ups does not answer"));
                    }
                    question.get_or_insert_with(|| Box::pin(client.check_connection()));
                } else if needed.elapsed() >= IDLE {
                    return Ok(());
                }
            }
        }
    }
}

fn ended(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
