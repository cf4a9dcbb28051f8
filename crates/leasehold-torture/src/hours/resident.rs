//! Residents: workers that live as long as the whole run, so that their leaks pile up.
//!
//! Each is a worker like any other, but its history goes to a pipe, where it is counted and forgotten. Hours of it
//! would fill the disk.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::history::record::{Kind, Record, SIZE};
use crate::roles::{self, Around, Role};
use crate::supervise::Killed;
use crate::worker::Task;

/// A worker process that runs for the whole run.
pub(super) struct Resident {
    number: u32,
    process: Killed,
    input: Option<ChildStdin>,
    errors: std::path::PathBuf,
}

impl Resident {
    /// Starts a resident, and adds the number of its grants to `grants` as it writes them.
    pub(super) fn start(mut task: Task, directory: &Path, grants: &Arc<AtomicU64>) -> io::Result<Self> {
        let number = task.worker;
        let pipe = directory.join(format!("resident-{number}"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        task.history.clone_from(&pipe);
        let errors = directory.join(format!("errors-{number}"));
        let written = Stdio::from(File::create(&errors)?);
        let mut process = Killed(roles::start(Role::Worker(task), written, &Around::default())?);
        let input = process.0.stdin.take();
        let grants = Arc::clone(grants);
        // The thread ends when the resident closes its side.
        std::thread::Builder::new().name("resident".into()).spawn(move || count(&pipe, &grants))?;
        Ok(Resident { number, process, input, errors })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Fails if the resident has ended without being asked to.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        let Some(status) = self.process.0.try_wait()? else { return Ok(()) };
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        Err(io::Error::other(format!("resident {} ended by itself ({status}): {}", self.number, said.trim())))
    }

    /// Asks it to finish.
    pub(super) fn finish(&mut self) {
        if let Some(input) = &mut self.input {
            // If it has just ended, the code that waits for it will notice.
            let _ = input.write_all(b"finish\n").and_then(|()| input.flush());
        }
    }

    /// Whether it ends normally within this time.
    pub(super) fn ends_within(&mut self, patience: Duration) -> io::Result<bool> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.process.0.try_wait()? {
                return Ok(status.success());
            }
            if started.elapsed() > patience {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn count(pipe: &Path, grants: &AtomicU64) {
    let Ok(mut pipe) = File::open(pipe) else { return };
    let mut bytes = [0; SIZE];
    while pipe.read_exact(&mut bytes).is_ok() {
        if Record::from_bytes(&bytes).is_some_and(|record| record.kind == Kind::Granted) {
            grants.fetch_add(1, Ordering::Relaxed);
        }
    }
}
