//! A lock server with a proxy before it, for the tests of the SDKs: it reads commands from standard input, and answers
//! each with a line. `docs/sdk-protocol.md` has the commands.
//!
//! `LEASEHOLD_BIN` names the server's program. Everything ends with this program's input.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_testbed::dice::Dice;
use leasehold_testbed::proxy::{Direction, HeldRequest, Proxy};
use rustix::process::{Pid, Signal, kill_process};

/// Only a broken machine takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the server, prints its process id, and kills it when the input ends, however this program ended.
const KEEPER: &str =
    r#""$@" </dev/null >&2 & pid=$!; echo "$pid"; exec >/dev/null; cat >/dev/null; kill -KILL "$pid"; wait"#;

/// As the keeper, for the directory: removes it when the input ends. A server that is being killed may write once more.
const SWEEPER: &str =
    r#"cat >/dev/null; for n in 1 2 3 4 5 6 7 8; do sleep 0.3; rm -rf "$1"; [ -e "$1" ] || break; done"#;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fault-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let program = std::env::var_os("LEASEHOLD_BIN")
        .ok_or("set LEASEHOLD_BIN to the server's program: cargo build, then target/debug/leasehold")?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let directory = std::env::temp_dir().join(format!("leasehold-bench-{}", std::process::id()));
    // Left behind by an earlier process with the same id.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory)?;
    let _sweeper = Command::new("sh")
        .args(["-c", SWEEPER, "sweeper"])
        .arg(&directory)
        .stdin(Stdio::piped())
        .process_group_of_its_own()
        .spawn()?;
    let mut bench = Bench {
        server: Server { program: program.into(), address, directory, running: None },
        proxy: Arc::new(Proxy::before(address)?),
        held: Vec::new(),
        weather: None,
    };
    bench.server.start()?;
    let mut out = io::stdout();
    let proxy = bench.proxy.address();
    writeln!(out, r#"{{"server": "http://{address}", "proxy": "http://{proxy}"}}"#)?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.trim() == "quit" {
            break;
        }
        let answer = match bench.obey(line.trim_end()) {
            Ok(value) if value.is_empty() => "ok".into(),
            Ok(value) => format!("ok {value}"),
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    bench.change_weather(None);
    Ok(())
}

/// Keeps Ctrl-C from a program that has to outlive this one by a moment.
trait OwnGroup {
    fn process_group_of_its_own(&mut self) -> &mut Self;
}

impl OwnGroup for Command {
    fn process_group_of_its_own(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::process_group(self, 0)
    }
}

struct Bench {
    server: Server,
    proxy: Arc<Proxy>,
    held: Vec<Option<HeldRequest>>,
    weather: Option<Weather>,
}

impl Bench {
    fn obey(&mut self, line: &str) -> Result<String, Failure> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let proxy = &self.proxy;
        match (verb, &words[..]) {
            ("pass", []) => proxy.pass(),
            ("delay", [way, ms]) => proxy.delay(direction(way)?, Duration::from_millis(ms.parse()?)),
            ("blackhole", []) => proxy.blackhole(),
            ("blackhole", [way]) => proxy.blackhole_one_way(direction(way)?),
            ("discard", []) => proxy.discard(),
            ("reset", []) => proxy.reset(),
            ("refuse", ["on"]) => proxy.refuse(true),
            ("refuse", ["off"]) => proxy.refuse(false),
            ("cut", [way, bytes]) => proxy.cut_after(direction(way)?, bytes.parse()?),
            ("swallow", _) => proxy.swallow_answer(rest.as_bytes()),
            ("lose", _) => proxy.lose_answers(rest.as_bytes()),
            ("disarm", []) => proxy.disarm(),
            ("hold", _) => {
                self.held.push(Some(proxy.hold_request(rest.as_bytes())));
                return Ok((self.held.len() - 1).to_string());
            }
            ("caught", [number, ms]) => {
                let end = Instant::now() + Duration::from_millis(ms.parse()?);
                let request = self.request(number)?.as_ref().ok_or("this request has gone on")?;
                while !request.is_caught() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(2));
                }
                return Ok(request.is_caught().to_string());
            }
            ("deliver", [number]) => {
                self.request(number)?.take().ok_or("this request has gone on")?.deliver();
            }
            ("drop", [number]) => drop(self.request(number)?.take()),
            ("counts", []) => {
                let all = proxy.counts();
                let (accepted, open, swallowed, cut) = (all.accepted, all.open, all.swallowed, all.cut);
                return Ok(format!(
                    r#"{{"accepted": {accepted}, "open": {open}, "swallowed": {swallowed}, "cut": {cut}}}"#
                ));
            }
            ("weather", ["off"]) => self.change_weather(None),
            ("weather", [seed]) => self.change_weather(Some(seed.parse()?)),
            ("server", ["stop"]) => self.server.signal(Signal::STOP)?,
            ("server", ["continue"]) => self.server.signal(Signal::CONT)?,
            ("server", ["kill"]) => self.server.end(Signal::KILL)?,
            ("server", ["term"]) => self.server.end(Signal::TERM)?,
            ("server", ["start"]) => self.server.start()?,
            ("server", ["restart"]) => {
                self.server.end(Signal::KILL)?;
                self.server.start()?;
            }
            _ => return Err(format!("no such command: {line}").into()),
        }
        Ok(String::new())
    }

    fn request(&mut self, number: &str) -> Result<&mut Option<HeldRequest>, Failure> {
        self.held.get_mut(number.parse::<usize>()?).ok_or_else(|| "no request has this number".into())
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

fn direction(way: &str) -> Result<Direction, Failure> {
    match way {
        "to-server" => Ok(Direction::ToServer),
        "to-client" => Ok(Direction::ToClient),
        _ => Err(format!("no such direction: {way}; there are to-server and to-client").into()),
    }
}

/// The lock server, on the same port and database each time it starts.
struct Server {
    program: PathBuf,
    address: SocketAddr,
    directory: PathBuf,
    running: Option<(Child, Pid)>,
}

impl Server {
    fn start(&mut self) -> Result<(), Failure> {
        if self.running.is_some() {
            return Err("the server runs".into());
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
            .process_group_of_its_own()
            .spawn()?;
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().ok_or("a pipe is missing")?).read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).ok_or("the keeper names no process")?;
        self.running = Some((keeper, pid));
        let began = Instant::now();
        while !is_ready(self.address) {
            if has_ended(pid) || began.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                return Err(format!("the server does not start: {said}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let (_, pid) = self.running.as_ref().ok_or("the server does not run")?;
        Ok(kill_process(*pid, signal)?)
    }

    /// Sends a signal that ends it, and waits for that.
    fn end(&mut self, signal: Signal) -> Result<(), Failure> {
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
