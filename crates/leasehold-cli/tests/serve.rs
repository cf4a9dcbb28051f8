//! The built server as a separate process: started, killed, stopped, started again.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::blocking::Locks;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use support::{greeted, until, until_within};
use testkit::until::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// It ends within five seconds; three more are for a busy machine.
const END: Duration = Duration::from_secs(8);

fn command(arguments: &[&str], directory: &Path) -> Command {
    // Killed with this test process, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_leasehold"), "serve", "--log", "none"]);
    command.args(arguments).current_dir(directory);
    for variable in ["LEASEHOLD_STORE", "LEASEHOLD_LISTEN", "LEASEHOLD_TOKENS", "LEASEHOLD_CONFIG"] {
        command.env_remove(variable);
    }
    command
}

fn refused(arguments: &[&str], directory: &Path) -> Output {
    command(arguments, directory).output().unwrap()
}

struct Server {
    process: Child,
    url: String,
    greeting: String,
}

impl Server {
    fn start(arguments: &[&str], directory: &Path) -> Self {
        Server::from(&mut command(arguments, directory))
    }

    fn from(command: &mut Command) -> Self {
        let (process, url, greeting) = greeted(command);
        Server { process, url, greeting }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until it has ended; returns its exit code, and how long that took.
    fn ended(&mut self) -> (Option<i32>, Duration) {
        let began = Instant::now();
        until("the server ends", || self.process.try_wait().unwrap().is_some());
        (self.process.wait().unwrap().code(), began.elapsed())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_starts_with_nothing_and_says_how_to_use_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0"], directory.path());
    assert!(server.greeting.contains("leasehold.db") && server.greeting.contains("curl http://127.0.0.1:"));
    // The command it prints works as written.
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("try")).unwrap().trim();
    let tried = Command::new("sh").args(["-c", &format!("{line} -sS")]).output().unwrap();
    let body: serde_json::Value = serde_json::from_slice(&tried.stdout).unwrap();
    assert_eq!((&body["acquired"], &body["lock_name"]), (&true.into(), &"demo".into()));
    let locks = Locks::connect(&server.url).unwrap();
    assert!(locks.mutex("demo").try_lock().unwrap().is_none());
    assert!(directory.path().join("leasehold.db").exists());
}

#[test]
fn stopping_answers_waiters_and_exits_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Server::start(&["--listen", "127.0.0.1:0"], directory.path());
        let body = r#"{"owner_id":"me","ttl_ms":600000,"wait_ms":50000}"#;
        let curl = |url: &str| {
            let url = format!("{url}/v1/locks/a/acquire");
            let arguments =
                ["-sS", "-w", "\n%{http_code}", &url, "-H", "content-type: application/json", "-d", body];
            Command::new("curl").args(arguments).stdout(Stdio::piped()).spawn().unwrap()
        };
        assert!(curl(&server.url).wait().unwrap().success());
        let mut waiting = curl(&server.url);
        let locks = Locks::connect(&server.url).unwrap();
        until("it waits", || locks.inspect("a").unwrap().queue_length == 1);
        server.signal(signal);
        let (code, took) = server.ended();
        assert_eq!(code, Some(0));
        assert!(took < END, "it took {took:?}");
        let mut text = String::new();
        waiting.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        waiting.wait().unwrap();
        assert!(text.ends_with("\n503") && text.contains("DRAINING"), "{text}");
    }
}

