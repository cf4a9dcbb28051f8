//! The meta file of a name: whoever has it locked is the only one that tries, releases or counts there.

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::backend::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::name::Name;

use super::MAX_PERMITS;
use super::dir::{Dir, broken};
use super::locked::{Locked, read};
use super::text::{Content, Kind, read_fence};

/// Pauses between looks at a meta file that is locked: what is done under it takes some microseconds, or
/// as long as writing the counter to disk.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(300));

/// How far ahead fences are reserved on disk: a minute of the clock they follow. So a name that is taken again
/// and again waits for the disk once a minute, and after a power failure its fences run at most a minute ahead.
const RESERVE: u64 = 60 * 256_000;

/// The names of the files of a name.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    base: String,
}

pub(crate) const META: &str = ".meta";

impl Files {
    pub(crate) fn new(base: String) -> Self {
        Files { base }
    }

    pub(crate) fn meta(&self) -> String {
        format!("{}{META}", self.base)
    }

    pub(crate) fn lock(&self) -> String {
        format!("{}.lock", self.base)
    }

    pub(crate) fn slot(&self, index: u32) -> String {
        format!("{}.slot{index:02}", self.base)
    }

    /// What can be locked where the name is of this kind.
    pub(crate) fn of_kind(&self, kind: Kind) -> Vec<String> {
        match kind {
            Kind::Lock => vec![self.lock()],
            Kind::Permits(limit) => (0..limit.min(MAX_PERMITS)).map(|index| self.slot(index)).collect(),
        }
    }

    fn counter(&self) -> String {
        format!("{}.fence", self.base)
    }

    fn next_counter(&self) -> String {
        format!("{}.fence-new", self.base)
    }
}

/// The locked meta file. Dropped, it is unlocked.
#[derive(Debug)]
pub(crate) struct Meta<'a> {
    pub(crate) dir: &'a Dir,
    pub(crate) files: &'a Files,
    file: Locked,
    /// As it was read; `None` if it is new, or was not written by us.
    pub(crate) content: Option<Content>,
}

impl<'a> Meta<'a> {
    /// Locks it, within a time. Without `create`, `None` if there is none: nobody uses the name.
    pub(crate) fn lock(
        dir: &'a Dir,
        files: &'a Files,
        create: bool,
        within: Duration,
    ) -> Result<Option<Self>> {
        let (name, end) = (files.meta(), Instant::now() + within);
        let mut pause = PAUSE.0;
        loop {
            if let Some(file) = Locked::take(dir, &name, false, create)? {
                let text = file.read()?;
                if Content::is_newer(&text) {
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        "this name was written by a newer leasehold; update this one; nothing was changed",
                    ));
                }
                let content = Content::read(&text);
                return Ok(Some(Meta { dir, files, file, content }));
            }
            if !create && dir.open_file(&name, false)?.is_none() {
                return Ok(None);
            }
            if Instant::now() >= end {
                return Err(Error::new(
                    ErrorKind::Overloaded,
                    "another process has been working on this name for too long",
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// The content of a meta file, without locking it.
    pub(crate) fn peek(dir: &Dir, base: &str) -> Result<Option<Content>> {
        let Some(file) = dir.open_file(&format!("{base}{META}"), false)? else { return Ok(None) };
        Ok(Content::read(&read(&file)?))
    }

    /// Whether all this was done under the lock that others see. A stranger may have removed the file.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        Ok(self.file.is_in_place(self.dir)? && self.dir.is_in_place()?)
    }

    /// The kind the name is in use as. What decides is who has files locked; the text only says where
    /// to look first.
    pub(crate) fn kind_in_use(&self) -> Result<Option<Kind>> {
        let kinds = match &self.content {
            Some(content) => vec![content.kind],
            None => vec![Kind::Lock, Kind::Permits(MAX_PERMITS)],
        };
        for kind in kinds {
            for file in self.files.of_kind(kind) {
                if Locked::is_held(self.dir, &file)? {
                    return Ok(Some(kind));
                }
            }
        }
        Ok(None)
    }

    /// Refuses a claim of another kind than the name is in use as.
    pub(crate) fn check_kind(&self, name: &Name, mode: Mode) -> Result<()> {
        let kind = Kind::of(mode);
        if let Some(content) = &self.content {
            if *content.name != *name.stored() {
                return Err(Error::new(ErrorKind::Internal, "the meta file belongs to another name"));
            }
            if content.kind == kind {
                return Ok(());
            }
        }
        match (self.kind_in_use()?, kind) {
            // What the limit was is not known any more.
            (Some(Kind::Permits(_)), Kind::Permits(_)) if self.content.is_none() => Ok(()),
            (Some(used), _) if used != kind => Err(mode.mismatch(used.mode())),
            _ => Ok(()),
        }
    }

    /// What the counter says; zero if it is not there or garbled.
    fn counter(&self) -> Result<Fence> {
        Ok(match self.dir.open_to_look(&self.files.counter())? {
            Some(file) => read(&file)?.strip_suffix('\n').and_then(read_fence).unwrap_or(Fence::UNFENCED),
            None => Fence::UNFENCED,
        })
    }

    /// The last fence, or one above it. The meta file says it exactly if it was written since the machine
    /// was started and the counter is still the one it was written with. Otherwise the higher of the two: no
    /// fence above the counter was ever granted. Zero if both are gone or garbled; then the clock decides.
    pub(crate) fn last_fence(&self) -> Result<Fence> {
        let counter = self.counter()?;
        Ok(match &self.content {
            None => counter,
            Some(content) => {
                let here = self.dir.boot().is_some_and(|boot| *boot == *content.boot);
                if here && content.reserved == counter { content.fence } else { content.fence.max(counter) }
            }
        })
    }

    /// Writes down a fence, and what the name is used as. Not below what the counter says before this
    /// returns, on disk.
    pub(crate) fn count(&self, name: &Name, mode: Mode, fence: Fence) -> Result<()> {
        let mut reserved = self.counter()?;
        if fence > reserved {
            reserved = match self.dir.boot() {
                Some(_) => Fence::new(fence.get().saturating_add(RESERVE)).min(Fence::MAX),
                None => fence,
            };
            self.reserve(reserved)?;
        }
        let content = Content {
            kind: Kind::of(mode),
            fence,
            reserved,
            version: self.version() + 1,
            boot: self.dir.boot().unwrap_or_default().into(),
            name: name.stored().into(),
        };
        self.file.write(&content.write())
    }

    fn reserve(&self, fence: Fence) -> Result<()> {
        let next = self.files.next_counter();
        self.dir.remove(&next)?;
        let mut file = self.dir.make_file(&next)?;
        writeln!(file, "{fence}")
            .and_then(|()| file.sync_all())
            .map_err(|error| broken("the fence counter cannot be written", error))?;
        self.dir.rename(&next, &self.files.counter())
    }

    /// How often the name has changed.
    pub(crate) fn version(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.version)
    }

    /// Counts a change that is no grant.
    pub(crate) fn count_change(&self) -> Result<()> {
        match &self.content {
            Some(content) => {
                self.file.write(&Content { version: content.version + 1, ..content.clone() }.write())
            }
            None => Ok(()),
        }
    }

    /// Removes the counter, and then the meta file itself.
    pub(crate) fn forget(self) -> Result<()> {
        self.dir.remove(&self.files.next_counter())?;
        self.dir.remove(&self.files.counter())?;
        let Meta { dir, file, .. } = self;
        file.remove(dir, |text| text)
    }
}
