//! How the server starts: its addresses, its messages, and which signals end it meanwhile.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use support::{Ended, Running, Served, ended, leasehold, redis, until};

fn serve(arguments: &[&str], directory: &Path) -> Command {
    let quiet = ["serve", "--log", "none", "--listen", "127.0.0.1:0"];
    let mut command = leasehold(&[&quiet[..], arguments].concat());
    command.current_dir(directory);
    command
}

#[test]
fn signals_while_the_server_connects_are_heeded() {
    let dir = tempfile::tempdir().unwrap();
    // On a signal to end, it does not wait for its store.
    for signal in [Signal::TERM, Signal::INT] {
        let store = redis();
        let _away = store.away();
        let server = Running::start(serve(&["--store", &store.url], dir.path()));
        store.until_opened_by(&server);
        server.signal(Signal::HUP);
        server.signal(signal);
        let outcome = server.ended();
        assert_eq!((outcome.code(), outcome.out.as_str()), (0, ""), "{outcome:?}");
    }
    // On SIGHUP it continues, and reads its files again.
    let store = redis();
    let away = store.away();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", &store.url, "--accept-risks"];
    let mut server = Running::start(leasehold(&serve));
    store.until_opened_by(&server);
    server.signal(Signal::HUP);
    drop(away);
    until("it serves", || server.has_ended() || server.printed().contains("export LEASEHOLD_URL="));
    assert!(!server.has_ended(), "{}", server.said());
    until("it has read them", || server.said().contains("op=reload"));
}

/// The mode of the lock file beside the database.
fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn others_cannot_open_the_lock_file_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("served.db.server");
    let start = || {
        let mut command = Command::new("sh");
        let serve = serve(&["--store", "sqlite:served.db"], dir.path());
        command.args(["-c", "umask 022; exec \"$@\"", "sh"]).arg(serve.get_program()).args(serve.get_args());
        Served::from(command.current_dir(dir.path()))
    };
    let served = start();
    assert_eq!(mode(&lock), 0o600);
    drop(served);
    // As an older version has left it.
    std::fs::set_permissions(&lock, PermissionsExt::from_mode(0o644)).unwrap();
    let served = start();
    assert_eq!(mode(&lock), 0o600);
    served.signal(Signal::TERM);
    assert!(served.ended().success());
}

#[test]
fn a_lock_file_that_is_no_file_of_ours_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (lock, other) = (dir.path().join("served.db.server"), dir.path().join("other"));
    let refused = |says: &str| {
        let outcome = ended(serve(&["--store", "sqlite:served.db", "--check"], dir.path()));
        outcome.says(69, says);
        assert!(outcome.err.contains("served.db.server"), "{outcome:?}");
    };
    // A link, even one to a file that does not exist.
    std::os::unix::fs::symlink(&other, &lock).unwrap();
    refused("symbolic link");
    assert!(!other.exists());
    std::fs::write(&other, "precious").unwrap();
    refused("symbolic link");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "precious");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    refused("served.db.server");
    std::fs::remove_dir(&lock).unwrap();
    std::fs::write(&lock, "").unwrap();
    if lock.metadata().unwrap().uid() != 0 {
        testkit::not_tested("a server's lock file that belongs to another user: only root can make one");
        return;
    }
    std::os::unix::fs::chown(&lock, Some(65534), None).unwrap();
    refused("belongs to another user");
    assert!(lock.exists());
}

