//! The verbs as plain blocking functions, each under the meta lock of its name.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Pid;

use crate::backend::{
    Attempt, Busy, Claim, Gone, Grant, HolderInfo, Mode, NameInfo, Page, PageBuilder, Query, Release,
    Released, Renewal, Renewed, Swept, refuse_note,
};
use crate::backends::held::Held;
use crate::bugs::{self, Bug};
use crate::clock::Clock;
use crate::engine::reporter;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::HOLDERS_SHOWN;

use super::MAX_PERMITS;
use super::dir::Dir;
use super::local::{Known, Lease, Local};
use super::locked::{Locked, is_locked};
use super::meta::{Files, META, Meta};
use super::names::FileNames;
use super::text::{Kind, Record};
use super::watch::{Watch, Watcher};

/// How long an attempt waits for the meta file: less than a request may take, and more than a slow disk needs to write
/// the counters of a few others.
const META_PATIENCE: Duration = Duration::from_secs(2);

/// How long a release waits for the meta file. After that it unlocks the lock file anyway, and leaves it for the next
/// user.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);

/// How often an attempt starts over because its meta file was removed.
const TRIES: usize = 10;

/// When a blocked claim tries again by itself. Its `wait` looks much sooner.
const RETRY_IN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) dir: Dir,
    pub(crate) names: FileNames,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) local: Mutex<Local>,
    /// Started when it is first needed; `None` if it could not be started.
    pub(crate) watcher: OnceLock<Option<Watcher>>,
    /// Whether the system shows the locks of open files. Learned from our first lock, which certainly exists.
    pub(crate) shows_locks: OnceLock<bool>,
    pub(crate) this: Weak<Store>,
}

impl Store {
    fn files(&self, name: &Name) -> Result<Files> {
        Ok(Files::new(self.names.base(name)?))
    }

