//! Notes of several processes in one file, and the history they make.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

/// What is done and seen, in one file for all: a line is one write, so the lines are in the order of what they tell.
#[derive(Debug)]
pub struct Notes(File);

impl Notes {
    /// Notes that go to the end of this file.
    pub fn open(path: &Path) -> Self {
        Notes(File::options().append(true).open(path).expect("the file of notes"))
    }

    /// Notes what somebody does with the lease of this fence.
    pub fn add(&mut self, what: &str, who: &str, fence: u64) {
        let line = format!("{what} {who} {fence}\n");
        assert_eq!(self.0.write(line.as_bytes()).expect("a note"), line.len());
    }
}

/// The whole lines so far, in words: what, who, and the fence.
pub fn history(notes: &Path) -> Vec<(String, String, u64)> {
    let text = std::fs::read_to_string(notes).expect("the file of notes");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let words = |line: &str| {
        let [what, who, fence] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        (what.to_owned(), who.to_owned(), fence.parse().expect("a fence"))
    };
    whole.lines().map(words).collect()
}
