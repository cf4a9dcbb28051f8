//! `http://`, `https://` — a leasehold server: its routes are the verbs, and it waits in its store's queue for us.
//!
//! A wait is a long poll that belongs to the claim and not to the call of `wait`. It goes on when that call is
//! dropped: to the server, a closed connection means that the client has gone, and it gives up the client's place.
//!
#![doc = include_str!("../../../docs/http.md")]

// What belongs here: the client of a leasehold server; what both must agree on is in `wire`. Before changing anything
// here: `cargo test -p leasehold-server`, then `make torture` with STORES="http redis/server".

mod address;
mod dial;
mod findings;
mod polls;
mod pool;
mod pulse;
mod reading;
mod tls;

use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Attempt, Backend, Claim, Info, Liveness, Mode, NameInfo, NewNote, Page, Query, Release, Released,
    Renewal, Renewed, Revoked, Swept, TimeAuthority, Wake, check_page_limit,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;
use crate::wire::{self, ceil_ms, mode_fields, segment};

pub use address::Options;
use polls::{Poll, Polls};
use pool::Pool;
use pulse::Pulse;

/// What a server can do at best; on connecting, the server says what it can really do.
pub(crate) const INFO: Info = {
    let mut info = Info::new("http");
    info.namespaced = false;
    info.keeps_places = true;
    info.shows_ids = false;
    info
};

/// Bytes of renewals in one request: well below the 64 KiB that a server reads.
const BATCH_BYTES: usize = 40 * 1024;

/// A leasehold server as a store.
///
/// Its connections live on the runtime that made it; [`Locks::connect`](crate::Locks::connect) makes it on the
/// client's own thread. The server decides the namespace, so names in any other than the empty namespace are refused.
#[derive(Debug)]
pub struct Http {
    pool: std::sync::Arc<Pool>,
    polls: Polls,
    pulse: std::sync::Arc<Pulse>,
    info: Info,
}

impl Http {
    /// Connects to `http://host:port` or `https://…`, with the options in the URL's query: `token_file`, `ca`, `cert`,
    /// `key`.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid URL; `AuthFailed` if the server wants another token; `Unavailable` if there is
    /// no server; `Unsupported` if it is not a leasehold server.
    pub async fn connect(url: &str) -> Result<Self> {
        Http::open(Options::parse(url)?).await
    }

    /// As [`connect`](Http::connect), with options that the program sets.
    ///
    /// # Cancel safety
    /// As [`connect`](Http::connect).
    ///
    /// # Errors
    /// As [`connect`](Http::connect).
    pub async fn open(options: Options) -> Result<Self> {
        let pool = std::sync::Arc::new(Pool::new(options)?);
        let answer = pool.get("/v1/capabilities").await?;
        let able: wire::Capabilities = answer.ok()?;
        let mut info = INFO;
        info.liveness = Liveness::Ttl;
        info.time = if able.time == "client" { TimeAuthority::Client } else { TimeAuthority::Store };
        (info.fenced, info.fifo, info.shared) = (able.fenced, able.fifo, able.shared);
        (info.max_permits, info.downgrade) = (able.max_permits, able.downgrade);
        (info.find_by_id, info.revoke, info.detects_loss) = (able.find_by_id, able.revoke, able.detects_loss);
        info.notes = able.notes;
        info.max_ttl = Duration::from_millis(able.max_ttl_ms);
        info.min_validity_percent = able.min_validity_percent;
        Ok(Http { polls: Polls::new(), pulse: std::sync::Arc::default(), pool, info })
    }
}

/// The path of a verb on a name.
fn path(name: &Name, verb: &str) -> Result<String> {
    Ok(format!("/v1/locks/{}{verb}", segment(plain(name)?)))
}

fn plain(name: &Name) -> Result<&str> {
    if name.namespace().is_empty() {
        Ok(name.as_str())
    } else {
        Err(Error::invalid("over http: the namespace is the server's; do not set one on the client"))
    }
}

