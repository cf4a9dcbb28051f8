//! The memory store with one bug.
//!
//! One file because it is one store: each bug is a branch in one of its eight methods.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::backend::{
    Attempt, Backend, Busy, Claim, Gone, Grant, Info, Mode, NameInfo, NewNote, Note, Page, Query, Release,
    Released, Renewal, Renewed, Revoked, Swept, Wake,
};
use leasehold::backends::memory::Memory;
use leasehold::{ErrorKind, Fence, LeaseId, Name, Result};

use crate::Bug;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The pause between a look and the write that relies on it: long enough for a racing caller to come in between.
const GAP: Duration = Duration::from_millis(2);

/// The memory store with one bug.
#[derive(Debug)]
pub(crate) struct Broken {
    inner: Memory,
    bug: Bug,
    common: Arc<Mutex<Common>>,
    /// What was claimed through this client.
    mine: Mutex<HashSet<LeaseId>>,
    second: bool,
}

/// What a bug has to remember, for both clients.
#[derive(Debug, Default)]
struct Common {
    claims: HashMap<LeaseId, Claim>,
    spent: HashMap<LeaseId, Instant>,
    revoked: HashSet<Name>,
    deaf: HashSet<LeaseId>,
    waits: HashMap<Name, usize>,
    notes: HashMap<Name, Note>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

fn fake(claim: &Claim) -> Attempt {
    Attempt::Granted(Grant::new(Fence::at(1_793_000_000_000_000), claim.mode, Some(claim.ttl)))
}

fn plain(claim: &Claim) -> Release {
    Release::new(claim.name.clone(), claim.id)
}

fn until_nul(text: &str) -> Arc<str> {
    text.split('\0').next().unwrap().into()
}

impl Broken {
    /// Two clients of one store.
    pub(crate) fn pair(bug: Bug) -> [Arc<Self>; 2] {
        let (inner, common) = (Memory::new(), Arc::<Mutex<Common>>::default());
        [false, true].map(|second| {
            let (inner, common) = (inner.clone(), Arc::clone(&common));
            Arc::new(Broken { inner, bug, common, mine: Mutex::default(), second })
        })
    }

    async fn view(&self, name: &Name) -> NameInfo {
        self.inner.inspect(&Query::Name(name.clone())).await.unwrap().items.remove(0)
    }

    async fn claims_on(&self, name: &Name) -> Option<Claim> {
        let id = self.view(name).await.holders.first()?.id;
        lock(&self.common).claims.get(&id).cloned()
    }

    /// The name as this store takes it.
    fn name(&self, name: &Name) -> Name {
        let (namespace, text) = (name.namespace(), name.as_str());
        let changed = match self.bug {
            Bug::NamesIgnoreCase => Name::within(&namespace, &text.to_lowercase()),
            Bug::NamesAreTrimmed => Name::within(&namespace, text.trim_end_matches(['.', ' '])),
            Bug::NamesAreCut => Name::within(&namespace, &text.chars().take(100).collect::<String>()),
            Bug::NamespacesMeet => Name::new(text),
            _ => return name.clone(),
        };
        changed.unwrap()
    }

    /// A grant as this store tells it.
    fn told(&self, mut grant: Grant, ttl: Duration) -> Grant {
        match self.bug {
            Bug::FencesRepeat => grant.fence = Fence::new(7),
            Bug::FencesCountFromOne => grant.fence = Fence::new(1),
            Bug::FencesAreMissing => grant.fence = Fence::UNFENCED,
            Bug::TimeLeftIsNotSaid => grant.left = None,
            Bug::KeepsLessThanItSays => grant.left = grant.left.map(|left| left + ttl * 9 / 10),
            Bug::LeasesNeverExpire => grant.left = Some(ttl),
            _ => {}
        }
        grant
    }

    /// A ttl as this store keeps it.
    fn kept(&self, ttl: Duration) -> Duration {
        match self.bug {
            Bug::KeepsLessThanItSays => ttl / 10,
            Bug::LeasesNeverExpire => DAY,
            _ => ttl,
        }
    }

