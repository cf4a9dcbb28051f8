//! Every example in docs/cli.md works as written.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::authority::Authority;
use support::{Served, ended, leasehold};

const PAGE: &str = include_str!("../../../docs/cli.md");

/// The text between ```sh and ```.
fn blocks() -> Vec<&'static str> {
    let mut parts = PAGE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks: Vec<_> = parts.by_ref().collect();
    assert_eq!(blocks.len(), PAGE.matches("```").count() / 2, "every block is one of commands");
    blocks
}

/// A program that only prints its name.
fn program(path: &Path) {
    std::fs::write(path, "#!/bin/sh\necho ran $0\n").unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn every_command_on_the_page_works_on_a_fresh_machine() {
    let mut commands = 0;
    for block in blocks() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["backup.sh", "deploy.sh", "train", "transfer"] {
            program(&dir.path().join(name));
        }
        // The page's server is this one.
        let tokens = dir.path().join("tokens");
        let made = ended(leasehold(&["token", "create", "--tokens", tokens.to_str().unwrap()]));
        std::fs::write(dir.path().join("token"), &made.out).unwrap();
        std::fs::set_permissions(dir.path().join("token"), PermissionsExt::from_mode(0o600)).unwrap();
        let authority = Authority::new();
        authority.write(dir.path().join("ca.pem"));
        authority.sign(dir.path(), "me", "me");
        let (cert, key) = authority.sign(dir.path(), "server", "127.0.0.1");
        let served = Served::start(
            dir.path(),
            &[
                "--tokens",
                tokens.to_str().unwrap(),
                "--tls-cert",
                cert.to_str().unwrap(),
                "--tls-key",
                key.to_str().unwrap(),
            ],
        );
        let script = block.replace("https://locks.example:7420", &served.url);
        commands += script.matches("leasehold ").count();
        let bin = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut clean = Command::new("env");
        clean.args(["-i", &format!("PATH={path}"), &format!("HOME={}", dir.path().display())]);
        clean.args(["sh", "-eu", "-c", &script]).current_dir(dir.path());
        let outcome = ended(clean);
        assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""), "{script}\n{outcome:?}");
    }
    assert!(commands >= 15, "{commands}");
}
