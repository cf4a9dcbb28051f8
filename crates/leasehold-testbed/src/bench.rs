//! A lock server behind a [`Proxy`], driven by lines of text: for tests in any language.
//!
//! `docs/sdk-protocol.md` has the commands.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::dice::Dice;
use crate::failed;
use crate::proxy::{Direction, HeldRequest, Proxy};

/// Only a broken machine takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the server, prints its process id, and kills it when the input ends, however its owner ended.
const KEEPER: &str =
    r#""$@" </dev/null >&2 & pid=$!; echo "$pid"; exec >/dev/null; cat >/dev/null; kill -KILL "$pid"; wait"#;

/// Removes the directory when the input ends, however its owner ended. A server that is being killed may write once
/// more.
const SWEEPER: &str =
    r#"cat >/dev/null; for n in 1 2 3 4 5 6 7 8; do sleep 0.3; rm -rf "$1"; [ -e "$1" ] || break; done"#;

/// A lock server on SQLite, and a proxy before it. Both end when this is dropped, and when its process dies.
#[derive(Debug)]
pub struct Bench {
    server: Server,
    proxy: Arc<Proxy>,
    held: Vec<Option<HeldRequest>>,
    weather: Option<Weather>,
    _sweeper: Child,
}

impl Bench {
    /// Starts the server, which is this program, on a free port.
    ///
    /// # Errors
    /// Those of the system; if the server does not start, with what it printed.
    pub fn start(program: impl Into<PathBuf>) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let directory = std::env::temp_dir().join(format!("leasehold-bench-{}-{number}", std::process::id()));
        // Left behind by an earlier process with the same id.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory)?;
        let mut sweeper = Command::new("sh");
        sweeper.args(["-c", SWEEPER, "sweeper"]).arg(&directory).stdin(Stdio::piped());
        let sweeper = sweeper.process_group(0).spawn()?;
        let mut bench = Bench {
            server: Server { program: program.into(), address, directory, running: None },
            proxy: Arc::new(Proxy::before(address)?),
            held: Vec::new(),
            weather: None,
            _sweeper: sweeper,
        };
        bench.server.start()?;
        Ok(bench)
    }

    /// The address of the server.
    pub fn server(&self) -> SocketAddr {
        self.server.address
    }

    /// The address of the proxy.
    pub fn proxy(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// Does what a line says, and returns the value that the command answers with, if it has one.
    ///
    /// # Errors
    /// If there is no such command, or it fails.
    pub fn obey(&mut self, line: &str) -> io::Result<String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let proxy = &self.proxy;
        match (verb, &words[..]) {
            ("pass", []) => proxy.pass(),
            ("delay", [way, ms]) => proxy.delay(direction(way)?, Duration::from_millis(number(ms)?)),
            ("blackhole", []) => proxy.blackhole(),
            ("blackhole", [way]) => proxy.blackhole_one_way(direction(way)?),
            ("discard", []) => proxy.discard(),
            ("reset", []) => proxy.reset(),
            ("refuse", ["on"]) => proxy.refuse(true),
            ("refuse", ["off"]) => proxy.refuse(false),
            ("cut", [way, bytes]) => proxy.cut_after(direction(way)?, number(bytes)?),
            ("swallow", _) => proxy.swallow_answer(rest.as_bytes()),
            ("lose", _) => proxy.lose_answers(rest.as_bytes()),
            ("disarm", []) => proxy.disarm(),
            ("hold", _) => {
                self.held.push(Some(proxy.hold_request(rest.as_bytes())));
                return Ok((self.held.len() - 1).to_string());
            }
            ("caught", [which, ms]) => {
                let end = Instant::now() + Duration::from_millis(number(ms)?);
                let request = self.request(which)?.as_ref().ok_or_else(gone_on)?;
                while !request.is_caught() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(2));
                }
                return Ok(request.is_caught().to_string());
            }
            ("deliver", [which]) => {
                self.request(which)?.take().ok_or_else(gone_on)?.deliver();
            }
            ("drop", [which]) => drop(self.request(which)?.take()),
            ("counts", []) => {
                let all = proxy.counts();
                let (accepted, open, swallowed, cut) = (all.accepted, all.open, all.swallowed, all.cut);
                return Ok(format!(
                    r#"{{"accepted": {accepted}, "open": {open}, "swallowed": {swallowed}, "cut": {cut}}}"#
                ));
            }
            ("weather", ["off"]) => self.change_weather(None),
            ("weather", [seed]) => self.change_weather(Some(number(seed)?)),
            ("server", ["stop"]) => self.server.signal(Signal::STOP)?,
            ("server", ["continue"]) => self.server.signal(Signal::CONT)?,
            ("server", ["kill"]) => self.server.end(Signal::KILL)?,
            ("server", ["term"]) => self.server.end(Signal::TERM)?,
            ("server", ["start"]) => self.server.start()?,
            ("server", ["restart"]) => {
                self.server.end(Signal::KILL)?;
                self.server.start()?;
            }
            _ => return Err(failed(format!("no such command: {line}"))),
        }
        Ok(String::new())
    }

    fn request(&mut self, name: &str) -> io::Result<&mut Option<HeldRequest>> {
        self.held.get_mut(number::<usize>(name)?).ok_or_else(|| failed("no request has this number"))
    }

    fn change_weather(&mut self, seed: Option<u64>) {
        if let Some(weather) = self.weather.take() {
            weather.end();
            self.proxy.disarm();
            self.proxy.pass();
        }
        self.weather = seed.map(|seed| Weather::begin(Arc::clone(&self.proxy), seed));
    }
}

