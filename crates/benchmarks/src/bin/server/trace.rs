//! The server's system calls: no client is answered before its change is on the disk.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use benchmarks::{Contender, Table, uncontended};

use crate::client::Client;
use crate::process::Server;

const CONNECTIONS: usize = 64;
const TIME: Duration = Duration::from_secs(2);
const CALLS: &str = "trace=recvfrom,read,sendto,write,writev,pwrite64,fdatasync,fsync";

/// What a trace shows.
#[derive(Debug, Default)]
struct Seen {
    answers: u64,
    syncs: u64,
    /// Answers sent before a write and a sync that began after their request had arrived.
    too_early: u64,
}

pub(crate) async fn count(leasehold: &str, table: &mut Table) {
    let server = Server::leasehold(leasehold, "sqlite:locks.db");
    let client: Arc<dyn Contender> = Arc::new(Client::of(&server));
    let directory = crate::disk::directory();
    let path = directory.path().join("trace");
    let tracing = Strace::attach(server.id(), &path);
    uncontended(&client, CONNECTIONS, TIME).await;
    drop(tracing);
    let seen = read(&std::fs::read_to_string(&path).expect("strace wrote a trace"));
    table.row(
        "answers before what they say was on the disk (strace)",
        seen.answers > 0 && seen.syncs > 0 && seen.too_early == 0,
        format!("{} of {}", seen.too_early, seen.answers),
        "0",
        format!(
            "{} fdatasyncs: {:.1} answers for each",
            seen.syncs,
            seen.answers as f64 / seen.syncs.max(1) as f64
        ),
    );
}

/// A running strace; detaches from the process when dropped.
struct Strace(Child);

impl Strace {
    fn attach(process: u32, to: &std::path::Path) -> Self {
        let mut strace = Command::new("strace")
            .args(["-f", "-qq", "-s", "48", "-e", CALLS, "-p", &process.to_string(), "-o"])
            .arg(to)
            .stderr(Stdio::inherit())
            .spawn()
            .expect("strace can be started; it is Debian's package of that name");
        let began = Instant::now();
        let status = || std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        while status().contains("TracerPid:\t0\n") {
            assert!(began.elapsed() < Duration::from_secs(20), "strace does not attach");
            assert!(strace.try_wait().expect("it is ours").is_none(), "strace has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        Strace(strace)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::INT);
        let _ = self.0.wait();
    }
}

/// One connection of the server, as the trace shows it.
#[derive(Default)]
struct Connection {
    /// The line at which its request had arrived.
    at: Option<usize>,
}

/// Reads a trace: later lines happened later, or at the same time.
fn read(trace: &str) -> Seen {
    let mut seen = Seen::default();
    let mut connections: HashMap<String, Connection> = HashMap::new();
    // By thread: the call that has begun and not ended, with its line.
    let mut begun: HashMap<&str, (usize, String)> = HashMap::new();
    let mut written = None;
    // The latest finished sync: when it began, and the write before it.
    let mut synced: Option<(usize, usize)> = None;
    for (number, line) in trace.lines().enumerate() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let (began, text) = match call.strip_prefix("<... ") {
            None => (number, call.to_owned()),
            Some(rest) => {
                let (began, start) = begun.remove(thread).unwrap_or((number, String::new()));
                // As one line: the call's start and its result.
                (began, format!("{start}{}", rest.split_once('>').map_or("", |(_, rest)| rest)))
            }
        };
        let (name, rest) = text.split_once('(').unwrap_or((&text, ""));
        let fd = rest.split([',', ')', ' ']).next().unwrap_or_default().to_owned();
        let ended = !text.ends_with("<unfinished ...>");
        if !ended {
            let start = text.trim_end_matches("<unfinished ...>").trim_end().to_owned();
            begun.insert(thread, (number, start));
        }
        match name {
            "recvfrom" | "read" if ended && rest.contains("\"POST /v1/locks/") => {
                connections.entry(fd).or_default().at = Some(number);
            }
            // To the log, and not to the wake-up of a thread.
            "pwrite64" if ended => written = Some(began),
            "fdatasync" | "fsync" if ended => {
                seen.syncs += 1;
                synced = written.map(|written| (began, written));
            }
            // From its start it may already be on its way.
            "sendto" | "write" | "writev" if began == number && rest.contains("\"HTTP/1.1 200") => {
                let Some(at) = connections.entry(fd).or_default().at.take() else { continue };
                seen.answers += 1;
                let on_disk = synced.is_some_and(|(sync, write)| write > at && sync > write);
                seen.too_early += u64::from(!on_disk);
            }
            _ => {}
        }
    }
    seen
}
