//! The figures of the lock server, beside a bare handler and the bare disk: `make bench-server`.
//!
//! The servers are processes of their own: the built `leasehold`, whose path is the argument, and this program in
//! another role. Both are asked by the same clients, over connections that stay open.

mod bare;
mod client;
mod disk;
mod idle;
mod latency;
mod process;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use benchmarks::{Contender, Contention, Table, contended, median, uncontended};
use tokio::sync::Mutex;

use client::{Client, Connection};
use disk::Disk;
use process::Server;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1000);
const CONTENDED: Duration = Duration::from_secs(4);
const CONNECTIONS: usize = 64;
const CLIENTS: usize = 16;

fn main() {
    let runtime = |threads: &mut tokio::runtime::Builder| threads.enable_all().build().expect("a runtime");
    let argument = std::env::args().nth(1).expect("the path of the built `leasehold` is the argument");
    if argument == bare::ROLE {
        return runtime(&mut tokio::runtime::Builder::new_multi_thread()).block_on(bare::serve());
    }
    // One thread for all clients, so that most of the machine is the servers'.
    runtime(&mut tokio::runtime::Builder::new_current_thread()).block_on(measure(&argument));
}

async fn measure(leasehold: &str) {
    let mut table = Table::begin();
    uncontended_rates(leasehold, &mut table).await;
    latency::measure(leasehold, &mut table).await;
    let sync = Disk::new().sync_time();
    hand_overs(leasehold, sync, &mut table).await;
    for store in ["memory:", "sqlite:locks.db"] {
        idle::measure(leasehold, store, &mut table).await;
    }
    trace::count(leasehold, &mut table).await;
    table.end();
}

async fn uncontended_rates(leasehold: &str, table: &mut Table) {
    let disk = Disk::new();
    let servers = [
        Server::bare(),
        Server::leasehold(leasehold, "memory:"),
        Server::leasehold(leasehold, "sqlite:locks.db"),
    ];
    let clients: Vec<Arc<dyn Contender>> =
        servers.iter().map(|server| Arc::new(Client::of(server)) as Arc<dyn Contender>).collect();
    let mut rounds: Vec<[f64; 9]> = Vec::new();
    for _ in 0..ROUNDS {
        let (mut rates, mut costs) = ([0.0; 3], [0.0; 3]);
        for (which, server) in servers.iter().enumerate() {
            let before = server.cpu_time();
            // An acquire and a release, or two calls of the bare handler.
            rates[which] = 2.0 * uncontended(&clients[which], CONNECTIONS, ROUND).await;
            costs[which] =
                (server.cpu_time() - before).as_secs_f64() / ROUND.as_secs_f64() / rates[which] * 1e6;
        }
        let syncs = disk.syncs_a_second();
        let [bare, memory, sqlite] = rates;
        rounds.push([
            bare,
            memory,
            sqlite,
            memory / bare,
            sqlite / bare,
            syncs,
            costs[0],
            costs[1],
            costs[2],
        ]);
    }
    let of = |column: usize| median(&mut rounds.iter().map(|round| round[column]).collect::<Vec<_>>());
    table.row(
        "acquire + release, 64 connections, `memory:`",
        of(3) >= 0.7,
        format!("{:.0} requests/s, {:.2} of the bare handler", of(1), of(3)),
        "≥ 0.7",
        format!(
            "bare {:.0}/s; a request costs the server {:.1} µs of a core, the bare one {:.1} µs",
            of(0),
            of(7),
            of(6)
        ),
    );
    // The lower one decides: a slow disk, or a handler that is as fast as the machine.
    let by_disk = 0.7 * CONNECTIONS as f64 * of(5);
    table.row(
        "acquire + release, 64 connections, SQLite",
        of(4) >= 0.35 || of(2) >= by_disk,
        format!("{:.0} requests/s, {:.2} of the bare handler", of(2), of(4)),
        "≥ 0.35, or 0.7 of 64 × fdatasyncs/s",
        format!(
            "{:.0} fdatasyncs/s (0.7 of 64 × that: {by_disk:.0}/s); a request costs {:.1} µs of a core",
            of(5),
            of(8)
        ),
    );
}

async fn hand_overs(leasehold: &str, sync: f64, table: &mut Table) {
    let bare = Server::bare();
    for (store, syncs) in [("memory:", 0.0), ("sqlite:locks.db", 2.0)] {
        let server = Server::leasehold(leasehold, store);
        let seen = hand_over(&server, &bare).await;
        let (most, what) =
            (3.0 * seen.probe + syncs * sync, if syncs > 0.0 { "3, and 2 fdatasyncs" } else { "3" });
        table.row(
            &format!("release call to the next holder's return, 16 clients, `{store}`, median"),
            seen.hand_over <= most,
            format!("{:.3} ms, {:.1} round trips", seen.hand_over, seen.hand_over / seen.probe),
            &format!("≤ {what}"),
            format!(
                "a bare round trip under the same load {:.3} ms, an fdatasync {sync:.3} ms; {:.0} hand-overs/s, \
                 longest wait to median {:.1}×",
                seen.probe,
                seen.hand_overs,
                seen.wait_max / seen.wait_p50
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