    /// A claim as this store takes it.
    async fn taken(&self, claim: &Claim, seen: &NameInfo) -> Claim {
        let mut claim = claim.clone();
        claim.name = self.name(&claim.name);
        claim.ttl = self.kept(claim.ttl);
        match (self.bug, claim.mode) {
            (Bug::ExclusiveIsShared, Mode::Exclusive) => claim.mode = Mode::Shared,
            (Bug::SharedIsExclusive, Mode::Shared) => claim.mode = Mode::Exclusive,
            (Bug::OnePermitTooMany, Mode::Permit { limit }) => claim.mode = Mode::Permit { limit: limit + 1 },
            (Bug::ReadersShareOneTtl, Mode::Shared) => {
                let longest = seen.holders.iter().filter_map(|holder| holder.grant.left).max();
                claim.ttl = claim.ttl.max(longest.unwrap_or_default());
            }
            (Bug::RepeatIsForgotten, _) => claim.repeat = false,
            (Bug::LapsedPlacesAreForgotten, _) if claim.queue.is_some() => claim.repeat = false,
            (Bug::NoPermitsIsOne, Mode::Permit { limit: 0 }) => claim.mode = Mode::Permit { limit: 1 },
            (Bug::LongTimesWrap, _) if claim.ttl >= DAY => claim.ttl = Duration::from_secs(1),
            (Bug::NonceIsForgotten, _) => (claim.nonce, claim.first) = (0, true),
            (Bug::ZeroIsNumberedAnew, _) if claim.nonce == 0 => claim.nonce = 99,
            (Bug::AnyCallSetsTheNonce, _) => claim.first = true,
            (Bug::TryJoinsTheQueue, _) => claim.queue = Some(claim.queue.unwrap_or(Duration::from_secs(5))),
            (Bug::TicketsNeverLapse, _) => claim.queue = claim.queue.map(|_| DAY),
            (Bug::TextEndsAtNul, _) => {
                claim.owner = until_nul(&claim.owner);
                claim.metadata = claim.metadata.as_deref().map(until_nul);
            }
            _ => {}
        }
        claim
    }

    /// Puts all other waiters behind the newcomer.
    async fn send_to_the_back(&self, claim: &Claim) {
        for waiter in self.view(&claim.name).await.waiters {
            let other = lock(&self.common).claims.get(&waiter.id).cloned();
            if let Some(other) = other.filter(|other| other.id != claim.id) {
                self.inner.release(&plain(&other)).await.unwrap();
                self.inner.try_acquire(&other).await.unwrap();
            }
        }
    }

    /// A note as this store keeps it.
    fn note(&self, note: Option<NewNote>) -> Option<NewNote> {
        let mut note = note?;
        match self.bug {
            Bug::NotesAreCut => note.text = note.text.chars().take(100).collect::<String>().into(),
            Bug::EmptyNotesAreNone if note.text.is_empty() => return None,
            _ => {}
        }
        Some(note)
    }

    /// What this store makes of a note that came with a verb: `fence` of the lease that it found.
    fn noted(&self, name: &Name, note: Option<NewNote>, fence: Option<Fence>) {
        let Some(note) = note else { return };
        let fence = match (self.bug, fence) {
            (Bug::NotesNeedNoLease, None) => Fence::MAX,
            (Bug::AnyNoteReplaces, Some(fence)) => fence,
            _ => return,
        };
        lock(&self.common).notes.insert(name.clone(), Note::new(note.text, fence, note.revision));
    }

