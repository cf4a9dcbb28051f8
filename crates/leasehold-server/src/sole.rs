//! One server at a time on one SQLite file.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use leasehold::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};

/// The right to be the server of a file, for as long as it lives. The system takes it back when the process dies.
#[derive(Debug)]
pub struct SoleServer {
    path: PathBuf,
    /// Locked until it is closed.
    _file: File,
}

impl Drop for SoleServer {
    fn drop(&mut self) {
        // Removed while it is locked: another server that has it open, and locks it next, sees that it has gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl SoleServer {
    /// Takes it, in a file beside the database, which is the same by whatever path it is named. To be done before the
    /// database is opened: a newer version would change it under the server that has it.
    ///
    /// Several processes may share a SQLite file safely; two servers before it would only be a mistake, each
    /// counting half of what happens.
    ///
    /// # Errors
    /// `Unavailable` if another server has it, or if the file cannot be made; `InvalidArgument` for a link that leads
    /// nowhere, and for a file with several names of its own (hard links), of which nobody could know that they are one.
    pub fn of(database: &Path, says: &str) -> Result<Self> {
        let real = real(database)?;
        if real.metadata().is_ok_and(|about| about.nlink() > 1) {
            return Err(Error::invalid(
                "the database has several names (hard links), and SQLite would keep a log for each of them, which \
                 damages it; remove all names but one",
            ));
        }
        let mut path = real.into_os_string();
        path.push(".server");
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the lock file beside the database cannot be used")
                .with_source(error)
        };
        let path = PathBuf::from(path);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let same = |file: &File| {
            let about = file.metadata().ok()?;
            Some((about.ino(), about.dev()) == inode(&path)?)
        };
        let (mut file, taken) = loop {
            let file = options.open(&path).map_err(failed)?;
            let taken = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
            // The server before may have removed it since it was opened; then there is another, or will be.
            if taken || same(&file).unwrap_or(false) {
                break (file, taken);
            }
        };
        if taken {
            let mut who = String::new();
            let _ = file.read_to_string(&mut who);
            let who = who.lines().next().unwrap_or("which does not say who it is").to_owned();
            let message = format!(
                "another leasehold server already serves this file: {who}; stop it, use its address, \
                 or give this one a store of its own with --store"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "process {}, {says}", std::process::id())
        };
        write(&mut file).map_err(failed)?;
        Ok(SoleServer { path, _file: file })
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let about = path.metadata().ok()?;
    Some((about.ino(), about.dev()))
}

/// Where a database is, or will be when it is made. Links lead to it; beside each of them would be another file.
fn real(database: &Path) -> Result<PathBuf> {
    if let Ok(path) = database.canonicalize() {
        return Ok(path);
    }
    let name = database.file_name().filter(|_| !database.is_symlink()).ok_or_else(|| {
        Error::invalid("the path of the database leads nowhere; name a file, or a link to one that is there")
    })?;
    let directory = database.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).canonicalize().map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the directory of the database cannot be found").with_source(error)
    })?;
    Ok(directory.join(name))
}
