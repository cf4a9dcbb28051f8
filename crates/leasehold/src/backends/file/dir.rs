//! The directory of the lock files and its rules. Every file is opened relative to it, no symbolic link is followed,
//! and anything that is not a plain file of our own is refused.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// Identifies a file whatever its name: device and inode.
pub(crate) type Identity = (u64, u64);

#[allow(clippy::unnecessary_cast)] // the types differ between systems
fn identity(stat: &Stat) -> Identity {
    (stat.st_dev as u64, stat.st_ino as u64)
}

/// File systems whose locks other machines do not see, or see late, by their magic numbers.
#[cfg(target_os = "linux")]
const NETWORK: [(u32, &str); 18] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
    (0x564C, "NCP"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x786F_4256, "VirtualBox shared folder"),
    (0xAAD7_AAEA, "PanFS"),
];

#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    identity: Identity,
    boot: Option<String>,
}

impl Dir {
    /// Opens the directory, makes it if its parent exists, and refuses one that is not safe.
    pub(crate) fn open(path: &Path, allow_network: bool) -> Result<Self> {
        match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => {
                return Err(Error::invalid(
                    "the directory above the one for the lock files does not exist; create it first",
                ));
            }
            Err(error) => return Err(broken("cannot create the directory for the lock files", error)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|error| broken("cannot open the directory for the lock files", error))?;
        let stat = rustix::fs::fstat(&fd).map_err(|error| {
            broken("cannot read the attributes of the directory for the lock files", error)
        })?;
        check_owner(&stat)?;
        if !allow_network {
            refuse_network(&fd)?;
        }
        // Resolved now, because the working directory may change.
        let path = path.canonicalize().map_err(|error| {
            Error::new(
                ErrorKind::Unavailable,
                "the directory for the lock files was moved or removed; connect again",
            )
            .with_source(error)
        })?;
        let boot = if allow_network { None } else { boot_id() };
        Ok(Dir { identity: identity(&stat), fd, path, boot })
    }

    /// The current boot of this machine: what was written during it is still there, even if it was not synced. `None`
    /// if the boot is not known, or other machines may have written.
    pub(crate) fn boot(&self) -> Option<&str> {
        self.boot.as_deref()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory is still in its place: otherwise other processes see another one.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        match rustix::fs::statat(CWD, &self.path, AtFlags::empty()) {
            Ok(stat) => Ok(identity(&stat) == self.identity),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(broken("cannot read the attributes of the directory of the lock files", error)),
        }
    }

    /// Opens one of our files; `None` if it does not exist and `create` is false.
    pub(crate) fn open_file(&self, name: &str, create: bool) -> Result<Option<File>> {
        let make = if create { OFlags::CREATE } else { OFlags::empty() };
        self.open_with(name, OFlags::RDWR | make)
    }

    /// Opens one of our files for reading only; `None` if it does not exist.
    pub(crate) fn open_to_look(&self, name: &str) -> Result<Option<File>> {
        self.open_with(name, OFlags::RDONLY)
    }

    /// Makes a file that must not exist yet.
    pub(crate) fn make_file(&self, name: &str) -> Result<File> {
        self.open_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?.ok_or_else(|| gone(Errno::NOENT))
    }

    fn open_with(&self, name: &str, flags: OFlags) -> Result<Option<File>> {
        // NONBLOCK: a FIFO in its place must not make us wait.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(Errno::NOENT) if !flags.contains(OFlags::CREATE) => return Ok(None),
            Err(Errno::NOENT) => return Err(gone(Errno::NOENT)),
            Err(error @ (Errno::LOOP | Errno::MLINK)) => {
                return Err(planted("there is a symbolic link where a lock file belongs; remove it")
                    .with_source(error));
            }
            Err(error @ (Errno::ISDIR | Errno::NXIO | Errno::NODEV | Errno::EXIST)) => {
                return Err(planted(
                    "there is something other than a regular file where a lock file belongs; remove it",
                )
                .with_source(error));
            }
            Err(error) => return Err(broken("cannot open a lock file", error)),
        };
        let stat = rustix::fs::fstat(&fd)
            .map_err(|error| broken("cannot read the attributes of a lock file", error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(planted(
                "there is something other than a regular file where a lock file belongs; remove it",
            ));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Error::new(ErrorKind::AuthFailed, "a lock file belongs to another user"));
        }
        if stat.st_nlink > 1 {
            return Err(planted("a lock file has more than one hard link; remove the others"));
        }
        Ok(Some(File::from(fd)))
    }

    /// Identifies this open file.
    pub(crate) fn identify(file: &File) -> Result<Identity> {
        rustix::fs::fstat(file)
            .map(|stat| identity(&stat))
            .map_err(|error| broken("cannot read the attributes of a lock file", error))
    }

    /// Whether the file with this name is that one.
    pub(crate) fn is_at(&self, name: &str, file: Identity) -> Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(identity(&stat) == file),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(broken("cannot read the attributes of a lock file", error)),
        }
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(broken("cannot remove a lock file", error)),
        }
    }

    /// Renames a file durably, so that it holds even after a power failure.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .and_then(|()| rustix::fs::fsync(&self.fd))
            .map_err(|error| broken("cannot replace the fence counter", error))
    }

    /// The names of all files with this ending.
    pub(crate) fn list(&self, ending: &str) -> Result<Vec<String>> {
        let unreadable = |error| broken("cannot list the directory of the lock files", error);
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if let Some(name) = entry.file_name().to_str().ok().and_then(|name| name.strip_suffix(ending)) {
                found.push(name.to_owned());
            }
        }
        Ok(found)
    }
}

fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Checks that other users cannot swap the files.
fn check_owner(stat: &Stat) -> Result<()> {
    let (ours, sticky) = (rustix::process::geteuid().as_raw(), Mode::SVTX.as_raw_mode());
    let refuse = |why: &'static str| Err(Error::new(ErrorKind::AuthFailed, why));
    if stat.st_uid != ours && stat.st_uid != 0 {
        return refuse("the directory for the lock files belongs to another user");
    }
    if stat.st_mode & Mode::WOTH.as_raw_mode() != 0 && stat.st_mode & sticky == 0 {
        return refuse(
            "every user can remove files from the directory for the lock files; set its sticky bit (chmod +t), or use another directory",
        );
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn refuse_network(fd: &OwnedFd) -> Result<()> {
    let stat = rustix::fs::fstatfs(fd)
        .map_err(|error| broken("cannot find out the file system of the lock files", error))?;
    // Its type differs between architectures; the magic numbers have 32 bits.
    network_name(stat.f_type as u32).map_or(Ok(()), |network| {
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("the directory for the lock files is on {network}, where locks are not reliable"),
        ))
    })
}

#[cfg(target_os = "linux")]
fn network_name(magic: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_: &OwnedFd) -> Result<()> {
    Ok(())
}

fn gone(error: Errno) -> Error {
    Error::new(ErrorKind::Unavailable, "the directory of the lock files was moved or removed; connect again")
        .with_source(error)
}

fn planted(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, what)
}

/// The error for a failed system call.
pub(crate) fn broken(what: &'static str, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::AuthFailed,
        io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => ErrorKind::InvalidArgument,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, what).with_source(error)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_recognised_and_local_ones_are_not() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xFF53_4D42), Some("CIFS"));
        for local in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0x2FC1_2FC1] {
            assert_eq!(network_name(local), None);
        }
    }
}
