//! Benchmarks of the lock server, beside a bare handler and the bare disk: `make bench-server`.
//!
//! The servers are separate processes: the built `leasehold`, whose path is the argument, and this program in another
//! role. The same clients call both, over connections that stay open.

mod bare;
mod client;
mod disk;
mod idle;
mod latency;
mod process;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use benchmarks::{Contender, Contention, Table, column, contended, of_rounds, ratio, uncontended};
use testkit::turns::{Spread, in_turns_async};
use tokio::sync::Mutex;

use client::{Client, Connection};
use disk::Disk;
use process::Server;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1000);
const CONTENDED: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 64;
const CLIENTS: usize = 16;

fn main() {
    let runtime = |threads: &mut tokio::runtime::Builder| threads.enable_all().build().expect("a runtime");
    let argument = std::env::args().nth(1).expect("the path of the built `leasehold` is the argument");
    if argument == bare::ROLE {
        return runtime(&mut tokio::runtime::Builder::new_multi_thread()).block_on(bare::serve());
    }
    // One thread for all clients, so that the servers get most of the machine.
    runtime(&mut tokio::runtime::Builder::new_current_thread()).block_on(measure(&argument));
}

async fn measure(leasehold: &str) {
    let mut table = Table::begin();
    uncontended_rates(leasehold, &mut table).await;
    latency::measure(leasehold, &mut table).await;
    hand_overs(leasehold, &mut table).await;
    for store in ["memory:", "sqlite:locks.db"] {
        idle::measure(leasehold, store, &mut table).await;
    }
    trace::count(leasehold, &mut table).await;
    table.end();
}

/// What is measured in turns.
const BARE: usize = 0;
const MEMORY: usize = 1;
const SQLITE: usize = 2;
const DISK: usize = 3;

async fn uncontended_rates(leasehold: &str, table: &mut Table) {
    let disk = Disk::new();
    let servers = [
        Server::bare(),
        Server::leasehold(leasehold, "memory:"),
        Server::leasehold(leasehold, "sqlite:locks.db"),
    ];
    let clients: Vec<Arc<dyn Contender>> =
        servers.iter().map(|server| Arc::new(Client::of(server)) as Arc<dyn Contender>).collect();
    // Requests a second, and the microseconds of a core that one costs the server; or the number of disk syncs a
    // second.
    let rounds: Vec<[(f64, f64); 4]> = in_turns_async(ROUNDS, async |which: usize| {
        if which == DISK {
            return (disk.syncs_a_second(), 0.0);
        }
        let before = servers[which].cpu_time();
        // An acquire and a release, or two calls of the bare handler.
        let rate = 2.0 * uncontended(&clients[which], CONNECTIONS, ROUND).await;
        let used = (servers[which].cpu_time() - before).as_secs_f64();
        (rate, used / ROUND.as_secs_f64() / rate * 1e6)
    })
    .await;
    let rates: Vec<_> = rounds.iter().map(|round| round.map(|(rate, _)| rate)).collect();
    let costs: Vec<_> = rounds.iter().map(|round| round.map(|(_, cost)| cost)).collect();
    let (memory, sqlite) = (ratio(&rates, MEMORY, BARE), ratio(&rates, SQLITE, BARE));
    table.row(
        "acquire + release, 64 connections, `memory:`",
        memory.median >= 0.7,
        format!("{:.0} requests/s, {memory:.2} of the bare handler", column(&rates, MEMORY).median),
        "≥ 0.7",
        format!(
            "bare {:.0}/s; a request costs the server {:.1} µs of a core, the bare one {:.1} µs",
            column(&rates, BARE).median,
            column(&costs, MEMORY).median,
            column(&costs, BARE).median
        ),
    );
    // The lower limit decides: a slow disk, or a handler as fast as the machine.
    let by_disk = 0.7 * CONNECTIONS as f64 * column(&rates, DISK).median;
    table.row(
        "acquire + release, 64 connections, SQLite",
        sqlite.median >= 0.35 || column(&rates, SQLITE).median >= by_disk,
        format!("{:.0} requests/s, {sqlite:.2} of the bare handler", column(&rates, SQLITE).median),
        "≥ 0.35, or 0.7 of 64 × fdatasyncs/s",
        format!(
            "{:.0} fdatasyncs/s (0.7 of 64 × that: {by_disk:.0}/s); a request costs {:.1} µs of a core",
            column(&rates, DISK).median,
            column(&costs, SQLITE).median
        ),
    );
}

async fn hand_overs(leasehold: &str, table: &mut Table) {
    let (bare, disk) = (Server::bare(), Disk::new());
    let servers = ["memory:", "sqlite:locks.db"].map(|store| Server::leasehold(leasehold, store));
    let rounds: Vec<[(Contention, f64); 2]> = in_turns_async(ROUNDS, async |which: usize| {
        (hand_over(&servers[which], &bare).await, disk.sync_time())
    })
    .await;
    for (which, store) in ["`memory:`", "SQLite"].into_iter().enumerate() {
        let seen: Vec<_> = rounds.iter().map(|round| round[which].0).collect();
        let sync = Spread::of(rounds.iter().map(|round| round[which].1)).median;
        let middle = |figure: fn(&Contention) -> f64| of_rounds(&seen, figure).median;
        let trips = of_rounds(&seen, |seen| seen.hand_over / seen.probe);
        let (syncs, goal) = if which == 0 { (0.0, "≤ 3") } else { (2.0, "≤ 3, and 2 fdatasyncs") };
        table.row(
            &format!("release call to the next holder's return, 16 clients, {store}, median"),
            middle(|seen| seen.hand_over) <= 3.0 * middle(|seen| seen.probe) + syncs * sync,
            format!("{:.3} ms, {trips:.1} round trips", middle(|seen| seen.hand_over)),
            goal,
            format!(
                "a bare round trip under the same load {:.3} ms, an fdatasync {sync:.3} ms; {:.0} hand-overs/s, \
                 longest wait to median {:.1}",
                middle(|seen| seen.probe),
                middle(|seen| seen.hand_overs),
                middle(|seen| seen.wait_max / seen.wait_p50)
            ),
        );
    }
}

async fn hand_over(server: &Server, bare: &Server) -> Contention {
    let client: Arc<dyn Contender> = Arc::new(Client::of(server));
    let probe = Arc::new(Mutex::new(Connection::open(bare.address).await));
    let request: Arc<[u8]> = bare::request("probe").into();
    contended(&client, CLIENTS, CONTENDED, move || {
        let (probe, request) = (Arc::clone(&probe), Arc::clone(&request));
        async move {
            probe.lock().await.ask(&request).await;
        }
    })
    .await
}
