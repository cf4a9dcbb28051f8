//! A server in a separate process, and the resources it uses.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{bare, disk};

pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) bare: bool,
    _directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn bare() -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = killed_with_us();
        command.arg(program).arg(bare::ROLE);
        Server::start(command, true)
    }

    /// Starts it as users do, without its operations log.
    pub(crate) fn leasehold(program: &str, store: &str) -> Self {
        let program = std::fs::canonicalize(program).expect("the built `leasehold`");
        let mut command = killed_with_us();
        command
            .arg(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--store", store])
            .stderr(Stdio::null());
        Server::start(command, false)
    }

    fn start(mut command: Command, bare: bool) -> Self {
        let directory = disk::directory();
        let mut process =
            command.current_dir(directory.path()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let lines = BufReader::new(process.stdout.take().expect("stdout is a pipe")).lines();
        let mut addresses = lines.map_while(Result::ok).filter_map(|line| {
            let said = line.strip_prefix("export LEASEHOLD_URL=").unwrap_or(&line);
            said.strip_prefix("http://")?.parse().ok()
        });
        let address = addresses.next().expect("it says where it listens");
        Server { process, address, bare, _directory: directory }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its processor time on all cores together.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("it runs");
        // After the name, which ends with a bracket: user and system time are fields 12 and 13.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).expect("its fields");
        let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// Its private memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }
}

/// The start of a command line whose process dies with this one.
fn killed_with_us() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