/// The body of an attempt that waits for this long.
fn acquire(claim: &Claim, wait: Duration) -> wire::Acquire {
    let (mode, limit) = mode_fields(claim.mode);
    let attempt = number(claim.nonce);
    wire::Acquire {
        owner_id: claim.owner.to_string(),
        ttl_ms: ceil_ms(claim.ttl),
        mode: Some(mode).filter(|_| claim.mode != Mode::Exclusive),
        limit,
        wait_ms: Some(ceil_ms(wait)).filter(|wait| *wait > 0),
        queue: claim.queue.map(ceil_ms),
        lease_id: Some(claim.id.expose().to_owned()),
        metadata: claim.metadata.as_ref().map(|text| text.to_string()),
        repeat: claim.repeat,
        attempt,
        first: attempt.map(|_| claim.first),
    }
}

/// The attempt's number in a request. For a caller that makes one attempt per id (nonce 0), the server numbers the
/// attempts itself; it then also gives back what such a caller did not wait for, and no release can name that number.
fn number(nonce: u64) -> Option<u64> {
    Some(nonce).filter(|nonce| *nonce != 0)
}

fn renewal(lease: &Renewal, info: &Info) -> Result<wire::Renew> {
    let (note, note_revision) = note(lease.note.as_ref(), info)?;
    let mode = lease.mode.map(mode_fields);
    Ok(wire::Renew {
        lock_name: Some(plain(&lease.name)?.to_owned()),
        lease_id: lease.id.expose().to_owned(),
        extend_by_ms: ceil_ms(lease.ttl),
        owner_id: lease.owner.as_ref().map(|owner| owner.to_string()),
        fencing_token: lease.fence.map(|fence| fence.get()),
        shorten: lease.shorten,
        mode: mode.map(|(mode, _)| mode),
        limit: mode.and_then(|(_, limit)| limit),
        raise_fencing_token: lease.raise_fence.map(|fence| fence.get()),
        note,
        note_revision,
    })
}

/// The fields of a note, for a server that keeps notes: an older one would refuse the whole batch.
fn note(note: Option<&NewNote>, info: &Info) -> Result<(Option<String>, Option<u64>)> {
    let Some(note) = note else { return Ok((None, None)) };
    info.require_notes()?;
    Ok((Some(note.text.to_string()), Some(note.revision)))
}

impl Http {
    /// Renews as many leases as fit into one request.
    async fn renew_some(&self, leases: &[wire::Renew]) -> Vec<Result<Renewed>> {
        let body = wire::RenewMany { leases: leases.to_vec() };
        let answers = async {
            let answer: reading::Batch = self.pool.post("/v1/renew", &body).await?.ok()?;
            Ok::<_, Error>(answer.results)
        };
        match answers.await {
            Ok(results) if results.len() == leases.len() => {
                results.into_iter().map(reading::renewed).collect()
            }
            Ok(_) => {
                let odd = || Err(Error::new(ErrorKind::Internal, "the server did not answer each renewal"));
                leases.iter().map(|_| odd()).collect()
            }
            Err(error) => leases.iter().map(|_| Err(error.duplicate())).collect(),
        }
    }
}

