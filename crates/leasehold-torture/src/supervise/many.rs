//! The profile `many`: a store full of idle names and other programs' data, and a process that sweeps it and lists its
//! names all the time.

use std::io::{self, BufRead as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold::Locks;
use serde::{Deserialize, Serialize};

/// The delay of every packet.
pub(super) const LATE: Duration = Duration::from_millis(3);

/// How long a sweep or a page of a list may take, as `docs/redis.md` says: less than the default request timeout.
const BOUND: Duration = Duration::from_secs(5);

/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(50);

/// Until a list was answered in time, it is tried once in this many rounds.
const TRY_LIST: u64 = 8;

/// How many names a page has.
const PAGE: usize = 100;

/// The results of the looks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// Sweeps that were answered in time.
    pub sweeps: u64,
    /// Pages that were answered in time.
    pub lists: u64,
    /// What was not answered in time, with why or how long it took.
    pub failed: Vec<String>,
    /// The slowest sweep, in milliseconds.
    pub slowest_sweep_ms: u64,
    /// The slowest page, in milliseconds.
    pub slowest_list_ms: u64,
}

impl Looks {
    /// What the process has written last; empty if its first look is not over.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        match std::fs::read(path) {
            Ok(written) => Ok(serde_json::from_slice(&written)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Looks::default()),
            Err(error) => Err(error),
        }
    }
}

/// The task of the process: which store it looks at, and where it writes the results.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Looker {
    pub(crate) url: String,
    pub(crate) out: PathBuf,
}

impl Looker {
    /// Looks until its input ends or has a line.
    pub(crate) fn look(&self) -> io::Result<()> {
        let (end, mut ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::spawn(move || {
            let _ = io::stdin().lock().read_line(&mut String::new());
            drop(end);
        });
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
            tokio::select! {
                looked = self.all_the_time() => looked,
                _ = &mut ended => Ok(()),
            }
        })
    }

    async fn all_the_time(&self) -> io::Result<()> {
        let locks = Locks::connect(&self.url).await.map_err(io::Error::other)?;
        let mut looks = Looks::default();
        loop {
            let began = Instant::now();
            let swept = locks.sweep().await;
            let took = began.elapsed();
            looks.slowest_sweep_ms = looks.slowest_sweep_ms.max(took.as_millis() as u64);
            match swept {
                Ok(_) if took < BOUND => looks.sweeps += 1,
                Ok(_) => looks.failed.push(format!("a sweep took {took:?}")),
                Err(error) => looks.failed.push(format!("a sweep failed: {error}")),
            }
            // Until the sweeps have walked through all names once, a list does a walk of its own, at most 2 s of it in
            // one call; a page before its end has no names.
            if looks.lists == 0 && looks.sweeps % TRY_LIST != 1 {
                self.write(&looks)?;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let began = Instant::now();
            let listed = locks.list("", PAGE, None).await;
            let took = began.elapsed();
            let known = listed.as_ref().is_ok_and(|page| page.age.is_some()) || looks.lists > 0;
            match listed {
                Ok(_) if took < BOUND => looks.lists += 1,
                _ if !known => {}
                Ok(_) => looks.failed.push(format!("a page took {took:?}")),
                Err(error) => looks.failed.push(format!("a page failed: {error}")),
            }
            if known {
                looks.slowest_list_ms = looks.slowest_list_ms.max(took.as_millis() as u64);
            }
            self.write(&looks)?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Replaces the whole file: it may be read at any time.
    fn write(&self, looks: &Looks) -> io::Result<()> {
        let next = self.out.with_extension("next");
        std::fs::write(&next, serde_json::to_vec(looks)?)?;
        std::fs::rename(&next, &self.out)
    }
}
