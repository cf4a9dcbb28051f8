//! `leasehold watch` and `leasehold wait` continue when the store is unavailable for a while.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Running, Served, ended, leasehold, until};

/// A server that can be stopped and restarted at the same address, with the same data.
struct Restarting {
    dir: tempfile::TempDir,
    address: String,
    served: Option<Served>,
}

impl Restarting {
    fn new(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", testkit::redis::free_port());
        let mut it = Restarting { dir, address, served: None };
        it.start(options);
        it
    }

    fn start(&mut self, options: &[&str]) {
        let serve = ["serve", "--log", "none", "--listen", &self.address];
        let mut command = leasehold(&[&serve[..], options].concat());
        self.served = Some(Served::from(command.current_dir(self.dir.path())));
    }

    fn stop(&mut self) {
        let served = self.served.take().unwrap();
        served.signal(Signal::TERM);
        assert!(served.ended().success());
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn leasehold(&self, args: &[&str]) -> std::process::Command {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_URL", self.url()).current_dir(self.dir.path());
        command
    }

    /// Takes `x`; the lease is in a file.
    fn hold(&self) {
        let taken = ended(self.leasehold(&["acquire", "x", "--owner", "me", "--ttl", "10m"]));
        assert_eq!(taken.code(), 0, "{taken:?}");
        std::fs::write(self.dir.path().join("lease"), taken.out).unwrap();
    }

    fn release(&self) {
        let released = ended(self.leasehold(&["release", "--lease", "lease"]));
        assert_eq!(released.code(), 0, "{released:?}");
    }

    fn watch(&self) -> Running {
        let watch = Running::start(self.leasehold(&["watch", "--interval", "50ms", "--output", "json"]));
        until("it prints the holder", || watch.printed().contains("\"held\""));
        watch
    }

    /// Starts `wait` and returns when it has found `x` held.
    fn wait(&self, args: &[&str]) -> Running {
        let wait = Running::start(self.leasehold(&[&["wait", "x"], args].concat()));
        until("it has connected", || connections(&wait) > 0);
        wait
    }
}

/// The connections of a process.
fn connections(process: &Running) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.pid().as_raw_nonzero())).unwrap().flatten();
    let links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()));
    let all = std::fs::read_to_string(Path::new("/proc/net/tcp")).unwrap();
    let established = |inode: &String| {
        let mut lines = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.any(|fields| fields.get(3) == Some(&"01") && fields.get(9) == Some(&inode.as_str()))
    };
    sockets.filter(established).count()
}

#[test]
fn watch_and_wait_outlast_a_restart_of_the_server() {
    let mut server = Restarting::new(&[]);
    server.hold();
    let (mut watch, mut bounded, mut endless) =
        (server.watch(), server.wait(&["-w", "600"]), server.wait(&[]));
    server.stop();
    let each = |watch: &Running, bounded: &Running, endless: &Running, words: &str| {
        until(&format!("all say that it {words}"), || {
            [watch, bounded, endless].iter().all(|process| process.said().contains(words))
        });
    };
    each(&watch, &bounded, &endless, "does not answer");
    assert!(!watch.has_ended() && !bounded.has_ended() && !endless.has_ended());
    server.start(&[]);
    each(&watch, &bounded, &endless, "answers again");
    server.release();
    until("the change is printed", || watch.printed().contains("\"free\""));
    for wait in [bounded, endless] {
        let wait = wait.ended();
        assert_eq!(wait.code(), 0, "{wait:?}");
    }
    // Several looks failed in a row, but it was reported once, with the store. The lock is still held.
    let lines: Vec<String> = watch.said().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines.iter().all(|line| line.starts_with("leasehold: ") && line.contains(&server.url())),
        "{lines:?}"
    );
    assert_eq!(watch.printed().lines().count(), 2, "{}", watch.printed());
    assert!(!watch.has_ended());
    watch.signal(Signal::INT);
    assert!(watch.ended().status.code().is_none(), "it dies of it");
}

#[test]
fn a_bounded_wait_whose_store_stays_away_exits_69_at_its_limit() {
    let mut server = Restarting::new(&[]);
    server.hold();
    let (began, wait) = (Instant::now(), server.wait(&["-w", "4"]));
    server.stop();
    let wait = wait.ended();
    assert_eq!(wait.code(), 69, "{wait:?}");
    assert!(wait.err.contains(&server.url()), "{wait:?}");
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn watch_and_wait_end_at_once_when_they_are_not_let_in_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let secret = ended(leasehold(&["token", "create", "--tokens", tokens.to_str().unwrap()])).out;
    let server = Served::start(dir.path(), &["--tokens", tokens.to_str().unwrap()]);
    let call = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_URL", &server.url).env("LEASEHOLD_TOKEN", secret.trim());
        command
    };
    assert_eq!(ended(call(&["acquire", "x", "--ttl", "10m"])).code(), 0);
    let watch = Running::start(call(&["watch", "--output", "json"]));
    until("it prints the holder", || watch.printed().contains("\"held\""));
    let wait = Running::start(call(&["wait", "x"]));
    until("it has connected", || connections(&wait) > 0);
    std::fs::write(&tokens, "").unwrap();
    server.signal(Signal::HUP);
    for refused in [watch.ended(), wait.ended()] {
        refused.says(77, "token");
    }
}
