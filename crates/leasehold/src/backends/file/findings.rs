//! Findings about the directory of lock files.

use std::path::Path;

use super::super::place::{on_file_system, permissions};
use crate::doctor::Finding;

/// Examines the directory. Opening it has already refused network file systems and directories of other users.
pub(crate) fn findings(path: &Path) -> Vec<Finding> {
    vec![
        on_file_system(path, "fence counters are gone after a reboot; fences then rest on the wall clock"),
        permissions(
            path,
            "the directory",
            "who can write to it can remove a lock file, and let a second holder in",
        ),
        Finding::note("locks hold between the processes of one user on this machine, and no further"),
    ]
}