#[test]
fn a_check_and_a_failed_bind_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let left = || {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<Vec<_>>()
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let fails_to_bind = |store: &str| {
        let mut bind = leasehold(&["serve", "--store", store, "--listen", &address]);
        bind.current_dir(dir.path());
        ended(bind).says(69, &address);
    };
    let nodes: Vec<String> =
        (1..=3).map(|node| format!("sqlite://{}", dir.path().join(format!("{node}.db")).display())).collect();
    let quorum = format!("quorum:{}", nodes.join(","));
    for (store, unchecked) in [("sqlite:served.db", 1), (&*quorum, 3)] {
        fails_to_bind(store);
        assert!(left().is_empty(), "a failed bind: {:?}", left());
        let check = ended(serve(&["--store", store, "--check", "--accept-risks"], dir.path()));
        assert_eq!(check.code(), 0, "{check:?}");
        assert!(left().is_empty(), "a check: {:?}", left());
        assert_eq!(
            check.err.matches("does not exist yet, and was not checked").count(),
            unchecked,
            "{check:?}"
        );
    }
    let postgres = testkit::postgres::Postgres::start();
    let store = postgres.url();
    let tables = || postgres.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'");
    fails_to_bind(&store);
    assert_eq!(tables().trim(), "0", "a failed bind");
    let check = ["--url", &store, "--check", "--accept-risks"];
    let before = ended(serve(&check, dir.path()));
    assert_eq!((before.code(), tables().trim()), (0, "0"), "{before:?}");
    assert!(before.err.contains("the tables in schema \"leasehold\" do not exist yet"), "{before:?}");
    // With the tables there, everything is checked.
    drop(Served::start(dir.path(), &["--store", &store]));
    let after = ended(serve(&check, dir.path()));
    assert_eq!((after.code(), after.err.as_str(), tables().trim()), (0, "", "1"), "{after:?}");
}

#[test]
fn a_store_that_cannot_be_opened_is_named_without_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let port = testkit::redis::free_port();
    for (store, code, shown) in [
        (format!("redis://me:hush@127.0.0.1:{port}/0"), 69, format!("redis://127.0.0.1:{port}/0")),
        (
            format!("postgres://me:hush@127.0.0.1:{port}/db?application_name=hush"),
            69,
            format!("postgres://127.0.0.1:{port}/db"),
        ),
        (format!("redis://:hush@127.0.0.1:{port}?nonsense=hush"), 64, format!("redis://127.0.0.1:{port}")),
        ("sqlite:data".into(), 64, dir.path().join("data").canonicalize().unwrap().display().to_string()),
    ] {
        for check in [&[][..], &["--check"]] {
            let mut command = serve(check, dir.path());
            command.env("LEASEHOLD_STORE", &store);
            let outcome = ended(command);
            outcome.says(code, &shown);
            assert!(!outcome.err.contains("hush"), "{outcome:?}");
        }
    }
    // The same for the other commands.
    let mut list = leasehold(&["list", "--url", "sqlite:data"]);
    let listed: Ended = ended({
        list.current_dir(dir.path());
        list
    });
    listed.says(64, &dir.path().join("data").canonicalize().unwrap().display().to_string());
}

/// The store answers, except to questions about its setup.
#[test]
fn a_failed_look_at_the_store_does_not_stop_the_start() {
    let redis = testkit::redis::Server::start();
    let proxy = testkit::proxy::Proxy::before(([127, 0, 0, 1], redis.port()).into()).unwrap();
    let url = redis.url().replace(&redis.port().to_string(), &proxy.address().port().to_string());
    let dir = tempfile::tempdir().unwrap();
    // The first connection works, and the second is not answered.
    let start = |arguments: &[&str]| {
        let opening = proxy.hold_request(b"CONFIG");
        let running = Running::start(serve(&[&["--store", &url], arguments].concat(), dir.path()));
        until("it opens its store", || opening.is_caught());
        (0..8).for_each(|_| proxy.lose_answers(b"INFO"));
        opening.deliver();
        running
    };
    let mut served = start(&[]);
    until("it serves", || served.has_ended() || served.printed().contains("export LEASEHOLD_URL="));
    let shown = support::Store::at(url.clone()).shown();
    let words = format!("leasehold: {shown}: its setup could not be examined");
    assert!(served.said().contains(&words) && !served.has_ended(), "{}", served.said());
    proxy.disarm();
    let own = served
        .printed()
        .lines()
        .find_map(|line| line.strip_prefix("export LEASEHOLD_URL=").map(str::to_owned));
    let locks = leasehold::blocking::Locks::connect(&own.unwrap()).unwrap();
    locks.mutex("x").lock().unwrap().release().unwrap();
    // `--check` does not report that all is in order.
    let check = start(&["--check"]).ended();
    assert!(
        check.code() == 69 && check.err.contains("could not be examined") && check.out.is_empty(),
        "{check:?}"
    );
}

