//! Where a connection is between calls: for a moment on the last caller's runtime, then at home, which never sleeps.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use testkit::postgres::Postgres;
use tokio_postgres::Client;

use crate::support::{connect, in_time, quiet, runtime, session_of, stranger, until};

/// One side of a connection, as the system shows it.
struct Socket {
    own: u16,
    server: u16,
}

impl Socket {
    /// The connection of the session that holds a name.
    async fn holding(look: &Client, name: &str, server: &Postgres) -> Self {
        let pid = session_of(look, name).await.expect("it is held");
        let port = "SELECT client_port FROM pg_stat_activity WHERE pid = $1";
        let port: i32 = look.query_one(port, &[&pid]).await.unwrap().get(0);
        Socket { own: u16::try_from(port).unwrap(), server: server.port() }
    }

    /// Its number, unless it is closed; also if only the other side has closed it.
    fn inode(&self) -> Option<String> {
        let ports = [self.own, self.server].map(|port| format!(":{port:04X}"));
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mine =
            |line: &Vec<&str>| line[1].ends_with(&ports[0]) && line[2].ends_with(&ports[1]) && line[9] != "0";
        lines.find(|line| line.len() > 9 && mine(line)).map(|line| line[9].to_owned())
    }

    /// Its own descriptor, and those of all runtimes: slow to find out.
    fn watch(&self) -> Watch {
        let link = format!("socket:[{}]", self.inode().expect("it is open"));
        let mut watch = Watch { socket: String::new(), runtimes: Vec::new() };
        for file in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let (number, to) = (file.file_name(), fs::read_link(file.path()).unwrap_or_default());
            if to.as_os_str() == &*link {
                watch.socket = number.into_string().unwrap();
            } else if to.as_os_str() == "anon_inode:[eventpoll]" {
                watch.runtimes.push(Path::new("/proc/self/fdinfo").join(number));
            }
        }
        watch
    }
}

struct Watch {
    socket: String,
    runtimes: Vec<PathBuf>,
}

impl Watch {
    /// How many descriptors of runtimes watch the socket.
    fn watchers(&self) -> usize {
        let is_it = |line: &str| {
            line.strip_prefix("tfd:").and_then(|rest| rest.split_whitespace().next()) == Some(&*self.socket)
        };
        // A descriptor that was closed meanwhile watches nothing.
        let watches = |one: &&PathBuf| fs::read_to_string(one).unwrap_or_default().lines().any(is_it);
        self.runtimes.iter().filter(watches).count()
    }
}

/// How long after a call a connection stays on the caller's runtime, as in the store.
const VACANT: Duration = Duration::from_millis(20);

#[test]
fn a_connection_stays_with_its_caller_briefly_then_goes_home() {
    let server = Postgres::start();
    let own = runtime();
    let (locks, look) = own.block_on(async { (quiet(&server).await, stranger(&server).await) });
    let guard = own.block_on(locks.mutex("x").lock()).unwrap();
    let watch = own.block_on(Socket::holding(&look, "x", &server)).watch();
    own.block_on(guard.release()).unwrap();
    let mut seen = 0;
    own.block_on(until("it was looked at in time, three times", async || {
        let guard = locks.mutex("x").lock().await.unwrap();
        let called = Instant::now();
        guard.release().await.unwrap();
        std::thread::sleep(VACANT / 4);
        let soon = watch.watchers();
        // A look that came later shows nothing.
        if called.elapsed() < VACANT {
            testkit::until::until("home watches it too, but did not at once", || soon < watch.watchers());
            seen += 1;
        }
        seen == 3
    }));
}

#[test]
fn an_idle_sessions_end_is_noticed_without_a_caller_runtime() {
    let server = Postgres::start();
    let own = runtime();
    let (locks, look) = own.block_on(async { (quiet(&server).await, stranger(&server).await) });
    for ends in [false, true] {
        let last = runtime();
        let guard = last.block_on(locks.mutex("x").lock()).unwrap();
        let socket = own.block_on(Socket::holding(&look, "x", &server));
        let pid = own.block_on(session_of(&look, "x"));
        last.block_on(guard.release()).unwrap();
        // With `ends` the runtime ends here; otherwise it is alive, and does nothing.
        let last = (!ends).then_some(last);
        own.block_on(async {
            look.query_one("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
            until("it is closed here too", async || socket.inode().is_none()).await;
            let one_try = locks.mutex("x").try_lock().await.unwrap();
            one_try.expect("it is free").release().await.unwrap();
        });
        drop(last);
    }
}

#[test]
fn calls_during_the_move_home_from_another_runtime_are_answered() {
    let server = Postgres::start();
    let (one, other) = (runtime(), runtime());
    let locks = one.block_on(connect(&server));
    let guard = one.block_on(locks.mutex("held").lock()).unwrap();
    for round in 0..120_u64 {
        let calls = if round % 2 == 0 { &one } else { &other };
        calls.block_on(async {
            let call = async { locks.mutex("x").lock().await.unwrap().release().await.unwrap() };
            in_time("it is answered", call).await;
        });
        // Around 20 ms, by thirds of a millisecond: it has gone home, is going, or is about to.
        std::thread::sleep(Duration::from_micros(17_500 + round % 15 * 333));
    }
    guard.check().unwrap();
}
