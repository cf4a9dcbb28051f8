//! Every command in docs/torture.md works as written, with a shorter time.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::process::Command;

use testkit::redis::Server;

const PAGE: &str = include_str!("../../../docs/torture.md");
const MAKEFILE: &str = include_str!("../../../Makefile");

#[test]
fn every_command_on_the_page_works() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let redis = Server::start();
    let blocks: Vec<&str> =
        PAGE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), PAGE.matches("```").count() / 2, "every block is one of commands");
    let lines = blocks.iter().flat_map(|block| block.lines());
    let mut commands = 0;
    for line in lines.map(|line| line.split(" #").next().unwrap().trim()).filter(|line| !line.is_empty()) {
        commands += 1;
        if let Some(target) = line.strip_prefix("make ") {
            assert!(MAKEFILE.contains(&format!("\n{target}:")), "{line}");
            continue;
        }
        let words = line.strip_prefix("leasehold ").unwrap_or_else(|| panic!("another program: {line}"));
        let (redis, run) = (redis.url(), run.display().to_string());
        let mut words: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
        let short = match words.get(1) {
            Some(&"check") => &[][..],
            Some(&"--hours") => &["--minutes", "0.1", "--secs", "1", "--workers", "4"],
            _ => &["--secs", "2", "--workers", "4"],
        };
        if let Some(at) = words.iter().position(|word| *word == "--hours") {
            words.drain(at..at + 2);
        }
        words.extend(short);
        // The first run is the one that is judged again.
        if words.len() == 1 + short.len() {
            words.extend(["--out", &run]);
        }
        let words = words.into_iter().map(|word| match word {
            "DIR" => run.as_str(),
            "redis://10.0.0.5" => redis.as_str(),
            other => other,
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        // A run that shows too little in so short a time would keep its files; do not let it.
        let output = command.args(words).env("TMPDIR", directory.path()).output().unwrap();
        // So short a run may prove nothing; nothing worse is accepted.
        assert!(matches!(output.status.code(), Some(0 | 81)), "{line}: {output:?}");
    }
    assert!(commands >= 6, "{commands}");
}
