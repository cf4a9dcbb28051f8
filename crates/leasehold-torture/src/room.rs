//! A disk that can be filled: a small one in memory, in a separate mount namespace, which is gone with its keeper
//! process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Enough for a store, and little enough to be filled quickly.
const SIZE: &str = "size=16m";

/// Mounts it, says so, and keeps it until its input ends.
const KEEPER: &str =
    r#"mount -t tmpfs -o "$2" leasehold "$1" && chmod 755 "$1" && echo ready && exec cat >/dev/null"#;

/// A disk that can be filled. Processes must [enter](Room::entered) to see it.
#[derive(Debug)]
pub(crate) struct Room {
    keeper: Child,
    directory: PathBuf,
}

impl Room {
    /// Makes one at a directory. Needs root.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir(directory)?;
        let mut unshare = Command::new("setpriv");
        let mut keeper = unshare
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"])
            .args(["sh", "-c", KEEPER, "keeper"])
            .arg(directory)
            .arg(SIZE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = keeper.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let room = Room { keeper, directory: directory.to_owned() };
        if line.is_empty() {
            Err(io::Error::other("a disk of its own takes root's rights"))
        } else {
            Ok(room)
        }
    }

    /// The start of a command line that runs a program where the disk is visible.
    pub(crate) fn entered(&self) -> Vec<String> {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.keeper.id());
        vec!["nsenter".into(), namespace, "--".into()]
    }

    fn filler(&self) -> PathBuf {
        let inside = self.directory.strip_prefix("/").unwrap_or(&self.directory);
        Path::new(&format!("/proc/{}/root", self.keeper.id())).join(inside).join("filler")
    }

    /// Fills it to the last byte; returns whether it is full.
    pub(crate) fn fill(&self) -> io::Result<bool> {
        let mut file = File::create(self.filler())?;
        for size in [64 * 1024, 4096, 1] {
            let bytes = vec![0; size];
            while file.write(&bytes).is_ok_and(|written| written > 0) {}
        }
        Ok(file.write(&[0]).is_err())
    }

    /// Makes room again.
    pub(crate) fn empty(&self) -> io::Result<()> {
        match std::fs::remove_file(self.filler()) {
            // Two fillings that met are one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
