//! The meta file of a name: only the process that has it locked may try, release or count there.

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

/// Pauses between tries to lock a meta file. The work under that lock takes some microseconds, or as long as writing
/// the counter to disk.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(300));

/// How far ahead fences are reserved on disk: a minute of their clock. So a name that is taken again and again waits
/// for the disk once a minute, and after a power failure its fences run at most a minute ahead.
const RESERVE: u64 = 60 * 256_000;

/// The file names of a lock name.
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

    /// The files to lock for a name of this kind.
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

/// The locked meta file. Dropping it unlocks it.
#[derive(Debug)]
pub(crate) struct Meta<'a> {
    pub(crate) dir: &'a Dir,
    pub(crate) files: &'a Files,
    file: Locked,
    /// The content as it was read; `None` if the file is new, or another program wrote it.
    pub(crate) content: Option<Content>,
}

impl<'a> Meta<'a> {
    /// Locks the meta file within a time. Without `create`, `None` if it does not exist: the name is not in use.
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

    /// Reads the content of a meta file without locking it.
    pub(crate) fn peek(dir: &Dir, base: &str) -> Result<Option<Content>> {
        let Some(file) = dir.open_file(&format!("{base}{META}"), false)? else { return Ok(None) };
        Ok(Content::read(&read(&file)?))
    }

    /// Whether our lock is still on the file that other processes see. Another program may have removed it.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        Ok(self.file.is_in_place(self.dir)? && self.dir.is_in_place()?)
    }

    /// The kind the name is in use as. The locked files decide; the text only says where to look first.
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
            // The limit is no longer known.
            (Some(Kind::Permits(_)), Kind::Permits(_)) if self.content.is_none() => Ok(()),
            (Some(used), _) if used != kind => Err(mode.mismatch(used.mode())),
            _ => Ok(()),
        }
    }

    /// The counter on disk; zero if it is missing or garbled.
    fn counter(&self) -> Result<Fence> {
        Ok(match self.dir.open_to_look(&self.files.counter())? {
            Some(file) => read(&file)?.strip_suffix('\n').and_then(read_fence).unwrap_or(Fence::UNFENCED),
            None => Fence::UNFENCED,
        })
    }

    /// The last fence, or one above it. The meta file has it exactly if it was written since the machine started and
    /// the counter has not changed since. Otherwise it is the higher of the two: no fence above the counter was ever
    /// granted. Zero if both are missing or garbled; then the clock decides.
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

    /// Writes a fence and the kind of the name. Before this returns, the counter on disk is at least that fence.
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
            .map_err(|error| broken("cannot write the fence counter", error))?;
        self.dir.rename(&next, &self.files.counter())
    }

    /// How many changes the name has had.
    pub(crate) fn version(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.version)
    }

    /// Counts a change that is not a grant.
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