    async fn renew_one(&self, asked: &Renewal) -> Result<Renewed> {
        let mut renewal = asked.clone();
        renewal.name = self.name(&renewal.name);
        renewal.ttl = self.kept(renewal.ttl);
        let info = self.view(&renewal.name).await;
        let holder = info.holders.iter().find(|holder| holder.id == renewal.id);
        let claim = lock(&self.common).claims.get(&renewal.id).cloned();
        match self.bug {
            Bug::FencesRepeat | Bug::FencesCountFromOne | Bug::FencesAreMissing | Bug::FenceIsNotCompared => {
                renewal.fence = None;
            }
            Bug::OwnerIsNotCompared => renewal.owner = None,
            Bug::NameIsNotCompared => {
                renewal.name = claim.map_or(renewal.name, |claim| claim.name);
            }
            Bug::KnowsOnlyItsOwn if !lock(&self.mine).contains(&renewal.id) => {
                return Ok(Renewed::Gone(Gone::NotFound));
            }
            Bug::RenewShortens => renewal.shorten = holder.map(|holder| holder.grant.renewals),
            Bug::RenewAddsToWhatIsLeft => {
                renewal.ttl += holder.and_then(|holder| holder.grant.left).unwrap_or_default();
            }
            Bug::ShortenIgnoresTheCount if renewal.shorten.is_some() => {
                renewal.shorten = holder.map(|holder| holder.grant.renewals);
            }
            Bug::ShortenDoesNothing if renewal.shorten.is_some() => {
                let mut grant = holder.unwrap().grant.clone();
                (grant.left, grant.renewals) = (Some(renewal.ttl), grant.renewals + 1);
                return Ok(Renewed::Held(grant));
            }
            Bug::RenewDoesNothing => {
                if let Some(holder) = holder {
                    let mut grant = holder.grant.clone();
                    grant.left = Some(renewal.ttl);
                    return Ok(Renewed::Held(grant));
                }
            }
            Bug::RenewHoldsAnyId => {
                let fence = renewal.fence.unwrap_or(Fence::new(1));
                return Ok(Renewed::Held(Grant::new(fence, Mode::Exclusive, Some(renewal.ttl))));
            }
            Bug::RenewRevives => {
                if let (None, Some(claim)) = (holder, claim)
                    && let Attempt::Granted(grant) = self.inner.try_acquire(&claim).await?
                {
                    return Ok(Renewed::Held(grant));
                }
            }
            Bug::RenewLooksThenWrites => {
                if let (Some(_), Some(claim)) = (holder, claim) {
                    tokio::time::sleep(GAP).await;
                    if let Attempt::Granted(grant) = self.inner.try_acquire(&claim).await? {
                        return Ok(Renewed::Held(grant));
                    }
                }
            }
            Bug::RenewRaisesTheFence => {
                renewal.raise_fence = holder.map(|holder| Fence::new(holder.grant.fence.get() + 1));
            }
            Bug::RevokedComesFirst if holder.is_some_and(|holder| holder.revoked) => {
                return Ok(Renewed::Gone(Gone::Revoked));
            }
            Bug::RaiseIsForgotten => renewal.raise_fence = None,
            Bug::RaiseHasNoBound => {
                let near = holder.map(|holder| Fence::new(holder.grant.fence.get() + 24 * 3600 * 256_000));
                renewal.raise_fence =
                    renewal.raise_fence.filter(|raise| near.is_some_and(|near| *raise < near));
            }
            Bug::DowngradeIsReleaseAndAcquire if renewal.mode == Some(Mode::Shared) => {
                if let (Some(holder), Some(mut claim)) = (holder, claim)
                    && holder.grant.mode == Mode::Exclusive
                {
                    self.inner.release(&plain(&claim)).await?;
                    claim.mode = Mode::Shared;
                    if let Attempt::Granted(grant) = self.inner.try_acquire(&claim).await? {
                        return Ok(Renewed::Held(grant));
                    }
                    return Ok(Renewed::Gone(Gone::NotFound));
                }
            }
            Bug::UpgradeIsGranted if renewal.mode == Some(Mode::Exclusive) => renewal.mode = None,
            Bug::RevokeMarksTheName if lock(&self.common).revoked.contains(&renewal.name) => {
                return Ok(Renewed::Gone(Gone::Revoked));
            }
            Bug::StraysLeaveSomething if info.version == 0 => {
                let claim = Claim::new(renewal.name.clone(), Mode::Exclusive, DAY, "stray");
                self.inner.try_acquire(&claim).await?;
                self.inner.release(&plain(&claim)).await?;
            }
            _ => {}
        }
        renewal.note = self.note(renewal.note);
        let (name, note) = (renewal.name.clone(), renewal.note.clone());
        let answer = self.inner.renew(&[renewal]).await.remove(0)?;
        let fence = match &answer {
            Renewed::Held(grant) => Some(grant.fence),
            _ => None,
        };
        self.noted(&name, note, fence);
        match answer {
            Renewed::Held(grant) => Ok(Renewed::Held(self.told(grant, asked.ttl))),
            gone => Ok(gone),
        }
    }
}

#[async_trait]
impl Backend for Broken {
    fn info(&self) -> Info {
        let mut info = self.inner.info();
        match self.bug {
            Bug::InfoChanges if self.second => info.fifo = false,
            Bug::SaysItCannotRevoke => info.revoke = false,
            Bug::SaysItKeepsNoNotes => info.notes = false,
            _ => {}
        }
        info
    }

