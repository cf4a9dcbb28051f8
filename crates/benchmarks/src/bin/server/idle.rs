//! Ten thousand waiters while nothing happens.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use benchmarks::Table;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::{Connection, post_request};
use crate::process::Server;

const WAITERS: usize = 10_000;
const TIME: Duration = Duration::from_secs(10);

/// How long each waiter waits: the longest that a server allows. All must have connected after half of it, because the
/// first waiters leave at its end and would be missing from the measurement.
const WAIT: Duration = Duration::from_secs(50);

/// Most connections from one loopback address, far fewer than it has ports.
const FROM_ONE: usize = 2500;

pub(crate) async fn measure(leasehold: &str, store: &str, table: &mut Table) {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the connections below report it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let server = Server::leasehold(leasehold, store);
    let acquire = |wait: u64| {
        let body = format!(r#"{{"owner_id":"worker-7","ttl_ms":600000,"wait_ms":{wait}}}"#);
        post_request("/v1/locks/the-one/acquire", &body)
    };
    let mut holder = Connection::open(server.address).await;
    holder.ask(&acquire(0)).await;
    let before = server.memory();
    let began = Instant::now();
    let coming = tokio::time::timeout(WAIT / 2, async {
        let mut waiting = Vec::with_capacity(WAITERS);
        for number in 0..WAITERS {
            let from = Ipv4Addr::new(127, 0, 0, 2 + (number / FROM_ONE) as u8);
            let mut connection = Connection::open_from(SocketAddr::from((from, 0)), server.address).await;
            connection.send(&acquire(WAIT.as_millis() as u64)).await;
            waiting.push(connection);
        }
        let mut looking = Connection::open(server.address).await;
        loop {
            let seen = looking.ask(b"GET /v1/locks/the-one HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            if seen.ends_with(&format!(r#""queue_length":{WAITERS}}}"#)) {
                return waiting;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let figure = format!("10 000 idle waiters on one lock, `{store}`");
    let Ok(_waiting) = coming.await else {
        let beside = format!("not all of them had come after {} s", WAIT.as_secs() / 2);
        return table.row(&figure, false, "not measured".into(), "< 20 KB, < 5 %", beside);
    };
    let came = began.elapsed();
    let (began, used) = (Instant::now(), server.cpu_time());
    tokio::time::sleep(TIME).await;
    let share = (server.cpu_time() - used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let each = (server.memory() - before) as f64 / WAITERS as f64 / 1000.0;
    table.row(
        &figure,
        each < 20.0 && share < 5.0,
        format!("{each:.1} KB each, {share:.1} % of a core"),
        "< 20 KB, < 5 %",
        format!("all had come after {:.1} s", came.as_secs_f64()),
    );
}
