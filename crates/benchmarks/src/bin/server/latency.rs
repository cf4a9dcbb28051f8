//! How long one client waits for each verb, with the machine to itself.

use std::time::Instant;

use benchmarks::Table;
use testkit::turns::percentile;

use crate::client::{Connection, post_request};
use crate::process::Server;

const TIMES: usize = 500;

/// The time in milliseconds that a caller should be able to expect on one machine.
const VERBS: [(&str, f64); 3] = [("acquire", 10.0), ("renew", 20.0), ("release", 20.0)];

pub(crate) async fn measure(leasehold: &str, table: &mut Table) {
    let server = Server::leasehold(leasehold, "sqlite:locks.db");
    let mut connection = Connection::open(server.address).await;
    let mut took: [Vec<f64>; 3] = Default::default();
    for _ in 0..TIMES {
        let mut id = String::new();
        for ((verb, _), took) in VERBS.iter().zip(&mut took) {
            let body = match *verb {
                "acquire" => r#"{"owner_id":"worker-7","ttl_ms":30000}"#.to_owned(),
                "renew" => format!(r#"{{"lease_id":"{id}","extend_by_ms":30000}}"#),
                _ => format!(r#"{{"lease_id":"{id}"}}"#),
            };
            let request = post_request(&format!("/v1/locks/nightly/{verb}"), &body);
            let began = Instant::now();
            let answer = connection.ask(&request).await;
            took.push(began.elapsed().as_secs_f64() * 1e3);
            if *verb == "acquire" {
                let after = answer.split(r#""lease_id":""#).nth(1).expect("a lease id");
                id = after.split('"').next().unwrap_or_default().to_owned();
            }
        }
    }
    for ((verb, most), mut took) in VERBS.into_iter().zip(took) {
        let (middle, late) = (percentile(&mut took, 50.0), percentile(&mut took, 99.0));
        table.row(
            &format!("{verb}, one client, SQLite, p99"),
            late < most,
            format!("{late:.2} ms (p50 {middle:.2} ms)"),
            &format!("< {most:.0} ms"),
            format!("{TIMES} times, each on disk before its answer"),
        );
    }
}