/// The store is stopped but not gone: it refuses nothing, and closes no connection.
#[test]
fn stopping_with_a_silent_store_answers_all_waiters_and_exits_0() {
    let redis = testkit::redis::Server::start();
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(&["--listen", "127.0.0.1:0", "--store", &redis.url()], directory.path());
    let locks = Locks::connect(&server.url).unwrap();
    let held = locks.mutex("a").lock().unwrap();
    let url = format!("{}/v1/locks/a/acquire", server.url);
    let body = r#"{"owner_id":"me","ttl_ms":600000,"wait_ms":50000}"#;
    let curl = ["-sS", "-w", "\n%{http_code} ", &url, "-H", "content-type: application/json", "-d", body];
    let waiting: Vec<_> =
        (0..10).map(|_| Command::new("curl").args(curl).stdout(Stdio::piped()).spawn().unwrap()).collect();
    until("all of them wait", || locks.inspect("a").unwrap().queue_length == 10);
    redis.freeze();
    server.signal(Signal::TERM);
    let (code, took) = server.ended();
    assert_eq!(code, Some(0));
    // It waits three seconds for the store. All clients were answered by then: a process that has ended answers
    // nobody.
    assert!(took < END, "it took {took:?}");
    for waiting in waiting {
        let text = String::from_utf8(waiting.wait_with_output().unwrap().stdout).unwrap();
        assert!(text.contains("\n503 ") && text.contains("DRAINING"), "{text}");
    }
    redis.go_on();
    drop(held);
}

#[test]
fn a_second_server_on_the_same_file_is_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Server::start(&["--listen", "127.0.0.1:0"], directory.path());
    let second = refused(&["--listen", "127.0.0.1:0"], directory.path());
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(69), "{said}");
    assert!(said.contains("another leasehold server already serves this file"), "{said}");
    assert!(said.contains(&format!("process {}", first.process.id())), "{said}");
    // By whatever path, it is the same file.
    let path = |name: &str| directory.path().join(name);
    std::os::unix::fs::symlink("leasehold.db", path("link.db")).unwrap();
    std::os::unix::fs::symlink(".", path("there")).unwrap();
    std::fs::create_dir(path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../there/link.db", path("elsewhere/b.db")).unwrap();
    for way in ["sqlite:link.db", "sqlite:there/leasehold.db", "sqlite:elsewhere/b.db", "SQLite:leasehold.db"]
    {
        let second = refused(&["--listen", "127.0.0.1:0", "--store", way, "--check"], directory.path());
        let said = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(69), "{way}: {said}");
        assert!(said.contains(&format!("process {}", first.process.id())), "{way}: {said}");
    }
    // With a second hard link nobody can tell whether another server uses the file, and SQLite would damage it.
    std::fs::hard_link(path("leasehold.db"), path("twin.db")).unwrap();
    let twin =
        refused(&["--listen", "127.0.0.1:0", "--store", "sqlite:twin.db", "--check"], directory.path());
    let said = String::from_utf8(twin.stderr).unwrap();
    assert!(twin.status.code() == Some(64) && said.contains("hard links"), "{said}");
    std::fs::remove_file(path("twin.db")).unwrap();
    first.signal(Signal::KILL);
    first.ended();
    // After a kill nothing blocks the next start, and the other path leads to the same data.
    let store = ["--listen", "127.0.0.1:0", "--store", "sqlite:elsewhere/b.db"];
    let server = Server::start(&store, directory.path());
    let real = directory.path().canonicalize().unwrap().join("leasehold.db");
    assert!(server.greeting.contains(&format!("{}\n", real.display())), "{}", server.greeting);
}

/// A newer version would change the database under the older server that uses it.
#[test]
fn a_refused_server_has_not_touched_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("leasehold.db");
    let _first = leasehold_server::SoleServer::of(&database, "first server").unwrap();
    let second = refused(&["--listen", "127.0.0.1:0", "--check"], directory.path());
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(second.status.code() == Some(69) && said.contains("first server"), "{said}");
    assert!(!database.exists());
}

/// A program that waits for the greeting may send a signal at once.
#[test]
fn a_signal_right_after_the_greeting_is_heeded() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--store", "memory:"];
    for round in 0..40 {
        let mut server = Server::start(&arguments, directory.path());
        let signals: &[Signal] = match round % 4 {
            0 => &[Signal::HUP, Signal::TERM],
            1 => &[Signal::TERM],
            2 => &[Signal::HUP, Signal::INT],
            _ => &[Signal::HUP, Signal::HUP, Signal::TERM],
        };
        signals.iter().for_each(|signal| server.signal(*signal));
        assert_eq!(server.ended().0, Some(0), "round {round}, {signals:?}");
    }
}