#[async_trait]
impl Backend for Http {
    fn info(&self) -> Info {
        self.info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let answer = self.pool.post(&path(&claim.name, "/acquire")?, &acquire(claim, Duration::ZERO)).await?;
        self.polls.answered(&claim.id);
        reading::attempt(answer)
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let poll = self.polls.of(claim, || {
            let wait = Poll::TIME;
            let mut body = acquire(claim, wait);
            // The previous call began the attempt.
            body.first = body.attempt.map(|_| false);
            let (pool, path) = (std::sync::Arc::clone(&self.pool), path(&claim.name, "/acquire")?);
            let pulse = Pulse::listen(&self.pulse, &self.pool);
            Ok((self.pool.runtime().clone(), pulse, async move {
                reading::attempt(pool.post_within(&path, &body, wait + Poll::GRACE).await?)
            }))
        })?;
        poll.answer().await
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let bodies: Vec<Result<wire::Renew>> =
            leases.iter().map(|lease| renewal(lease, &self.info)).collect();
        let good: Vec<wire::Renew> = bodies.iter().filter_map(|body| body.as_ref().ok().cloned()).collect();
        let mut answers = Vec::with_capacity(good.len());
        let mut rest = good.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take(wire::MAX_BATCH).take_while(|body| {
                bytes += serde_json::to_vec(body).map_or(BATCH_BYTES, |text| text.len() + 1);
                bytes <= BATCH_BYTES
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            answers.extend(self.renew_some(now).await);
            rest = later;
        }
        let mut answers = answers.into_iter();
        let none = || Err(Error::new(ErrorKind::Internal, "the server did not answer each renewal"));
        bodies.into_iter().map(|body| body.and_then(|_| answers.next().unwrap_or_else(none))).collect()
    }

    async fn release(&self, lease: &Release) -> Result<Released> {
        let (note, note_revision) = note(lease.note.as_ref(), &self.info)?;
        // A long poll that is still pending must not bring a grant any more.
        let polled = self.polls.ttl_of_pending(&lease.id);
        self.polls.answered(&lease.id);
        let body = wire::Release {
            lease_id: lease.id.expose().to_owned(),
            owner_id: lease.owner.as_ref().map(|owner| owner.to_string()),
            fencing_token: lease.fence.map(|fence| fence.get()),
            unanswered: lease.unanswered.max(polled).map(ceil_ms),
            attempt: lease.nonce.and_then(number),
            note,
            note_revision,
        };
        reading::released(self.pool.post(&path(&lease.name, "/release")?, &body).await?)
    }

    async fn revoke(&self, name: &Name, now: bool, only: Option<Fence>) -> Result<Revoked> {
        let body = wire::Revoke { now, fencing_token: only.map(|fence| fence.get()) };
        reading::revoked(self.pool.post(&path(name, "/revoke")?, &body).await?)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Name(name) => {
                let lock: wire::Lock = self.pool.get(&path(name, "")?).await?.ok()?;
                Ok(Page::new(vec![reading::name_info(lock)?], None))
            }
            Query::LeaseId(id) => {
                let body = wire::Lookup { lease_id: id.expose().to_owned() };
                let found: wire::Found = self.pool.post("/v1/leases/lookup", &body).await?.ok()?;
                if found.found && found.lock.is_none() {
                    // Without the lock's name nothing can be done with the lease, and "not found" would mean lost.
                    return Err(Error::new(
                        ErrorKind::AuthFailed,
                        "the lease is there, but the token may not `read` this lock; name the lock, or use a token \
                         that may read it",
                    ));
                }
                let mut items: Vec<NameInfo> =
                    found.lock.map(reading::name_info).transpose()?.into_iter().collect();
                // The caller asked by the id, so it knows the id.
                let shown = id.digest();
                for info in &mut items {
                    info.holders.iter_mut().filter(|one| one.id == shown).for_each(|one| one.id = *id);
                    info.waiters.iter_mut().filter(|one| one.id == shown).for_each(|one| one.id = *id);
                }
                Ok(Page::new(items, None))
            }
            Query::Prefix { stored, limit, cursor } => {
                check_page_limit(*limit)?;
                let begin = match stored.strip_prefix('/') {
                    Some(begin) => begin,
                    None if stored.is_empty() => "",
                    None => return Err(Error::invalid("over http: the namespace is the server's")),
                };
                let mut path = format!("/v1/locks?limit={}&prefix={}", (*limit).min(1000), segment(begin));
                if let Some(cursor) = cursor {
                    path.push_str(&format!("&cursor={}", segment(cursor)));
                }
                let listed: wire::Listed = self.pool.get(&path).await?.ok()?;
                let items = listed.locks.into_iter().map(reading::name_info).collect::<Result<_>>()?;
                Ok(Page { items, next: listed.next_cursor, age: listed.age_ms.map(Duration::from_millis) })
            }
        }
    }

    async fn sweep(&self) -> Result<Swept> {
        let swept: wire::Swept = self.pool.post("/v1/sweep", &wire::NoFields::default()).await?.ok()?;
        let wire::Swept { expired, tickets, counters, held, waiting } = swept;
        Ok(Swept { expired, tickets, counters, held, waiting })
    }
}
