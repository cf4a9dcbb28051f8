//! Findings about where a file is: its file system, and which users can access it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::doctor::{Finding, IN_MEMORY};

/// The type of the file system that holds a path, as the kernel names it.
fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    // `device mount-point type …`; spaces in a mount point are written \040. The longest, latest wins.
    let mut best: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (point, kind) = (fields.nth(1)?.replace("\\040", " "), fields.next()?);
        let depth = Path::new(&point).components().count();
        if path.starts_with(&point) && best.as_ref().is_none_or(|(deepest, _)| depth >= *deepest) {
            best = Some((depth, kind.to_owned()));
        }
    }
    best.map(|(_, kind)| kind)
}

/// Whether locks on this file system work, and for how long its data stays.
pub(super) fn on_file_system(path: &Path, what_is_lost: &str) -> Finding {
    match file_system(path).as_deref() {
        Some(kind @ ("tmpfs" | "ramfs")) => Finding::note(format!("it is on {kind}{IN_MEMORY}"))
            .because(what_is_lost, "keep it on a disk if that matters"),
        Some("overlay") => Finding::note("it is on the overlay of a container").because(
            "other containers do not see it, so they are not kept out; it is gone with the container",
            "put it on a volume that all who share the locks have mounted",
        ),
        Some(kind) => Finding::ok(format!("it is on {kind}, a file system of this machine")),
        None => Finding::note("its file system is not known"),
    }
}

/// Whether users other than the owner can access a file or directory.
pub(super) fn permissions(path: &Path, what: &str, risk: &str) -> Finding {
    let Ok(meta) = std::fs::metadata(path) else {
        return Finding::note(format!("{what} cannot be looked at"));
    };
    let mode = meta.permissions().mode() & 0o7777;
    let mask = if meta.is_dir() { 0o022 } else { 0o077 };
    if mode & mask == 0 {
        return Finding::ok(format!("{what} belongs to user {} with mode {mode:04o}", meta.uid()));
    }
    let fix = format!("chmod {} {}", if meta.is_dir() { "700" } else { "600" }, path.display());
    Finding::risk(format!("{what} has mode {mode:04o}"), risk, fix)
}
