//! Turns that change a lease, or another client's: downgrade, shorten, give away and adopt, revoke.

use std::fs;
use std::time::Duration;

use leasehold::{ErrorKind, Fence, Guard, Lease};

use crate::history::record::{Face, Kind, Mode};

use super::Player;
use super::guards::Wait;
use super::pen::{AnyGuard as _, now, recorded};

/// The shortened ttl of a lease that is left to expire at once.
const SOON: Duration = Duration::from_millis(300);

/// Helper tasks beside the one whose turn it is have numbers higher by this.
pub(super) const BESIDE: u16 = 1_000;

impl Player {
    /// Writes, and then lets readers in: takes the lock alone, downgrades it, and checks whether a reader is let in.
    pub(super) async fn write_and_read(&mut self) {
        let Some(guard) = self.acquire_guard(Face::Usual).await else { return };
        self.pen.look(&guard);
        tokio::time::sleep(self.dice.micros(2_000)).await;
        self.pen.look(&guard);
        // From the call on it is only shared.
        self.pen.mode = Mode::Shared;
        self.pen.note(Kind::DowngradeCall, now(), 0, 0);
        let downgraded = guard.downgrade().await.is_ok();
        self.pen.note(if downgraded { Kind::Downgraded } else { Kind::DowngradeFailed }, now(), 0, 0);
        if downgraded {
            self.read_beside().await;
        }
        self.keep(&guard, false).await;
        self.finish(guard).await;
    }

    /// Checks whether a reader is let in: as another task, because this one holds the lock.
    async fn read_beside(&mut self) {
        let claim = self.claims.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let own = self.pen.clone();
        (self.pen.task, self.pen.claim) = (own.task + BESIDE, claim);
        self.pen.know(None, 0);
        self.pen.call(now(), self.asked(), 0, Face::Probe);
        match self.acquire(Wait::Try).await {
            Ok(Some(guard)) => {
                self.pen.granted(&guard);
                self.pen.look(&guard);
                self.release(guard).await;
            }
            Ok(None) => drop(self.pen.refused(None)),
            Err(error) => drop(self.pen.refused(Some(&error))),
        }
        self.pen = own;
    }

    /// Lets the lease end soon; returns whether it will.
    pub(super) async fn shorten(&self, guard: &Guard) -> bool {
        let short = if self.task.lingers { self.ttl / 2 } else { SOON };
        self.pen.note(Kind::ShortenCall, now(), 0, short.as_nanos() as u64);
        let shortened = guard.shorten_to(short).await.is_ok();
        let at = now();
        let kind = if shortened { Kind::Shortened } else { Kind::ShortenFailed };
        self.pen.note(kind, at, if shortened { guard.deadline(at) } else { 0 }, 0);
        shortened && guard.valid_for().is_some_and(|valid| !valid.is_zero() && valid <= short)
    }

    /// Turns the guard into plain data, which nothing renews.
    pub(super) fn give_away(&self, guard: Guard) -> Lease {
        let at = now();
        self.pen.note(Kind::GivenAway, at, guard.deadline(at), 0);
        guard.into_lease()
    }

    /// Adopts a lease that another process has left, or leaves one for another process.
    pub(super) async fn relay(&mut self) {
        // A session belongs to its process, and in `leak` nothing may be left to expire.
        let own = self.task.session || !self.task.lingers || self.dice.once_in(4);
        if !own && let Some(lease) = self.pick_up() {
            // Some come too late.
            if self.dice.once_in(6) {
                tokio::time::sleep(self.ttl.mul_f64(self.dice.between(30, 150) as f64 / 100.0)).await;
            }
            return self.adopt(lease).await;
        }
        let Some(guard) = self.acquire_guard(Face::Usual).await else { return };
        let protects = self.protects();
        self.keep(&guard, protects).await;
        if guard.check().is_err() {
            return self.finish(guard).await;
        }
        let lease = self.give_away(guard);
        if own {
            tokio::time::sleep(self.dice.micros(5_000)).await;
            return self.adopt(lease).await;
        }
        let path = self.task.handed.join(format!("{}-{}", self.pen.worker, self.pen.claim));
        let unfinished = path.with_extension("new");
        let text = serde_json::to_string(&lease).unwrap_or_default();
        if fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path)).is_err() {
            // Nobody will adopt it: it expires.
            eprintln!("worker {}: a lease cannot be laid down", self.pen.worker);
        }
    }

    /// A lease that was left, for this process alone.
    fn pick_up(&self) -> Option<Lease> {
        for found in fs::read_dir(&self.task.handed).ok()?.flatten() {
            let path = found.path();
            let own = path.with_extension(format!("of-{}-{}", self.pen.worker, self.pen.claim));
            // Only one of the processes that see it can take it.
            if path.extension().is_none() && fs::rename(&path, &own).is_ok() {
                let text = fs::read_to_string(&own).ok()?;
                let _ = fs::remove_file(&own);
                return serde_json::from_str(&text).ok();
            }
        }
        None
    }

    /// Turns it into a guard again, and keeps that.
    async fn adopt(&mut self, lease: Lease) {
        let Some(name) = self.task.names.iter().position(|name| name.name == lease.name.as_str()) else {
            return;
        };
        self.pen.name = name as u16;
        self.pen.mode = recorded(lease.mode);
        self.pen.know(Some(lease.id), lease.fence.get());
        self.ttl = lease.ttl;
        self.pen.note(Kind::AdoptCall, now(), 0, lease.ttl.as_nanos() as u64);
        match self.locks.adopt(lease).await {
            Ok(guard) => {
                let at = now();
                self.pen.note(Kind::Adopted, at, guard.deadline(at), 0);
                let protects = self.protects();
                self.keep(&guard, protects).await;
                self.finish(guard).await;
            }
            Err(error) if error.kind() == ErrorKind::Lost => self.pen.note(Kind::AdoptRefused, now(), 0, 0),
            Err(_) => self.pen.note(Kind::AdoptFailed, now(), 0, 0),
        }
    }

    /// Revokes the current holders, or one that was seen to hold the lock, which may have changed meanwhile.
    pub(super) async fn revoke(&mut self) {
        let at_once = self.dice.once_in(2);
        let seen = self.seen;
        let look = self.dice.below(3);
        if look > 0
            && let Ok(now) = self.locks.inspect(&self.name().name).await
        {
            self.seen = now.holders.first().map_or(0, |holder| holder.grant.fence.get());
        }
        let only = match look {
            0 => None,
            1 => Some(seen),
            _ => Some(self.seen),
        };
        // No holder was seen.
        if only == Some(0) {
            return;
        }
        self.pen.know(None, only.unwrap_or(0));
        self.pen.note(Kind::RevokeCall, now(), 0, u64::from(at_once));
        let name = &self.name().name;
        let revoked = match only {
            Some(only) => self.locks.revoke_only(name, Fence::new(only), at_once).await,
            None => self.locks.revoke(name, at_once).await,
        };
        let met = revoked.as_ref().map_or(0, |revoked| revoked.leases + 1);
        self.pen.note(Kind::Revoked, now(), met, u64::from(revoked.is_err()));
    }
}
