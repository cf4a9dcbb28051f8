//! Reloading tokens and certificates: the server reports what it has read, and what it could not read.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use leasehold::blocking::Locks;
use rustix::process::Signal;
use serde_json::Value;
use support::authority::Authority;
use support::{Served, ended, leasehold, until};

struct Reloading {
    dir: tempfile::TempDir,
    served: Served,
}

impl Reloading {
    /// Starts a server with tokens and a certificate from the authority `ca`; its output goes to `log`.
    fn start(dir: tempfile::TempDir, options: &[&str]) -> Self {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--accept-risks"];
        let mut command = leasehold(&[&serve, options].concat());
        command.current_dir(dir.path()).stderr(File::create(dir.path().join("log")).unwrap());
        let served = Served::from(&mut command);
        Reloading { dir, served }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn lines(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.path("log")).unwrap();
        log.lines()
            .filter(|line| line.contains("reload") || line.starts_with("leasehold: "))
            .map(str::to_owned)
            .collect()
    }

    /// Makes it reload, and waits for this many log lines.
    #[track_caller]
    fn reload(&self, lines: usize) -> Vec<String> {
        let before = self.lines().len();
        self.served.signal(Signal::HUP);
        until("it says what it has read", || self.lines().len() >= before + lines);
        self.lines().split_off(before)
    }

