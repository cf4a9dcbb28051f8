//! Lists every text in a crate's sources that may reach a user, so that one that is hard to provoke is read in review.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Compares the texts of the crate in this directory with its `tests/snapshots/messages.txt`. Leaves out sources whose
/// path below `src` begins with one of `except`.
#[track_caller]
pub fn check(crate_dir: &str, except: &[&str]) {
    let root = Path::new(crate_dir).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut listing = String::new();
    for file in files {
        let path = file.strip_prefix(&root).expect("it is below").to_string_lossy().into_owned();
        if except.iter().any(|begin| path.starts_with(begin)) {
            continue;
        }
        let mut texts = literals(&std::fs::read_to_string(&file).expect("the source can be read"));
        texts.retain(|text| text.contains(' ') && text.split(' ').filter(|w| w.len() > 1).count() > 1);
        texts.retain(|text| !text.contains('\n') && !text.contains("\": "));
        if !texts.is_empty() {
            writeln!(listing, "## {path}\n{}\n", texts.join("\n")).expect("a text can grow");
        }
    }
    crate::snapshot::check(Path::new(crate_dir).join("tests/snapshots/messages.txt"), &listing);
}

/// Rust files below `folder`, in order.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = {
        let found = folder.read_dir().expect("the folder can be read");
        found.map(|entry| entry.expect("the folder can be read").path()).collect()
    };
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// String literals of a source text, without those in comments and in its unit tests.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: Vec<&str> = source.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let (mut found, mut chars) = (Vec::new(), code.chars().peekable());
    while let Some(char) = chars.next() {
        match char {
            // A character literal, so that '"' does not begin a string.
            '\'' if chars.peek() == Some(&'"') => drop(chars.nth(1)),
            '"' => {
                let mut text = String::new();
                loop {
                    match chars.next() {
                        None | Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                            Some(other) => text.push(other),
                            None => break,
                        },
                        Some(other) => text.push(other),
                    }
                }
                found.push(text);
            }
            _ => {}
        }
    }
    found
}