#[test]
fn remote_clients_need_a_token_unless_configured_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let open = refused(&["--listen", "0.0.0.0:0", "--store", "memory:"], directory.path());
    assert_eq!(open.status.code(), Some(64));
    assert!(String::from_utf8(open.stderr).unwrap().contains("--insecure-no-auth"));
    let check = ["--listen", "0.0.0.0:0", "--store", "memory:", "--insecure-no-auth", "--check"];
    assert_eq!(refused(&check, directory.path()).status.code(), Some(0));
    let made = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["token", "create", "--tokens", "t", "--prefix", "ci/", "--allow", "acquire,read"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(made.status.success());
    let secret = String::from_utf8(made.stdout).unwrap();
    let listed = std::fs::read_to_string(directory.path().join("t")).unwrap();
    assert!(!listed.contains(secret.trim()) && listed.contains("\"ci/\""), "{listed}");
    std::fs::write(directory.path().join("secret"), &secret).unwrap();
    let server =
        Server::start(&["--listen", "127.0.0.1:0", "--store", "memory:", "--tokens", "t"], directory.path());
    let none = Locks::connect(&server.url).unwrap_err();
    assert_eq!(none.kind(), leasehold::ErrorKind::AuthFailed);
    let path = directory.path().join("secret");
    let locks = Locks::connect(&format!("{}?token_file={}", server.url, path.display())).unwrap();
    locks.mutex("ci/build").lock().unwrap().release().unwrap();
    let out = locks.mutex("other").try_lock().unwrap_err();
    assert_eq!(out.kind(), leasehold::ErrorKind::AuthFailed);
    // Removed from the file, the token is refused after a reload.
    std::fs::write(directory.path().join("t"), "").unwrap();
    server.signal(Signal::HUP);
    until("a token that was struck out is refused", || locks.mutex("ci/build").try_lock().is_err());
}

/// What was answered survives, and fences keep rising, whenever the server is killed.
#[test]
fn killed_under_load_it_forgets_nothing_that_it_answered() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let mut server = Server::start(&["--listen", &address], directory.path());
    let url = server.url.clone();
    let ended = Arc::new(AtomicBool::new(false));
    // The number of answered leases that must survive.
    let stand = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let (url, ended, stand) = (url.clone(), Arc::clone(&ended), Arc::clone(&stand));
            std::thread::spawn(move || {
                // Each keeps some leases, and takes and releases others; fences never fall.
                let locks = Locks::connect(&url).unwrap();
                let mut last: HashMap<String, leasehold::Fence> = HashMap::new();
                let mut kept = Vec::new();
                let mut round = 0;
                while !ended.load(Ordering::SeqCst) {
                    round += 1;
                    let name = format!("w{worker}-{}", round % 5);
                    let leasing = locks.leasing(&name).ttl(Duration::from_secs(600));
                    // The server is unavailable now and then; only what was answered counts.
                    let Ok(Some(lease)) = leasing.try_acquire_for(Duration::from_millis(500)) else {
                        continue;
                    };
                    let before = last.insert(name, lease.fence);
                    assert!(before.is_none_or(|before| lease.fence > before), "a fence fell");
                    let keep = format!("kept-{worker}-{round}");
                    // Every other answer must survive, so that the last one before a kill is among them.
                    if round % 2 == 0
                        && let Ok(Some(lease)) =
                            locks.leasing(&keep).ttl(Duration::from_secs(600)).try_acquire()
                    {
                        kept.push(lease);
                        stand.fetch_add(1, Ordering::SeqCst);
                    }
                    let _ = locks.release(&lease);
                }
                kept
            })
        })
        .collect();
    for round in 0..4 {
        if round > 0 {
            server.signal(Signal::KILL);
            server.ended();
            server = Server::start(&["--listen", &address], directory.path());
        }
        let before = stand.load(Ordering::SeqCst);
        until("more leases are answered", || stand.load(Ordering::SeqCst) >= before + 50);
    }
    ended.store(true, Ordering::SeqCst);
    let locks = Locks::connect(&url).unwrap();
    for worker in workers {
        for lease in worker.join().unwrap() {
            let held = locks.renew(&lease).unwrap();
            assert!(
                matches!(held, leasehold::backend::Renewed::Held(_)),
                "an answered lease is gone: {held:?}"
            );
        }
    }
}