    pub(crate) fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if let Mode::Permit { limit } = claim.mode
            && !(1..=MAX_PERMITS).contains(&limit)
        {
            return Err(Error::invalid(format!(
                "the limit of a semaphore on file: must be from 1 to {MAX_PERMITS}"
            )));
        }
        let files = self.files(&claim.name)?;
        for _ in 0..TRIES {
            let meta = Meta::lock(&self.dir, &files, true, META_PATIENCE)?;
            if let Some(answer) = meta.map(|meta| self.try_under(&meta, claim)).transpose()?.flatten() {
                return Ok(answer);
            }
            if !self.dir.is_in_place()? {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "the directory of the lock files was moved or removed; connect again",
                ));
            }
        }
        Err(Error::new(
            ErrorKind::Overloaded,
            "the meta file of the name keeps being removed by another process",
        ))
    }

    /// Makes one attempt; `None` if it has to start over.
    fn try_under(&self, meta: &Meta<'_>, claim: &Claim) -> Result<Option<Attempt>> {
        // A spent id, or one granted before: answer from memory, if the file is still there.
        self.check_in_place(&claim.name, &claim.id)?;
        let known = self.local.lock().known(claim, self.clock.now())?;
        let waits = match known {
            Some(Known::Answer(attempt)) => return Ok(Some(attempt)),
            Some(Known::Wait) => true,
            None => false,
        };
        meta.check_kind(&claim.name, claim.mode)?;
        let file = if waits { None } else { take(meta, claim.mode)? };
        let Some(file) = file else {
            let owner = holders(meta, Kind::of(claim.mode))?.into_iter().next().map(|holder| holder.owner);
            return Ok(Some(Attempt::Busy(Busy { retry_in: Some(RETRY_IN), owner, ..Busy::unknown() })));
        };
        let kept = self.keep(meta, claim, file);
        match kept {
            Ok(attempt) if meta.is_in_place()? => Ok(Some(attempt)),
            Ok(_) => {
                // Another process may be at work under another meta file, so this grant is worth nothing.
                self.local.lock().lose(&claim.name, &claim.id, self.clock.now());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a lease of a locked file: counts it, writes it down and keeps it.
    fn keep(&self, meta: &Meta<'_>, claim: &Claim, file: Locked) -> Result<Attempt> {
        let wall = self.clock.wall_micros();
        let written = meta.last_fence().and_then(|last| last.next(wall)).and_then(|fence| {
            if !bugs::on(Bug::FileCountsNothing) {
                meta.count(&claim.name, claim.mode, fence)?;
            }
            let record = Record {
                shared: claim.mode == Mode::Shared,
                fence,
                since_ms: wall / 1000,
                pid: own_pid(),
                id: claim.id,
                owner: Arc::clone(&claim.owner),
                metadata: claim.metadata.clone(),
            };
            // The lines of the others that share it are in the file already.
            let others = if record.shared { file.read()? } else { String::new() };
            file.write(&(others + &record.write()))?;
            Ok(fence)
        });
        let fence = match written {
            Ok(fence) => fence,
            Err(error) => {
                let_go(meta, file, &claim.id);
                return Err(error);
            }
        };
        self.shows_locks
            .get_or_init(|| is_locked(file.descriptor(), claim.mode == Mode::Shared) == Some(true));
        let lease = Lease { file, held: Held::new(claim, fence, wall), over: Arc::default() };
        let kept = self.local.lock().keep(claim, lease, self.clock.now());
        Ok(match kept {
            Ok(grant) => Attempt::Granted(grant),
            Err(lease) => {
                let_go(meta, lease.file, &claim.id);
                Attempt::Gone(Gone::Superseded)
            }
        })
    }

    /// Whether an attempt could succeed now, or is needed for another reason.
    pub(crate) fn is_worth_trying(&self, claim: &Claim) -> Result<bool> {
        let files = self.files(&claim.name)?;
        let Some(meta) = Meta::lock(&self.dir, &files, false, RELEASE_PATIENCE)? else { return Ok(true) };
        if meta.content.as_ref().is_none_or(|content| content.kind != Kind::of(claim.mode)) {
            return Ok(true);
        }
        for file in files.of_kind(Kind::of(claim.mode)) {
            if !Locked::keeps_out(&self.dir, &file, claim.mode == Mode::Shared)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn watcher(&self) -> Option<&Watcher> {
        let start = || match Watcher::start(self.this.clone()) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                reporter::log(
                    move || tracing::debug!(%error, "lock files cannot be watched; they are looked at instead"),
                );
                None
            }
        };
        self.watcher.get_or_init(start).as_ref()
    }

    /// Watches the files that block a claim, until the result is dropped. `None` if not all of them can be watched.
    pub(crate) fn watch_for(&self, claim: &Claim) -> Option<Watch> {
        let mut watch = self.watcher()?.watch();
        for file in self.files(&claim.name).ok()?.of_kind(Kind::of(claim.mode)) {
            if !watch.closed(&self.dir.path().join(&file), &claim.name) {
                return None;
            }
        }
        Some(watch)
    }

    /// Watches the file of a lease, and its directory, until the result is dropped.
    pub(crate) fn watch_lease(&self, name: &Name, id: &LeaseId) -> Option<Watch> {
        let (file, _) = self.local.lock().lease(name, id)?.file.identity();
        let mut watch = self.watcher()?.watch();
        let path = self.dir.path();
        (watch.gone(&path.join(file), Some(name)) && watch.gone(path, None)).then_some(watch)
    }

    /// Handles an event on a file of this name.
    pub(crate) fn noticed(&self, name: &Name) {
        let held = self.local.lock().held(name);
        for id in held {
            // If this check fails, the next one decides.
            let _ = self.check_in_place(name, &id);
        }
        self.local.lock().ring(name);
    }

    /// The open file of a lease, for a child to inherit.
    pub(crate) fn hand_over(&self, id: &LeaseId) -> Result<OwnedFd> {
        match self.local.lock().by_id(id) {
            Some(lease) => lease.file.hand_over(),
            None => Err(Error::new(ErrorKind::Lost, "this store holds no lease with that id")),
        }
    }

    /// Checks a lease: drops it if its file is no longer the one that others would lock, or no longer locked. Returns
    /// whether the lease is there.
    pub(crate) fn check_in_place(&self, name: &Name, id: &LeaseId) -> Result<bool> {
        let Some((file, identity, descriptor, mode)) = self.local.lock().lease(name, id).map(|lease| {
            let (file, identity) = lease.file.identity();
            (file, identity, lease.file.descriptor(), lease.held.grant.mode)
        }) else {
            return Ok(false);
        };
        // A descriptor that was closed, or now belongs to another file, means that the lease was released.
        let locked = !self.shows_locks.get().is_some_and(|shown| *shown)
            || is_locked(descriptor, mode == Mode::Shared).is_none_or(|locked| locked);
        if locked && self.dir.is_at(&file, identity)? && self.dir.is_in_place()? {
            return Ok(true);
        }
        let lost = {
            let mut local = self.local.lock();
            let lost = local.lose(name, id, self.clock.now());
            local.ring(name);
            lost
        };
        drop(lost);
        Ok(false)
    }

    pub(crate) fn renew(&self, renewal: &Renewal) -> Result<Renewed> {
        let Renewal { name, id, .. } = renewal;
        refuse_note("file", renewal.note.as_ref())?;
        let gone = |gone| Ok(Renewed::Gone(gone));
        if !self.check_in_place(name, id)? {
            return gone(Gone::NotFound);
        }
        let files = self.files(name)?;
        let raise = renewal.raise_fence.filter(|raise| !raise.is_unfenced());
        // Only a raised fence has to be written down.
        let meta = match raise {
            Some(_) => Meta::lock(&self.dir, &files, true, META_PATIENCE)?,
            None => None,
        };
        let (fence, mode) = match self.local.lock().lease(name, id) {
            Some(lease) if lease.held.matches(renewal.fence, renewal.owner.as_deref()) => {
                (lease.held.grant.fence, lease.held.grant.mode)
            }
            _ => return gone(Gone::NotFound),
        };
        if let (Some(raise), Some(meta)) = (raise, &meta) {
            if raise > meta.last_fence()?.max(fence).raise_limit(self.clock.wall_micros()) {
                return Err(Fence::too_high());
            }
            if raise < fence {
                return gone(Gone::Superseded);
            }
        }
        match renewal.mode {
            Some(wanted) if wanted == mode => {}
            Some(Mode::Shared) if mode == Mode::Exclusive => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "file: cannot downgrade: changing a lock on a file is not atomic",
                ));
            }
            Some(wanted) => return Err(wanted.mismatch(mode)),
            None => {}
        }
        if let (Some(raise), Some(meta)) = (raise, &meta)
            && meta.last_fence()? < raise
        {
            meta.count(name, mode, raise)?;
        }
        let mut local = self.local.lock();
        let Some(lease) = local.lease(name, id) else { return gone(Gone::NotFound) };
        Ok(Renewed::Held(lease.held.renewed(renewal)))
    }

    pub(crate) fn release(&self, release: &Release) -> Result<Released> {
        refuse_note("file", release.note.as_ref())?;
        let files = self.files(&release.name)?;
        let (released, lease) = self.local.lock().release(release, self.clock.now());
        if let Some(lease) = lease {
            match Meta::lock(&self.dir, &files, false, RELEASE_PATIENCE) {
                Ok(Some(meta)) => {
                    let_go(&meta, lease.file, &release.id);
                    if let Err(error) = meta.count_change() {
                        reporter::log(move || tracing::debug!(%error, "a release was not counted"));
                    }
                }
                // Without the meta lock the file must not be removed, only unlocked.
                Ok(None) | Err(_) => lease.file.unlock(),
            }
        }
        self.local.lock().ring(&release.name);
        Ok(released)
    }

    pub(crate) fn inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::Name(name) => Ok(Page::new(vec![self.view(name)?], None)),
            Query::LeaseId(_) => {
                Err(Error::new(ErrorKind::Unsupported, "file: cannot find a lease by its id; ask by name"))
            }
            Query::Prefix { stored: prefix, limit, cursor } => {
                let mut page = PageBuilder::new(*limit)?;
                let mut names = Vec::new();
                for base in self.dir.list(META)? {
                    // Skip what is not ours, or went away meanwhile.
                    let Ok(Some(content)) = Meta::peek(&self.dir, &base) else { continue };
                    let after = cursor.as_ref().is_none_or(|cursor| *content.name > **cursor);
                    if after && content.name.starts_with(prefix.as_str()) {
                        names.push(content.name);
                    }
                }
                names.sort_unstable();
                for stored in names {
                    let Ok(name) = Name::from_stored(&stored) else { continue };
                    let item = self.view(&name)?;
                    if item.holders.is_empty() && item.queue_length == 0 {
                        continue;
                    }
                    if !page.take(item) {
                        break;
                    }
                }
                Ok(page.finish())
            }
        }
    }

    fn view(&self, name: &Name) -> Result<NameInfo> {
        let mut info = NameInfo::unused(name.clone());
        let files = self.files(name)?;
        if let Some(meta) = Meta::lock(&self.dir, &files, false, META_PATIENCE)? {
            (info.last_fence, info.version) = (meta.last_fence()?, meta.version());
            if let Some(kind) = meta.kind_in_use()? {
                info.holders = holders(&meta, kind)?;
                info.holders.sort_by_key(|holder| holder.grant.fence);
                info.holder_count = info.holders.len() as u64;
                info.holders.truncate(HOLDERS_SHOWN);
            }
        }
        (info.waiters, info.queue_length) = self.local.lock().waiters(name, self.clock.now());
        Ok(info)
    }

    pub(crate) fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept { waiting: self.local.lock().waiting(), ..Swept::default() };
        for base in self.dir.list(META)? {
            let files = Files::new(base);
            // Another process is at work there; skip it this time.
            let Ok(Some(meta)) = Meta::lock(&self.dir, &files, false, Duration::ZERO) else { continue };
            let Some(kind) = meta.content.as_ref().map(|content| content.kind) else { continue };
            let mut in_use = false;
            let all = [Kind::Lock, Kind::Permits(MAX_PERMITS)];
            for file in all.into_iter().flat_map(|kind| files.of_kind(kind)) {
                match Locked::take(&self.dir, &file, false, false)? {
                    Some(unused) => unused.remove(&self.dir, |text| text)?,
                    None => in_use |= Locked::is_held(&self.dir, &file)?,
                }
            }
            if in_use {
                swept.held += holders(&meta, kind)?.len() as u64;
            } else if meta.last_fence()?.is_forgettable(self.clock.wall_micros(), Fence::RETENTION) {
                meta.forget()?;
                swept.counters += 1;
            }
        }
        Ok(swept)
    }
}

