//! Allows only one server at a time on a SQLite file.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The exclusive right to serve a file, while this value lives. The system takes it back when the process dies.
#[derive(Debug)]
pub struct SoleServer {
    path: PathBuf,
    /// Locked until it is closed.
    file: File,
}

impl Drop for SoleServer {
    fn drop(&mut self) {
        // If the file was removed or replaced meanwhile, the file at the path belongs to another server.
        if is_at(&self.file, &self.path) {
            // Remove it while it is locked: another server that has it open and locks it next then sees that it is
            // gone.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl SoleServer {
    /// Takes the right, with a lock file beside the database; every path to the database leads to the same lock file.
    /// Do this before opening the database: a newer version would change it under the server that runs on it.
    ///
    /// Several processes may share a SQLite file safely. Two servers on it would be a mistake: each would count half
    /// of what happens.
    ///
    /// # Errors
    /// `Unavailable` if another server has it, or if the lock file cannot be made, is a link or belongs to another
    /// user; `InvalidArgument` for a link that leads nowhere, and for a file with several hard links, because nothing
    /// shows that they are one file.
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
        let path = PathBuf::from(path);
        let failed = |error: std::io::Error| {
            let message = format!("the lock file {path:?} beside the database cannot be used");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let (mut file, taken) = loop {
            let file = open(&path).map_err(failed)?;
            let taken = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
            // The previous server may have removed the file since we opened it; then there is another one, or will be.
            if taken || is_at(&file, &path) {
                break (file, taken);
            }
        };
        if taken {
            let mut who = String::new();
            let _ = file.read_to_string(&mut who);
            let who = who.lines().next().unwrap_or("its lock file does not name it").to_owned();
            let message = format!(
                "another leasehold server already serves this file: {who}; stop it, use its address, \
                 or give this one a store of its own with --store"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        refuse_stranger(&file, &path, database)?;
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "process {}, {says}", std::process::id())
        };
        write(&mut file).map_err(failed)?;
        Ok(SoleServer { path, file })
    }
}

/// Opens the lock file so that no other user can: a user who can read a file can lock it, and would keep every server
/// from starting. Does not follow a link, which may lead to a file that others lock, or that is not ours to write to.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let file = options.custom_flags(no_link).open(path).map_err(|error| {
        if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            return std::io::Error::other("it is a symbolic link, which is not followed; remove it");
        }
        error
    })?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(std::io::Error::other("it is not a regular file; remove it"));
    }
    if about.nlink() > 1 {
        return Err(std::io::Error::other("it has several names (hard links); remove it"));
    }
    // An older version left it readable. If that cannot be changed, it belongs to another user, or its file system has
    // no modes.
    if about.mode() & 0o077 != 0 {
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
    }
    Ok(file)
}

/// Refuses a lock file whose owner has nothing to do with the database, because that user could lock it at any time.
/// The owners of the database and of its directory are accepted: they could stop a server anyway, and some file
/// systems report one owner for all files.
fn refuse_stranger(file: &File, path: &Path, database: &Path) -> Result<()> {
    let owner = |path: &Path| path.metadata().ok().map(|about| about.uid());
    let Ok(stranger) = file.metadata().map(|about| about.uid()) else { return Ok(()) };
    let known = [Some(geteuid().as_raw()), owner(database), path.parent().and_then(owner)];
    if known.contains(&Some(stranger)) {
        return Ok(());
    }
    let message = format!(
        "the lock file {path:?} beside the database belongs to another user ({stranger}), who could keep this server from \
         starting; remove it, or run the server as that user"
    );
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// Whether this file, and no other, is at the path.
fn is_at(file: &File, path: &Path) -> bool {
    let inode = |about: std::fs::Metadata| (about.ino(), about.dev());
    file.metadata().ok().map(inode).is_some_and(|ours| path.symlink_metadata().ok().map(inode) == Some(ours))
}

/// The real path of a database, which need not exist yet. Links are followed: otherwise each link would get its own
/// lock file.
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
