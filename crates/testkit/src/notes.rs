//! Notes of several processes in one file, and the history they make.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// Events of all processes in one file: a line is one write, so the lines are in the order of the events.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// Opens the file to append notes.
    pub fn open(path: &Path) -> Self {
        Notes(File::options().append(true).open(path).expect("the file of notes"))
    }

    /// Notes what a client does with the lease of this fence.
    pub fn add(&mut self, what: &str, who: &str, fence: u64) {
        let line = format!("{what} {who} {fence}\n");
        assert_eq!(self.0.write(line.as_bytes()).expect("a note"), line.len());
    }
}

/// The whole lines so far, split into words: what, who, and the fence.
pub fn history(notes: &Path) -> Vec<(String, String, u64)> {
    let text = std::fs::read_to_string(notes).expect("the file of notes");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let words = |line: &str| {
        let [what, who, fence] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        (what.to_owned(), who.to_owned(), fence.parse().expect("a fence"))
    };
    whole.lines().map(words).collect()
}
