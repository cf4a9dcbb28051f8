//! Guided histories on the scripts and on the contract: both give the same answers, views, wake-ups and rows. And the
//! scripts with one rule altered, which the test must notice.
//!
//! The scripts are edited on their way to the server (`rewriting.rs`): they read the test's clock.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use leasehold::backend::Backend;
use leasehold::backends::redis::Redis;
use leasehold::state::Now;
use leasehold::{LeaseId, Name};
use redis::aio::MultiplexedConnection;
use testkit::redis::Server;
use testkit::until::{PATIENCE, in_time};
use tokio::runtime::Runtime;

use crate::kept::{Packed, same_rows};
use crate::rewriting;
use crate::support::own_connection;

#[path = "../model/mod.rs"]
mod contract;

use contract::drive::{self, Kept, Store};
use contract::history::Clocks;

/// Steps of a run, and in how many steps of each profile the test must notice a planted fault.
const STEPS: usize = 1_500;
const STEPS_TO_SEE: usize = 1_200;

/// The longest time that a script takes as an argument.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A fault: its name, a piece of the scripts, and its replacement.
type Planted = (&'static str, &'static str, &'static str);

struct Place {
    runtime: Runtime,
    _server: Server,
    store: Redis,
    raw: MultiplexedConnection,
    /// Hears all wake-ups.
    heard: redis::aio::PubSub,
}

impl Place {
    fn start(planted: Option<&'static Planted>) -> Self {
        let server = Server::start();
        let port = rewriting::start(server.port(), move |script| edited(script, planted));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (store, raw, heard) = runtime.block_on(async {
            let client = redis::Client::open(server.url()).unwrap();
            let raw = own_connection(&server.url()).await;
            let mut heard = client.get_async_pubsub().await.unwrap();
            heard.psubscribe("leasehold-wake:*").await.unwrap();
            let url = format!("redis://127.0.0.1:{port}");
            let patient = Redis::builder(&url).unwrap().response_timeout(PATIENCE);
            (patient.connect().await.unwrap(), raw, heard)
        });
        Place { runtime, _server: server, store, raw, heard }
    }
}

/// The script with the test's clock, with id keys that the server's clock does not expire, and with a planted fault.
fn edited(script: &str, planted: Option<&Planted>) -> String {
    let clock = "{ call('GET', 'clock'), call('GET', 'clock:micros') }";
    let mut script = script.replace("call('TIME')", clock).replace("_millis)", "_millis + 1000000000)");
    if let Some((_, says, instead)) = planted {
        script = script.replace(says, instead);
    }
    script
}

/// The key of a name's head, as described in `docs/redis.md`.
fn key(name: &Name) -> String {
    format!("leasehold:{{{}}}", name.stored().replace('%', "%25").replace('}', "%7D"))
}

impl Store for Place {
    const LONGEST: Duration = LONGEST;
    const CLOCKS: Clocks = Clocks::One;
    const FORGETS: bool = false;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn backend(&self) -> &dyn Backend {
        &self.store
    }

    fn begin(&mut self) {
        self.runtime.block_on(async {
            let _: () = redis::cmd("FLUSHALL").query_async(&mut self.raw).await.unwrap();
            let _: () = redis::cmd("MSET")
                .arg(&["clock", "1", "clock:micros", "0"])
                .query_async(&mut self.raw)
                .await
                .unwrap();
            // What the last history left unreported.
            self.store.sweep().await.unwrap();
        });
        self.numbers();
    }

    fn set_clock(&mut self, now: Now) {
        let mut set = redis::cmd("MSET");
        set.arg("clock").arg(now.wall / 1_000_000).arg("clock:micros").arg(now.wall % 1_000_000);
        let _: () = self.runtime.block_on(set.query_async(&mut self.raw)).unwrap();
    }

    /// In the order of each queue, and each once. A sweep goes through the names in any order.
    fn check_woken(&mut self, woken: &[(Name, LeaseId)], _: &[Kept<'_>]) -> Result<(), String> {
        let mut queues = HashMap::<&Name, Vec<String>>::new();
        for (name, id) in woken {
            let mut ask = redis::cmd("HGET");
            ask.arg(format!("{}:rows", key(name))).arg(id.expose());
            let row: Vec<u8> = self.runtime.block_on(ask.query_async(&mut self.raw)).unwrap();
            if row.first() != Some(&b'T') {
                return Err(format!("{id:?} is to be woken and has no place"));
            }
            queues.entry(name).or_default().push(Packed(&row).ticket().1);
        }
        let heard = self.numbers();
        let in_order = |queue: &Vec<String>| heard.iter().filter(|one| queue.contains(one)).eq(queue);
        if heard.len() == woken.len() && queues.values().all(in_order) {
            Ok(())
        } else {
            Err(format!("{heard:?} were woken, and {queues:?} were to be"))
        }
    }

    fn check_rows(&mut self, names: &[Kept<'_>]) -> Result<(), String> {
        let raw = &self.raw;
        let same =
            names.iter().map(async |(name, spec)| same_rows(&mut raw.clone(), &key(name), spec.rows()).await);
        let same = self.runtime.block_on(join_all(same));
        same.into_iter().try_for_each(|same| same.map_err(|error| error.to_string()))
    }
}

impl Place {
    /// The wake numbers published since the last call.
    fn numbers(&mut self) -> Vec<String> {
        let Place { runtime, raw, heard, .. } = self;
        runtime.block_on(async {
            // What was published before this comes before it.
            let mut end = redis::cmd("PUBLISH");
            let _: () = end.arg("leasehold-wake:end").arg("end").query_async(raw).await.unwrap();
            let mut messages = heard.on_message();
            let mut numbers = Vec::new();
            loop {
                let message = in_time("a message", messages.next()).await;
                let number: String = message.unwrap().get_payload().unwrap();
                if number == "end" {
                    return numbers;
                }
                numbers.push(number);
            }
        })
    }
}

#[test]
fn redis_answers_and_keeps_as_the_contract_says() {
    drive::agrees(&mut Place::start(None), STEPS);
}

/// The rules of the contract, each altered in the scripts.
const FAULTS: &[Planted] = &[
    ("expiry is late", "if due <= now then", "if due < now then"),
    (
        "a try overtakes the queue",
        "if waiting == 0 or place == 0 then",
        "if waiting == 0 or place == 0 or not t and not patience then",
    ),
    (
        "a repeat re-arms",
        "answer = { 1, l.fence, l.mode, l.expires - now, l.renewals, l.since, now }\n    break",
        "answer = { 1, l.fence, l.mode, l.ttl, l.renewals, l.since, now }\n    break",
    ),
    ("release ignores the nonce", "if nonce ~= '' and nonce ~= over.nonce then", "if false then"),
    ("the fence stays", "local granted = math.max(fence + 1, ", "local granted = math.max(fence, "),
    (
        "a reader passes a waiting writer",
        "if not admits(t.mode, exclusive, count) then return exclusive, count, false, ids_in, tickets_in end",
        "if not admits(t.mode, exclusive, count) then return exclusive, count, true, ids_in, tickets_in end",
    ),
    (
        "spent ids are forgotten",
        "if why then\n    answer = { 3, now }",
        "if false then\n    answer = { 3, now }",
    ),
    ("spent for a minute only", "math.max(one[2], SPENT_FOR)", "SPENT_FOR"),
    ("shorten ignores the count", "if shorten == '' or shorten + 0 == l.renewals then", "if true then"),
    ("wakes twice", "if not t.woken then", "if true then"),
    ("wakes nobody", "call('PUBLISH', t.channel, t.number)", ""),
    ("wakes nobody the short way", "call('PUBLISH', channel, number)", ""),
    ("wakes only the first", "walk(math.min(waiting, WAKE_LIMIT),", "walk(math.min(waiting, 1),"),
    ("wakes 129", "local WAKE_LIMIT = 128", "local WAKE_LIMIT = 129"),
    ("lets 129 in", "local WALK_LIMIT = 128", "local WALK_LIMIT = 129"),
    (
        "one permit too many",
        "return count < tonumber(string.sub(mode, 2))",
        "return count <= tonumber(string.sub(mode, 2))",
    ),
    (
        "a refresh loses the place",
        "    if not t then\n      kind = own_kind",
        "    if t then\n      arrivals = arrivals + 1\n      call('ZADD', queue, arrivals, id)\n    end\n    if not t then\n      kind = own_kind",
    ),
    ("a revoked lease is renewed", "if l.revoked then", "if false then"),
    ("a raised fence is forgotten", "fence = math.max(fence, raised)", "fence = fence"),
    (
        "fences rise without bound",
        "if raised and raised > math.min(math.max(fence + 1, tomorrow), MAX_FENCE) then",
        "if raised and raised > MAX_FENCE then",
    ),
    ("revoke meets anybody", "if not only or l.fence == only then", "if true then"),
    (
        "asking by id is cut too",
        "if not seen[asked] and tonumber(call('ZSCORE', leases",
        "if tonumber(call('ZSCORE', ''",
    ),
    (
        "only the shown are counted",
        "count = call('ZCOUNT', leases, after_now, '+inf')",
        "count = math.min(SHOWN, call('ZCOUNT', leases, after_now, '+inf'))",
    ),
    (
        "a clock set back prolongs",
        "math.min(math.max(asked, l.expires), now + l.ttl)",
        "math.max(asked, l.expires)",
    ),
];

#[test]
fn scripts_with_one_wrong_rule_are_seen() {
    for fault in drive::some_of(FAULTS) {
        let mut place = Place::start(Some(fault));
        let seen = drive::first_failure(&mut place, STEPS_TO_SEE);
        let seen = seen.unwrap_or_else(|| panic!("{} was not seen", fault.0));
        println!("{}: step {}: {}", fault.0, seen.step, seen.what.lines().next().unwrap_or_default());
    }
}