    async fn try_acquire(&self, asked: &Claim) -> Result<Attempt> {
        let seen = self.view(&self.name(&asked.name)).await;
        let claim = self.taken(asked, &seen).await;
        lock(&self.mine).insert(claim.id);
        let known = lock(&self.common).claims.insert(claim.id, claim.clone()).is_some();
        let holds = seen.holders.iter().any(|holder| holder.id == claim.id);
        let waits = seen.waiters.iter().any(|waiter| waiter.id == claim.id);
        match self.bug {
            Bug::Panics => panic!("the store is on fire"),
            Bug::Hangs => return std::future::pending().await,
            Bug::LooksThenGrants => {
                let room = match claim.mode {
                    Mode::Permit { limit } => limit as usize,
                    _ => 1,
                };
                tokio::time::sleep(GAP).await;
                if seen.holders.len() < room {
                    self.inner.try_acquire(&claim).await?;
                    return Ok(fake(&claim));
                }
            }
            Bug::GrantsAreNotStored if seen.holders.is_empty() => return Ok(fake(&claim)),
            Bug::QueueingNeverEntersAtOnce if claim.queue.is_some() && !known => {
                return Ok(Attempt::Busy(Busy::unknown()));
            }
            Bug::RepeatIsANewGrant if holds => {
                self.inner.release(&plain(&claim)).await?;
            }
            Bug::RepeatRearms if holds => {
                let renewal = Renewal::new(claim.name.clone(), claim.id, claim.ttl);
                self.inner.renew(&[renewal]).await.remove(0)?;
            }
            Bug::RepeatTakesAnotherPermit if holds => {
                let mut other = claim.clone();
                other.id = LeaseId::random();
                self.inner.try_acquire(&other).await?;
            }
            Bug::RevokedRepeatsAreRefused if seen.holders.iter().any(|h| h.id == claim.id && h.revoked) => {
                return Ok(Attempt::Gone(Gone::Superseded));
            }
            Bug::ReadersGoInWithoutEnd
                if claim.mode == Mode::Shared
                    && seen.holders.iter().all(|h| h.grant.mode == Mode::Shared) =>
            {
                return Ok(fake(&claim));
            }
            Bug::RepeatStandsInLine if holds && !seen.waiters.is_empty() => {
                return Ok(Attempt::Busy(Busy::unknown()));
            }
            Bug::SpentOnlyForTheTtl => {
                let over = lock(&self.common).spent.get(&claim.id).copied();
                if over.is_some_and(|over| Instant::now() < over) {
                    return Ok(Attempt::Gone(Gone::Superseded));
                }
            }
            Bug::RefreshLosesThePlace | Bug::LookingLosesThePlace
                if waits && (self.bug == Bug::RefreshLosesThePlace || claim.queue.is_none()) =>
            {
                self.inner.release(&plain(&claim)).await?;
            }
            Bug::RefreshDoesNotKeepThePlace if waits && !seen.holders.is_empty() => {
                let mut look = claim.clone();
                look.queue = None;
                return self.inner.try_acquire(&look).await;
            }
            _ => {}
        }
        let answer = self.inner.try_acquire(&claim).await;
        match (self.bug, answer) {
            (Bug::MismatchIsBusy, Err(error)) if error.kind() == ErrorKind::Mismatch => {
                Ok(Attempt::Busy(Busy::unknown()))
            }
            (Bug::WaitersMayChangeTheirMode, Err(error)) if error.kind() == ErrorKind::InvalidArgument => {
                self.inner.release(&plain(&claim)).await?;
                self.inner.try_acquire(&claim).await
            }
            (Bug::ReadersOvertake, Ok(Attempt::Busy(_)))
                if claim.mode == Mode::Shared
                    && !seen.holders.is_empty()
                    && seen.holders.iter().all(|holder| holder.grant.mode == Mode::Shared) =>
            {
                Ok(fake(&claim))
            }
            (Bug::NewcomersGoFirst, Ok(Attempt::Busy(busy))) if !waits && claim.queue.is_some() => {
                self.send_to_the_back(&claim).await;
                Ok(Attempt::Busy(busy))
            }
            (Bug::BusyNamesTheOther, Ok(Attempt::Busy(mut busy))) => {
                let other = seen.holders.iter().find(|holder| Some(&holder.owner) != busy.owner.as_ref());
                busy.owner = other.map(|holder| holder.owner.clone()).or(busy.owner);
                Ok(Attempt::Busy(busy))
            }
            (_, Ok(Attempt::Granted(mut grant))) => {
                if matches!(self.bug, Bug::ExclusiveIsShared | Bug::SharedIsExclusive) {
                    grant.mode = asked.mode;
                }
                Ok(Attempt::Granted(self.told(grant, asked.ttl)))
            }
            (_, answer) => answer,
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let mut claim = claim.clone();
        claim.name = self.name(&claim.name);
        let mut wait = pin!(self.inner.wait(&claim));
        match self.bug {
            Bug::WaitNeverWakes => return std::future::pending().await,
            Bug::WakeUpsBeforeTheWaitAreLost => {
                let first = std::future::poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx)));
                if first.await.is_ready() {
                    return std::future::pending().await;
                }
            }
            Bug::ADroppedWaitIsDeaf if !lock(&self.common).deaf.insert(claim.id) => {
                return std::future::pending().await;
            }
            Bug::PlacesOutliveTheirWait => {
                let (inner, claim) = (self.inner.clone(), claim.clone());
                tokio::spawn(async move {
                    for _ in 0..2000 {
                        let _ = inner.try_acquire(&claim).await;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
            }
            Bug::OnlySoManyAreWoken => {
                let many = {
                    let mut common = lock(&self.common);
                    let waits = common.waits.entry(claim.name.clone()).or_default();
                    *waits += 1;
                    *waits
                };
                if many > 128 {
                    return std::future::pending().await;
                }
            }
            _ => {}
        }
        match wait.await? {
            Wake::Granted(mut grant) => {
                if self.bug == Bug::WaitOverstatesTheWait {
                    grant.waited += Duration::from_secs(1);
                }
                Ok(Wake::Granted(self.told(grant, claim.ttl)))
            }
            other => Ok(other),
        }
    }

    async fn renew(&self, leases: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::new();
        for renewal in leases {
            answers.push(self.renew_one(renewal).await);
        }
        match self.bug {
            Bug::BatchIsAnsweredInReverse => answers.reverse(),
            Bug::BatchIsCutAt50 => answers.truncate(50),
            _ => {}
        }
        answers
    }

    async fn release(&self, asked: &Release) -> Result<Released> {
        let mut release = asked.clone();
        release.name = self.name(&release.name);
        let claim = lock(&self.common).claims.get(&release.id).cloned();
        match self.bug {
            Bug::FencesRepeat | Bug::FencesCountFromOne | Bug::FencesAreMissing | Bug::FenceIsNotCompared => {
                release.fence = None;
            }
            Bug::OwnerIsNotCompared => release.owner = None,
            Bug::NameIsNotCompared => release.name = claim.map_or(release.name, |claim| claim.name),
            Bug::TextEndsAtNul => release.owner = None,
            Bug::KnowsOnlyItsOwn if !lock(&self.mine).contains(&release.id) => {
                return Ok(Released::Gone(Gone::NotFound));
            }
            Bug::ReleaseTakesEveryHolder => {
                let holder = self.claims_on(&release.name).await;
                release.id = holder.map_or(release.id, |holder| holder.id);
            }
            Bug::ReleaseDoesNothing => return Ok(Released::Done),
            Bug::PlacesAreNotGivenUp => {
                let waiters = self.view(&release.name).await.waiters;
                if waiters.iter().any(|waiter| waiter.id == release.id) {
                    return Ok(Released::Done);
                }
            }
            Bug::UnansweredIsForgotten => release.unanswered = None,
            Bug::SpentOnlyForTheTtl => {
                if let Some(ttl) = release.unanswered.take() {
                    lock(&self.common).spent.insert(release.id, Instant::now() + ttl);
                }
            }
            Bug::NonceIsForgotten => release.nonce = None,
            _ => {}
        }
        release.note = self.note(release.note);
        let holder = self.claims_on(&release.name).await.filter(|holder| holder.id == release.id);
        let fence = match holder {
            Some(_) => self.view(&release.name).await.holders.first().map(|holder| holder.grant.fence),
            None => None,
        };
        let answer = self.inner.release(&release).await?;
        self.noted(&release.name, release.note, fence.filter(|_| answer == Released::Done));
        Ok(if self.bug == Bug::ReleaseIsAlwaysDone { Released::Done } else { answer })
    }

    async fn revoke(&self, name: &Name, now: bool, mut only: Option<Fence>) -> Result<Revoked> {
        match self.bug {
            Bug::RevokeMeetsAnybody => only = None,
            Bug::RevokeDoesNothing => return Ok(Revoked::default()),
            Bug::RevokeMarksTheName => {
                lock(&self.common).revoked.insert(name.clone());
            }
            Bug::RevokedIdsAreNotSpent if now => {
                let claim = self.claims_on(name).await.unwrap();
                self.inner.release(&plain(&claim)).await?;
                let mut revoked = Revoked::default();
                revoked.leases = 1;
                return Ok(revoked);
            }
            _ => {}
        }
        self.inner.revoke(name, now, only).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = match query {
            Query::Name(name) => {
                if self.bug == Bug::LookingRenews
                    && let Some(claim) = self.claims_on(name).await
                {
                    let renewal = Renewal::new(name.clone(), claim.id, claim.ttl);
                    self.inner.renew(&[renewal]).await;
                }
                let mut page = self.inner.inspect(&Query::Name(self.name(name))).await?;
                page.items[0].name = name.clone();
                if self.bug == Bug::InspectShowsExpired && page.items[0].holders.is_empty() {
                    let claims: Vec<Claim> = lock(&self.common).claims.values().cloned().collect();
                    if claims.iter().any(|claim| claim.name == *name) {
                        let ghost = Claim::new(Name::new("ghost").unwrap(), Mode::Exclusive, DAY, "ghost");
                        self.inner.try_acquire(&ghost).await?;
                        page.items[0].holders = self.view(&ghost.name).await.holders;
                    }
                }
                for info in &mut page.items {
                    self.show(info);
                }
                return Ok(page);
            }
            Query::LeaseId(_) if self.bug == Bug::FindsNothingById => return Ok(Page::default()),
            Query::Prefix { limit: 0, .. } if self.bug == Bug::PagesOfNothing => return Ok(Page::default()),
            Query::Prefix { stored, limit, cursor } if self.bug == Bug::PrefixIsAPattern => {
                let stored = stored.split(['%', '_', '*', '?']).next().unwrap().to_owned();
                Query::Prefix { stored, limit: *limit, cursor: cursor.clone() }
            }
            other => other.clone(),
        };
        let mut page = self.inner.inspect(&query).await?;
        if self.bug == Bug::NotesAreSeenByNameOnly {
            page.items.iter_mut().for_each(|info| info.note = None);
        }
        if self.bug == Bug::FindsByIdOnlyTheOldest {
            for item in &mut page.items {
                *item = self.view(&item.name).await;
            }
        }
        if self.bug == Bug::InspectLooksTwice {
            for item in &mut page.items {
                tokio::time::sleep(Duration::from_millis(1)).await;
                *item = self.view(&item.name).await;
            }
        }
        if self.bug == Bug::PagesLoseOne && page.next.is_some() {
            page.items.pop();
        }
        Ok(page)
    }

    async fn sweep(&self) -> Result<Swept> {
        if self.bug == Bug::SweepTakesLiveLeases {
            let claims: Vec<Claim> = lock(&self.common).claims.values().cloned().collect();
            for claim in claims {
                self.inner.release(&plain(&claim)).await?;
            }
        }
        self.inner.sweep().await
    }
}

impl Broken {
    /// What there is to see, as this store shows it.
    fn show(&self, info: &mut NameInfo) {
        if let Some(note) = lock(&self.common).notes.get(&info.name) {
            info.note = Some(note.clone());
        }
        match self.bug {
            Bug::NotesAreForgotten => info.note = None,
            Bug::InspectHidesMetadata => info.holders.iter_mut().for_each(|holder| holder.metadata = None),
            Bug::InspectShowsItBackwards => {
                info.holders.reverse();
                info.waiters.reverse();
            }
            Bug::OnlyTheShownAreCounted => info.holder_count = info.holders.len() as u64,
            Bug::OneHolderTooManyIsShown if info.holders.len() == 100 => {
                info.holders.push(info.holders[0].clone());
            }
            Bug::FiftyWaitersAreShown => info.waiters.truncate(50),
            Bug::PlacesMoveTheVersion => info.version += info.queue_length,
            Bug::VersionStandsStill => info.version = info.version.min(1),
            Bug::FencesRepeat => {
                info.holders.iter_mut().for_each(|holder| holder.grant.fence = Fence::new(7));
                info.last_fence = Fence::new(7);
            }
            _ => {}
        }
    }
}