/// A name with several addresses, in a hosts file that only this process sees.
#[test]
fn a_server_listens_on_every_address_of_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    // The last is not an address of this machine (a block for documentation), as ::1 is not where IPv6 is off.
    std::fs::write(&hosts, "127.0.0.2 several\n127.0.0.3 several\n127.0.0.3 several\n192.0.2.1 several\n")
        .unwrap();
    let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    let unshared = |command: &Command| {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["-r", "-m", "sh", "-c", &script, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        unshare.current_dir(dir.path());
        unshare
    };
    if !unshared(&Command::new("true")).status().is_ok_and(|status| status.success()) {
        testkit::not_tested(
            "a name with several addresses: this system lets nobody have their own /etc/hosts",
        );
        return;
    }
    let serve = |listen: &str, more: &[&str]| {
        let serve =
            ["serve", "--log", "none", "--store", "memory:", "--insecure-no-auth", "--listen", listen];
        unshared(&leasehold(&[&serve[..], more].concat()))
    };
    let mut command = serve("several:0", &["--metrics-listen", "several:0"]);
    let served = Served::from(&mut command);
    let port = |url: &str| url.rsplit(':').next().unwrap().trim_end_matches('/').parse::<u16>().unwrap();
    let (own, figures) = (port(&served.url), port(served.told("dashboard")));
    for (port, path) in [(own, "healthz"), (figures, "metrics")] {
        for host in ["127.0.0.2", "127.0.0.3"] {
            let url = format!("http://{host}:{port}/{path}");
            let answer =
                Command::new("curl").args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", &url]).output();
            assert_eq!(answer.unwrap().stdout, b"200", "{url}");
        }
        assert!(TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err());
    }
    let first = served.greeting.lines().next().unwrap();
    let (one, other) = (format!("http://127.0.0.2:{own}"), format!("http://127.0.0.3:{own}"));
    assert!(first.contains(&one) && first.contains(&other), "{first}");
    // An address in use is an error, even if it is only one of several.
    let taken = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
    let address = format!("several:{}", taken.local_addr().unwrap().port());
    let refused = ended(serve(&address, &[]));
    refused.says(69, &taken.local_addr().unwrap().to_string());
    served.signal(Signal::TERM);
    assert!(served.ended().success());
}

#[test]
fn a_server_whose_greeting_nobody_reads_serves() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // Its address is known from the file beside its database.
    let mut command = serve(&["--store", "sqlite:served.db"], dir.path());
    let mut server = Killed(command.stdout(writer).spawn().unwrap());
    let lock = dir.path().join("served.db.server");
    let is_ready = || std::fs::metadata(&lock).is_ok_and(|about| about.len() > 0);
    until("it has its store, or has ended", || is_ready() || server.0.try_wait().unwrap().is_some());
    let serves = |server: &Killed| {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.0.id())).into_iter().flatten();
        let links = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let own: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
        sockets.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_own = own.contains(&format!("socket:[{}]", fields.get(9)?));
            let port = fields[1].split_once(':')?.1;
            (is_own && fields[3] == "0A").then(|| u16::from_str_radix(port, 16).unwrap())
        })
    };
    let mut port = None;
    until("it listens, or has ended", || {
        port = serves(&server);
        port.is_some() || server.0.try_wait().unwrap().is_some()
    });
    let healthz = format!("http://127.0.0.1:{}/healthz", port.expect("it serves"));
    let answer = Command::new("curl").args(["-s", "-m", "60", &healthz]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "{\"status\":\"ok\"}", "{:?}", server.0.try_wait());
}

/// A process that is killed when the test ends.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