#[test]
fn under_load_with_stalling_holders_no_promise_is_broken() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0"], directory.path());
    // Runs until each of these has happened this often.
    let floors = [("acquisitions", 700), ("waits", 500), ("stalls", 30), ("stale_writes_rejected", 20)];
    let mut seen = [0; 4];
    until_within(4 * support::PATIENCE, "enough has happened", || {
        let mut load =
            support::leasehold(&["bench", "--url", &server.url, "--clients", "80", "--output", "json"]);
        load.args(["--duration", "4s", "--ttl", "0.5", "--failure-rate", "0.05"]);
        let load = support::ended(load);
        let figures: serde_json::Value = serde_json::from_str(&load.out).unwrap();
        assert_eq!((load.code(), &figures["violations"]), (0, &0.into()), "{load:?}");
        assert_eq!(figures["stale_releases_done"], 0, "{load:?}");
        // Nothing fails, unless the machine stalled for longer than a call may take.
        let mut errors = figures["errors_by_code"].as_object().unwrap().clone();
        errors.remove("NETWORK_TIMEOUT");
        assert!(errors.is_empty(), "{load:?}");
        for (seen, (what, _)) in seen.iter_mut().zip(floors) {
            *seen += figures[what].as_u64().unwrap();
        }
        println!("{floors:?}: {seen:?}");
        seen.iter().zip(floors).all(|(seen, (_, least))| *seen >= least)
    });
}

/// The number of its open descriptors.
fn descriptors(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count()
}

/// Its CPU time on all cores, in hundredths of a second.
fn ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.process.id())).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Without free descriptors it neither dies nor spins; it answers again when some are free.
#[test]
fn it_survives_having_no_descriptors_left() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--store", "memory:"];
    let usual = descriptors(&Server::start(&arguments, directory.path()));
    // Fewer than the sixteen connections that it always counts on. Inherited descriptors above the limit stay open, so
    // a few more may be left.
    let most = usual + 6;
    let mut limited = Command::new("prlimit");
    let own = command(&arguments, directory.path());
    limited.arg(format!("--nofile={most}:{most}")).arg(own.get_program()).args(own.get_args());
    let mut server = Server::from(limited.current_dir(directory.path()));
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let connections: Vec<_> =
        (0..most + 20).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    until("it has all descriptors that it may have", || descriptors(&server) >= most);
    let (before, since) = (ticks(&server), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let has = descriptors(&server);
    assert!((most..usual + 16).contains(&has), "it is not the limit that stopped it: {has} of {most}");
    // As a part of the time that has passed: a spinning server uses a whole core, or half if others want it too.
    let (used, passed) = (Duration::from_millis(10 * (ticks(&server) - before)), since.elapsed());
    assert!(used < passed / 3, "it spins: {used:?} on a core in {passed:?}");
    assert!(server.process.try_wait().unwrap().is_none(), "it died");
    drop(connections);
    let locks = Locks::connect(&server.url).unwrap();
    locks.mutex("a").lock().unwrap().release().unwrap();
}

