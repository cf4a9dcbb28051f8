//! The files in `docs/deploy/` use only existing settings, and what they start is in order.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::path::Path;
use std::process::Command;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy").join(file);
    std::fs::read_to_string(path).unwrap()
}

fn leasehold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    for (variable, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEASEHOLD_"))
    {
        command.env_remove(variable);
    }
    command
}

/// The words of a text that start with this.
fn words<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.split(move |c| !is_part(c)).filter(move |word| word.starts_with(begin) && word.len() > begin.len())
}

#[test]
fn variables_and_flags_in_deploy_files_are_those_of_the_program() {
    let help = |arguments: &[&str]| {
        String::from_utf8(leasehold().args(arguments).arg("--help").output().unwrap().stdout).unwrap()
    };
    let (serve, token) = (help(&["serve"]), help(&["token", "create"]));
    let mut seen = 0;
    for file in ["Dockerfile", "kubernetes.yaml", "leasehold.service"] {
        let text = read(file);
        for variable in words(&text, "LEASEHOLD_") {
            assert!(serve.contains(variable), "{file}: {variable}");
            seen += 1;
        }
        for line in text.lines().filter(|line| line.contains("leasehold serve") || line.contains("token")) {
            for flag in words(line, "--") {
                assert!(serve.contains(flag) || token.contains(flag), "{file}: {flag}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "{seen}");
}

/// As the systemd unit starts it: in its own directory, with a settings file that may be empty.
#[test]
fn the_unit_passes_its_check_and_keeps_leases_where_it_says() {
    let unit = read("leasehold.service");
    let start =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/leasehold ")).unwrap();
    let home = unit.lines().find_map(|line| line.strip_prefix("WorkingDirectory=")).unwrap();
    assert!(unit.contains(&format!("{home}/leasehold.db")));
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("server.conf");
    std::fs::write(&settings, "").unwrap();
    let arguments = start.replace("/etc/leasehold/server.conf", settings.to_str().unwrap());
    let run = |listen: &str| {
        let mut command = leasehold();
        command
            .args(arguments.split(' '))
            .args(["--listen", listen, "--check"])
            .current_dir(directory.path());
        command.output().unwrap()
    };
    assert!(run("127.0.0.1:0").status.success());
    // An address in use is not the store's fault; wrong settings are not retried.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let answer = run(&taken.local_addr().unwrap().to_string());
    let said = String::from_utf8(answer.stderr).unwrap();
    assert!(answer.status.code() == Some(69) && said.starts_with("leasehold: cannot listen on"), "{said}");
    assert!(unit.contains("RestartPreventExitStatus=64"));
    assert_eq!(run("nowhere").status.code(), Some(64));
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["server.conf"], "a check makes nothing");
}