/// Locks the file that a mode needs, if it is free.
fn take(meta: &Meta<'_>, mode: Mode) -> Result<Option<Locked>> {
    let Meta { dir, files, .. } = meta;
    match mode {
        Mode::Exclusive => Locked::take(dir, &files.lock(), bugs::on(Bug::FileLocksShared), true),
        Mode::Shared => {
            // Try exclusively first: if that works, this is the first reader, and the text in the file is old.
            if let Some(file) = Locked::take(dir, &files.lock(), false, true)? {
                file.write("")?;
                return Ok(file.share()?.then_some(file));
            }
            Locked::take(dir, &files.lock(), true, true)
        }
        Mode::Permit { limit } => {
            for index in 0..limit {
                if let Some(file) = Locked::take(dir, &files.slot(index), false, true)? {
                    return Ok(Some(file));
                }
            }
            Ok(None)
        }
    }
}

/// Unlocks and removes a file. If it cannot be removed, it is unlocked all the same.
fn let_go(meta: &Meta<'_>, file: Locked, id: &LeaseId) {
    let others = |text: String| {
        Record::read_all(&text).iter().filter(|record| record.id != *id).map(Record::write).collect()
    };
    if let Err(error) = file.remove(meta.dir, others) {
        reporter::log(
            move || tracing::debug!(%error, "a lock file that is no longer used was left where it is"),
        );
    }
}

/// The holders of the name, whose files are locked. Of several that share one file, only the ones with a live process.
fn holders(meta: &Meta<'_>, kind: Kind) -> Result<Vec<HolderInfo>> {
    let mut holders = Vec::new();
    for name in meta.files.of_kind(kind) {
        if !Locked::is_held(meta.dir, &name)? {
            continue;
        }
        let text = meta.dir.open_to_look(&name)?.map(|file| super::locked::read(&file)).transpose()?;
        let mut records = Record::read_all(&text.unwrap_or_default());
        if records.len() > 1 {
            records.retain(|record| is_alive(record.pid));
        }
        if records.is_empty() {
            holders.push(stranger(kind)?);
        }
        holders.extend(records.iter().map(|record| record.info(kind)));
    }
    Ok(holders)
}

/// A holder that locked the file without writing who it is: another program.
fn stranger(kind: Kind) -> Result<HolderInfo> {
    let id = LeaseId::parse("----------------------")?;
    let grant = Grant::new(Fence::UNFENCED, kind.mode(), None);
    Ok(HolderInfo { id, owner: "unknown".into(), metadata: None, grant, revoked: false })
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn is_alive(pid: i32) -> bool {
    Pid::from_raw(pid)
        .is_some_and(|pid| !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH)))
}