    fn metric(&self, name: &str, token: &str) -> f64 {
        let mut curl = Command::new("curl");
        curl.args(["-sSk"]).arg(format!("{}/metrics", self.served.url));
        curl.args(["-H", &format!("authorization: Bearer {token}")]);
        let answer = curl.output().unwrap();
        assert!(answer.status.success(), "{answer:?}");
        let text = String::from_utf8(answer.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
    }

    fn lets_in(&self, token: &str) -> bool {
        std::fs::write(self.path("secret"), token).unwrap();
        let (token, ca) = (self.path("secret"), self.path("ca"));
        Locks::connect(&format!("{}?token_file={}&ca={}", self.served.url, token.display(), ca.display()))
            .is_ok()
    }
}

fn token(dir: &Path, name: &str) -> String {
    let path = dir.join("tokens");
    let made = ended(leasehold(&["token", "create", "--name", name, "--tokens", path.to_str().unwrap()]));
    assert_eq!(made.code(), 0, "{made:?}");
    made.out.trim().to_owned()
}

#[test]
fn the_log_says_what_was_read_again_and_what_could_not_be() {
    for form in ["text", "json"] {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.write(dir.path().join("ca"));
        authority.sign(dir.path(), "server", "127.0.0.1");
        let first = token(dir.path(), "first");
        let options =
            ["--tokens", "tokens", "--tls-cert", "server.pem", "--tls-key", "server.key", "--log", form];
        let server = Reloading::start(dir, &options);
        let is = |line: &str, fields: &[(&str, &str)]| {
            let json: Value = serde_json::from_str(line).unwrap_or_default();
            fields.iter().all(|(key, value)| match form {
                "json" => {
                    let found = &json[*key];
                    found.as_str().map_or_else(|| found.to_string(), str::to_owned) == *value
                }
                _ => format!("{line} ").contains(&format!(" {key}={value} ")),
            })
        };
        let found = |lines: &[String], fields: &[(&str, &str)]| {
            let line = lines.iter().find(|line| is(line, fields));
            line.unwrap_or_else(|| panic!("no {fields:?} in {lines:?}")).clone()
        };
        let (well, when) =
            ("leasehold_last_reload_successful", "leasehold_last_reload_success_timestamp_seconds");
        let started = server.metric(when, &first);
        assert!(server.metric(well, &first) == 1.0 && started > 1e9);

        let second = token(server.dir.path(), "second");
        assert!(!server.lets_in(&second));
        let lines = server.reload(2);
        let info = [("level", "info"), ("op", "reload"), ("result", "success")];
        found(&lines, &[&info[..], &[("what", "tokens"), ("file", "tokens"), ("tokens", "2")]].concat());
        found(&lines, &[&info[..], &[("what", "certificate"), ("file", "server.pem")]].concat());
        assert!(server.lets_in(&first) && server.lets_in(&second));
        assert!(server.metric(well, &first) == 1.0 && server.metric(when, &first) >= started);

        // Broken files change nothing, and the log says which and why.
        let (tokens, cert) = (server.path("tokens"), server.path("server.pem"));
        let (good, good_cert) = (std::fs::read(&tokens).unwrap(), std::fs::read(&cert).unwrap());
        std::fs::write(&tokens, [&good[..], b"{\"name\":\n"].concat()).unwrap();
        std::fs::write(&cert, "nonsense").unwrap();
        let warn = [("level", "warn"), ("op", "reload"), ("result", "fail")];
        let lines = server.reload(2);
        let line = found(&lines, &[&warn[..], &[("what", "tokens"), ("file", "tokens")]].concat());
        assert!(line.contains("line 3") && line.contains("the old tokens stay in force"), "{line}");
        let line = found(&lines, &[&warn[..], &[("what", "certificate"), ("file", "server.pem")]].concat());
        assert!(line.contains("the old certificate stays in use"), "{line}");
        assert!(server.lets_in(&first) && server.lets_in(&second));
        assert_eq!(server.metric(well, &first), 0.0);

        // Each by itself.
        std::fs::write(&tokens, &good).unwrap();
        let lines = server.reload(2);
        found(&lines, &[&info[..], &[("what", "tokens")]].concat());
        found(&lines, &[&warn[..], &[("what", "certificate")]].concat());
        assert_eq!(server.metric(well, &first), 0.0);
        std::fs::write(&cert, good_cert).unwrap();
        server.reload(2);
        assert_eq!(server.metric(well, &first), 1.0);
        for secret in [&first, &second] {
            assert!(!std::fs::read_to_string(server.path("log")).unwrap().contains(secret.as_str()));
        }
    }
}

#[test]
fn a_reload_is_reported_without_files_and_without_a_log() {
    let server = Reloading::start(tempfile::tempdir().unwrap(), &[]);
    let lines = server.reload(1);
    assert!(lines[0].contains("op=reload") && lines[0].contains("nothing to read again"), "{lines:?}");
    let dir = tempfile::tempdir().unwrap();
    token(dir.path(), "one");
    let server = Reloading::start(dir, &["--tokens", "tokens", "--log", "none"]);
    std::fs::write(server.path("tokens"), "{").unwrap();
    let lines = server.reload(1);
    assert!(lines[0].starts_with("leasehold: ") && lines[0].contains("line 1"), "{lines:?}");
    assert!(lines[0].contains("the old tokens stay in force"), "{lines:?}");
}

#[test]
fn the_example_of_token_create_works_as_it_stands() {
    let help = ended(leasehold(&["token", "create", "--help"])).out;
    let examples = help.split("Examples:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("leasehold.tokens"), "").unwrap();
    let server = Reloading::start(dir, &["--tokens", "leasehold.tokens", "--log", "text"]);
    let mut tried = 0;
    for line in examples.lines() {
        // The text after two spaces is an explanation.
        let line = line.trim().split("  ").next().unwrap();
        let line = line.replace("PID", &server.served.pid().as_raw_nonzero().to_string());
        let mut sh = Command::new("sh");
        let path = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
        let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
        sh.args(["-c", &line]).env("PATH", path).env("LEASEHOLD_URL", &server.served.url);
        let ran = ended({
            sh.current_dir(server.dir.path());
            sh
        });
        assert_eq!(ran.code(), 0, "{line}: {ran:?}");
        if line.contains("kill -HUP") {
            until("it has read them", || !server.lines().is_empty());
        }
        tried += u32::from(line.contains("leasehold list"));
    }
    assert_eq!(tried, 1, "{examples}");
}
