//! Sweeps by a walk through all keys of all servers. One call walks for a while, and the next goes on from there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answers::{self, Answer};
use super::known::Known;
use super::link::{Identity, Link};
use super::list::identities;
use super::look::{AT_ONCE, scan};
use super::route::Route;
use super::{calls, keys};
use crate::backend::Swept;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;

/// How long one call walks before it answers with what it has. With the part under way this stays within the 5 s that
/// a request has by default.
const WALK_FOR: Duration = Duration::from_secs(2);

/// How far the sweeps have got on their walk through all keys. It outlives a call that fails or is dropped, so that
/// later names are reached too.
#[derive(Default)]
pub(super) struct Walk {
    /// The servers of this walk; empty between two walks.
    servers: Vec<Identity>,
    /// The current server, and the cursor there.
    server: usize,
    cursor: String,
    /// Live leases and waiters so far.
    found: Found,
    began: Option<Instant>,
    /// Names in use that the walk met; it may meet a key twice.
    met: BTreeSet<String>,
    /// Why a name could not be swept.
    refused: Option<Error>,
    /// What the last complete walk found.
    complete: Option<Found>,
    /// Lapsed places that no call has reported yet.
    tickets: u64,
}

#[derive(Default, Clone, Copy)]
struct Found {
    held: u64,
    waiting: u64,
}

impl Walk {
    /// Continues the walk to its end or for a while. `read` gets the answer of every name.
    ///
    /// It fails only if its first part does: a later part that fails is the first of the next call. A name that cannot
    /// be swept does not keep the walk from the others; the call after the walk reports it. So a call that fails costs
    /// the store one part at most, however soon it is tried again.
    pub(super) async fn go_on(
        &mut self,
        route: &Route,
        known: &Known,
        read: impl Fn(&Answer),
    ) -> Result<Swept> {
        known.sweeps();
        if self.servers.is_empty()
            && let Some(error) = self.refused.take()
        {
            return Err(error);
        }
        let began = Instant::now();
        let links = route.everywhere().await?;
        let mut is_first = true;
        loop {
            let servers = identities(&links);
            if self.servers != servers {
                self.begin(servers);
                known.begins();
            }
            let Some(link) = links.get(self.server) else { break };
            match self.part(route, &links, link, &read).await {
                Err(error) if is_first => return Err(error),
                Err(_) => break,
                Ok(()) if began.elapsed() >= WALK_FOR => break,
                Ok(()) => is_first = false,
            }
        }
        if self.server >= links.len() {
            self.complete = Some(self.found);
            if let Some(began) = self.began {
                known.ends(began, std::mem::take(&mut self.met));
            }
            self.begin(Vec::new());
        }
        let Found { held, waiting } = self.complete.unwrap_or(self.found);
        Ok(Swept { tickets: std::mem::take(&mut self.tickets), held, waiting, ..Swept::default() })
    }

    /// Sweeps the names among the next keys. A walk whose servers have changed stays as it is.
    async fn part(
        &mut self,
        route: &Route,
        links: &[Arc<Link>],
        link: &Arc<Link>,
        read: impl Fn(&Answer),
    ) -> Result<()> {
        let (next, mut found) = scan(link, &keys::pattern(""), &self.cursor).await?;
        // The answer may have come over a new connection, from a server to which the cursor means nothing.
        if self.servers != identities(links) {
            return Ok(());
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|key| keys::stored(key).is_some_and(|stored| Name::from_stored(&stored).is_ok()));
        for some in found.chunks(AT_ONCE) {
            let calls: Vec<_> = some.iter().map(|key| calls::sweep(key.clone())).collect();
            for (key, answer) in some.iter().zip(route.call_all(&calls).await) {
                match answer.and_then(|reply| Answer::new(reply.value)) {
                    Ok(answer) => {
                        read(&answer);
                        self.count(key, answer)?;
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Unsupported) => {
                        self.refused = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.cursor = next;
        self.server += usize::from(self.cursor == "0");
        Ok(())
    }

    /// Starts a walk at the first of these servers.
    fn begin(&mut self, servers: Vec<Identity>) {
        (self.servers, self.server, self.cursor) = (servers, 0, String::from("0"));
        (self.found, self.met) = (Found::default(), BTreeSet::new());
        self.began = Some(Instant::now());
    }

    fn count(&mut self, key: &str, mut answer: Answer) -> Result<()> {
        let swept = answers::swept(&mut answer)?;
        self.tickets += swept.tickets;
        if swept.held + swept.waiting > 0
            && let Some(stored) = keys::stored(key)
            && self.met.insert(stored)
        {
            self.found.held += swept.held;
            self.found.waiting += swept.waiting;
        }
        Ok(())
    }
}
