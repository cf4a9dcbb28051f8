//! A lock server with a proxy before it, for the tests of the SDKs: it reads commands from standard input, and answers
//! each with a line. `docs/sdk-protocol.md` has the commands.
//!
//! `LEASEHOLD_BIN` names the server's program. Everything ends with this program's input.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;

use leasehold_testbed::bench::Bench;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fault-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let missing = "set LEASEHOLD_BIN to the server's program: cargo build, then target/debug/leasehold";
    let program = std::env::var_os("LEASEHOLD_BIN").ok_or_else(|| io::Error::other(missing))?;
    let mut bench = Bench::start(program)?;
    let mut out = io::stdout();
    let (server, proxy) = (bench.server(), bench.proxy());
    writeln!(out, r#"{{"server": "http://{server}", "proxy": "http://{proxy}"}}"#)?;
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
    Ok(())
}