fn number<T: FromStr>(word: &str) -> io::Result<T> {
    word.parse().map_err(|_| failed(format!("not a number: {word}")))
}

fn gone_on() -> io::Error {
    failed("this request has gone on already")
}

fn direction(way: &str) -> io::Result<Direction> {
    match way {
        "to-server" => Ok(Direction::ToServer),
        "to-client" => Ok(Direction::ToClient),
        _ => Err(failed(format!("no such direction: {way}; there are to-server and to-client"))),
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.change_weather(None);
    }
}

/// The lock server, on the same port and database each time it starts.
#[derive(Debug)]
struct Server {
    program: PathBuf,
    address: SocketAddr,
    directory: PathBuf,
    running: Option<(Child, Pid)>,
}

impl Server {
    fn start(&mut self) -> io::Result<()> {
        if self.running.is_some() {
            return Err(failed("the server runs already"));
        }
        let log = std::fs::File::options().append(true).create(true).open(self.directory.join("log"))?;
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&self.program)
            .args(["serve", "--log", "none", "--listen", &self.address.to_string(), "--store"])
            .arg(format!("sqlite:{}", self.directory.join("leases.db").display()))
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            // Ctrl-C is for its owner, which then ends it.
            .process_group(0)
            .spawn()?;
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().ok_or_else(|| failed("a pipe is missing"))?)
            .read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed("the shell that keeps the server names no process"))?;
        self.running = Some((keeper, pid));
        let began = Instant::now();
        while !is_ready(self.address) {
            if has_ended(pid) || began.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                return Err(failed(format!("the server does not start: {said}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let (_, pid) = self.running.as_ref().ok_or_else(|| failed("the server does not run"))?;
        Ok(kill_process(*pid, signal)?)
    }

    /// Sends a signal that ends it, and waits for that.
    fn end(&mut self, signal: Signal) -> io::Result<()> {
        self.signal(signal)?;
        let Some((mut keeper, pid)) = self.running.take() else { return Ok(()) };
        let began = Instant::now();
        while !has_ended(pid) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(keeper.stdin.take());
        keeper.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.running.is_some() {
            let _ = self.end(Signal::KILL);
        }
    }
}

/// A process that has ended is gone, or is a zombie until its keeper notices.
fn has_ended(pid: Pid) -> bool {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("stat"));
    stat.map_or(true, |stat| {
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// Whether the server and its store answer.
fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Faults at random, until it ends.
#[derive(Debug)]
struct Weather {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Weather {
    fn begin(proxy: Arc<Proxy>, seed: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut dice = Dice::new(seed);
            while !is_over.load(Ordering::SeqCst) {
                change(&proxy, &mut dice);
                std::thread::sleep(Duration::from_millis(dice.between(100, 500)));
            }
        });
        Weather { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.thread.join();
    }
}

/// One change of the weather.
fn change(proxy: &Proxy, dice: &mut Dice) {
    let ms = |dice: &mut Dice, least, most| Duration::from_millis(dice.between(least, most));
    match dice.below(10) {
        0..5 => {
            proxy.delay(Direction::ToServer, ms(dice, 0, 15));
            proxy.delay(Direction::ToClient, ms(dice, 0, 15));
        }
        // Answers come late.
        5 | 6 => {
            proxy.delay(Direction::ToClient, ms(dice, 200, 400));
            std::thread::sleep(ms(dice, 50, 150));
            proxy.delay(Direction::ToClient, Duration::ZERO);
        }
        // An answer is lost, and then the connection: otherwise a long poll would wait for its whole time.
        7 | 8 => {
            proxy.swallow_answer(b"");
            std::thread::sleep(ms(dice, 50, 300));
            proxy.reset();
            proxy.disarm();
        }
        _ => proxy.reset(),
    }
}
