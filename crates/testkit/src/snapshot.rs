//! Compares text with a checked-in file. `UPDATE_SNAPSHOTS=1` writes the file instead.

use std::path::Path;

/// Fails unless the file contains exactly this text, and shows the first line that differs.
#[track_caller]
pub fn check(file: impl AsRef<Path>, seen: &str) {
    let file = file.as_ref();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        let folder = file.parent().expect("a snapshot is in a folder");
        std::fs::create_dir_all(folder).expect("the folder of snapshots can be created");
        std::fs::write(file, seen).expect("the snapshot can be written");
        return;
    }
    let kept = std::fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("{}: {error}; UPDATE_SNAPSHOTS=1 writes it", file.display()));
    if kept == seen {
        return;
    }
    let lines = kept.lines().chain(std::iter::repeat("(end)"));
    let differs = lines.zip(seen.lines().chain(["(end)"])).zip(1..).find(|((kept, seen), _)| kept != seen);
    let ((kept, now), line) = differs.unwrap_or((("", "only the line ends differ"), 0));
    panic!(
        "{}, line {line}\n  kept: {kept}\n  seen: {now}\nUPDATE_SNAPSHOTS=1 writes what was seen:\n{seen}",
        file.display()
    );
}
