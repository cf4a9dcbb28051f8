//! How the directory of lock files is set up.

use std::path::Path;

use super::super::place::{on_file_system, permissions};
use crate::doctor::Finding;

/// Looks at the directory; that network file systems and strangers' directories are refused was seen when
/// it was opened.
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