/// The examples of `docs/server.md`, as written, on a server that listens where they say.
#[test]
fn the_examples_of_the_documentation_work() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let examples: Vec<&&str> = blocks.iter().filter(|block| block.contains("curl ")).collect();
    assert_eq!(
        page.matches("curl -").count(),
        examples.iter().map(|block| block.matches("curl -").count()).sum::<usize>()
    );
    assert!(examples.len() >= 4, "there are examples");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0"], directory.path());
    for example in examples {
        let script = format!("set -eu\n{}", example.replace("http://127.0.0.1:7420", &server.url));
        let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{example}\n{said}{}", String::from_utf8_lossy(&ran.stderr));
        // The text after `# ` is the expected answer, up to the dots.
        for promised in example.lines().filter_map(|line| line.strip_prefix("# ")) {
            let promised: Vec<&str> = promised.split('…').collect();
            let is_it = |line: &str| {
                let mut rest = line;
                promised.iter().all(|part| match rest.find(part) {
                    Some(at) => {
                        rest = &rest[at + part.len()..];
                        true
                    }
                    None => false,
                })
            };
            assert!(said.lines().any(is_it), "{promised:?} is not in\n{said}");
        }
    }
    // Every command in an example exists.
    for block in blocks.iter().flat_map(|block| block.lines()).filter(|line| line.starts_with("leasehold ")) {
        let verb = block.split_whitespace().nth(1).unwrap();
        let help = Command::new(env!("CARGO_BIN_EXE_leasehold")).args([verb, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let sub = block.split_whitespace().nth(2).filter(|word| !word.starts_with('-'));
        let help = match sub {
            None => help,
            Some(sub) => {
                let help = Command::new(env!("CARGO_BIN_EXE_leasehold")).args([verb, sub, "--help"]).output();
                String::from_utf8(help.unwrap().stdout).unwrap()
            }
        };
        for flag in block.split_whitespace().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{flag} of {block}");
        }
    }
}

/// As after a restart, when all clients come back at the same moment.
#[test]
fn thousands_of_clients_at_once_are_all_let_in() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&["--listen", "127.0.0.1:0", "--store", "memory:"], directory.path());
    let address = server.url.trim_start_matches("http://").to_owned();
    let most: usize =
        std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let files = maximum.map_or(usize::MAX, |files| usize::try_from(files).unwrap());
    // More than the 1024 that most programs have room for.
    let (crowd, all) = (3000, 10_000);
    if most < crowd || files < all + 100 {
        let why = format!("net.core.somaxconn is {most}, a process may have {files} files");
        testkit::not_tested(&format!("a crowd of {all} clients at the server: {why}"));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Each sends a request at once: a server closes connections that stay silent for long.
        let come = async || {
            let mut client = tokio::net::TcpStream::connect(&address).await?;
            client.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
            Ok::<_, std::io::Error>(client)
        };
        let connect = |clients: usize| {
            let coming = (0..clients).map(|_| come());
            in_time("all of them are let in", futures_util::future::try_join_all(coming))
        };
        let answered = async |clients: &mut Vec<tokio::net::TcpStream>| {
            let answers = clients.iter_mut().map(async |client| {
                let mut answer = [0; 12];
                client.read_exact(&mut answer).await?;
                Ok::<_, std::io::Error>(answer)
            });
            let answers = futures_util::future::try_join_all(answers);
            let answers = in_time("all of them are answered", answers).await.unwrap();
            assert!(answers.iter().all(|answer| answer == b"HTTP/1.1 200"));
        };
        // The system accepts them while the server is stopped.
        server.signal(Signal::STOP);
        let mut clients = connect(crowd).await.unwrap();
        server.signal(Signal::CONT);
        clients.extend(connect(all - crowd).await.unwrap());
        answered(&mut clients).await;
        // The server dies and comes back; all return at once.
        drop((server, clients));
        let _server = Server::start(&["--listen", &address, "--store", "memory:"], directory.path());
        let began = Instant::now();
        let mut clients = connect(all).await.unwrap();
        answered(&mut clients).await;
        println!("{all} clients were answered {:.1} s after the restart", began.elapsed().as_secs_f64());
    });
}
