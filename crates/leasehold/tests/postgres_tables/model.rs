//! Guided histories on the functions in the database and on the contract: both give the same answers, views, wake-ups
//! and rows. And the functions with one rule altered, which the test must notice.
//!
//! The server uses the test's clock: its sessions look first into a schema that has its own `clock_timestamp()`.

use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use leasehold::backend::{Backend, Query};
use leasehold::backends::postgres::Postgres as Database;
use leasehold::state::{Now, Row};
use leasehold::{LeaseId, Name};
use tokio::runtime::Runtime;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::support::{in_time, name, place, server};

#[path = "../model/mod.rs"]
mod contract;

use contract::drive::{self, Kept, Store};
use contract::history::{Clocks, Verb};

/// Steps of a run, and in how many steps of each profile the test must notice a planted fault.
const STEPS: usize = 700;
const STEPS_TO_SEE: usize = 1_200;

/// The longest time that a function takes as an argument: 2^53 microseconds.
const LONGEST: Duration = Duration::from_micros(1 << 53);

/// A fault: its name, a piece of the functions, and its replacement.
type Planted = (&'static str, &'static str, &'static str);

struct Tables {
    runtime: Runtime,
    schema: String,
    store: Database,
    raw: Client,
    /// The notifications so far.
    heard: BoxStream<'static, String>,
    /// Whether it listens to the store's channel, which the first ticket reveals.
    listens: bool,
}

impl Tables {
    fn start(planted: &[Planted]) -> Self {
        let schema = place().schema;
        let clock = format!("{schema}_clock");
        let mut script = Database::script(&schema).unwrap();
        for (what, says, instead) in planted {
            let (says, instead) = (within(&schema, says), within(&schema, instead));
            assert!(script.contains(&says), "the functions no longer say what {what} alters: {says}");
            script = script.replace(&says, &instead);
        }
        server().sql(&format!(
            "CREATE SCHEMA {clock}; CREATE SEQUENCE {clock}.micros MINVALUE 0; \
             CREATE FUNCTION {clock}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
             $$ SELECT 'epoch'::timestamptz + last_value * interval '1 microsecond' FROM {clock}.micros $$; {script}"
        ));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("{}?schema={schema}&options=-csearch_path%3D{clock}%2Cpg_catalog", server().url());
        let (store, raw, heard) = runtime.block_on(async {
            let (raw, mut connection) = tokio_postgres::connect(&server().url(), NoTls).await.unwrap();
            let (say, heard) = tokio::sync::mpsc::unbounded_channel::<String>();
            tokio::spawn(async move {
                let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
                while let Some(Ok(message)) = messages.next().await {
                    if let AsyncMessage::Notification(note) = message {
                        let _ = say.send(note.payload().to_owned());
                    }
                }
            });
            let heard = stream::unfold(heard, |mut heard| async move {
                let note: String = heard.recv().await?;
                Some((note, heard))
            });
            let heard = heard.boxed();
            (Database::connect(&url).await.unwrap(), raw, heard)
        });
        let mut tables = Tables { runtime, schema, store, raw, heard, listens: false };
        tables.sql(&format!("LISTEN {}_end", tables.schema));
        tables
    }

    /// Runs SQL in which `leasehold.` stands for the test's schema; the first column of the last result.
    fn sql(&mut self, sql: &str) -> Vec<String> {
        let sql = within(&self.schema, sql);
        let rows = self.runtime.block_on(self.raw.simple_query(&sql)).unwrap();
        let text = |message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        rows.into_iter().filter_map(text).collect()
    }

    /// The wake numbers notified so far, sorted, because several in one message are in no order.
    fn numbers(&mut self) -> Vec<u64> {
        let heard = &mut self.heard;
        let mut numbers: Vec<u64> = self.runtime.block_on(async {
            let mut numbers = Vec::new();
            loop {
                let payload = in_time("a notification", heard.next()).await.unwrap();
                if payload == "end" {
                    return numbers;
                }
                numbers.extend(payload.split(' ').map(|number| number.parse::<u64>().unwrap()));
            }
        });
        numbers.sort_unstable();
        numbers
    }
}

fn within(schema: &str, sql: &str) -> String {
    sql.replace("leasehold.", &format!("\"{schema}\"."))
}

fn quoted(name: &Name) -> String {
    format!("'{}'", name.stored().replace('\'', "''"))
}

impl Store for Tables {
    const LONGEST: Duration = LONGEST;
    const CLOCKS: Clocks = Clocks::One;
    const FORGETS: bool = true;

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn backend(&self) -> &dyn Backend {
        &self.store
    }

    fn begin(&mut self) {
        self.sql("TRUNCATE leasehold.names, leasehold.shares, leasehold.tickets, leasehold.spent");
        self.runtime.block_on(self.store.sweep()).unwrap();
        self.sql(&format!("NOTIFY {}_end, 'end'", self.schema));
        self.numbers();
    }

    fn set_clock(&mut self, now: Now) {
        self.sql(&format!("SELECT setval('{}_clock.micros', {})", self.schema, now.wall));
    }

    fn before(&mut self, verb: &Verb) {
        // A sweep goes by the clock of the last answer.
        if matches!(verb, Verb::Sweep) {
            self.runtime.block_on(self.store.inspect(&Query::Name(name("nobody")))).unwrap();
        }
    }

    fn check_woken(&mut self, woken: &[(Name, LeaseId)], _: &[Kept<'_>]) -> Result<(), String> {
        if !self.listens
            && let Some(channel) = self.sql("SELECT channel FROM leasehold.tickets LIMIT 1").first()
        {
            self.sql(&format!("LISTEN \"{channel}\""));
            self.listens = true;
        }
        let ids: Vec<String> = woken.iter().map(|(_, id)| format!("'{}'", id.expose())).collect();
        let ids = if ids.is_empty() { "''".into() } else { ids.join(", ") };
        // What was notified before the end comes before it.
        let ask = format!(
            "SELECT wake FROM leasehold.tickets WHERE id IN ({ids}) ORDER BY wake; NOTIFY {}_end, 'end'",
            self.schema
        );
        let numbers: Vec<u64> = self.sql(&ask).iter().map(|number| number.parse().unwrap()).collect();
        let heard = self.numbers();
        if numbers.len() != woken.len() {
            return Err(format!("{woken:?} are to be woken, and {} of them have a place", numbers.len()));
        }
        if heard == numbers {
            Ok(())
        } else {
            Err(format!("{heard:?} were woken, and {numbers:?} were to be"))
        }
    }

    fn check_rows(&mut self, names: &[Kept<'_>]) -> Result<(), String> {
        let mut expected = Vec::new();
        for (name, spec) in names {
            let (stored, mut order) = (name.stored(), 0);
            for (id, row) in spec.rows() {
                let own = format!("{stored}|{}", id.expose());
                expected.push(match row {
                    Row::Lease(l) => format!(
                        "lease|{own}|{}|{}|{}|{}|{}|{}|{}|{}|{}",
                        l.mode,
                        l.fence.get(),
                        l.ttl,
                        l.expires,
                        l.acquired_wall,
                        l.renewals,
                        l.nonce.cast_signed(),
                        l.repeated,
                        l.revoked
                    ),
                    Row::Ticket(t) => {
                        order += 1;
                        format!(
                            "ticket|{own}|{order}|{}|{}|{}|{}|{}|{}|{}",
                            t.mode,
                            t.ttl,
                            t.lapses,
                            t.joined,
                            t.nonce.cast_signed(),
                            t.repeated,
                            t.woken
                        )
                    }
                    Row::Spent(s) => format!("spent|{own}|{}|{}", s.until, s.why.as_str()),
                    other => return Err(format!("{other:?}")),
                });
            }
            if spec.version > 0 || !spec.leases.is_empty() || !spec.tickets.is_empty() {
                let (holders, waiters) = (spec.leases.len(), spec.tickets.len());
                expected
                    .push(format!("name|{stored}|{}|{}|{holders}|{waiters}", spec.last_fence, spec.version));
            }
        }
        let us = |column: &str| format!("(extract(epoch FROM {column}) * 1000000)::bigint");
        let mode = "CASE WHEN permits IS NULL THEN mode ELSE 'permit of ' || permits END";
        let flags = |a: &str, b: &str| format!("{a}::text, {b}::text");
        let in_names: Vec<String> = names.iter().map(|(name, _)| quoted(name)).collect();
        let names = in_names.join(", ");
        let mut rows = self.sql(&format!(
            "SELECT concat_ws('|', 'lease', name, id, {mode}, fence, ttl, {}, {}, renewals, nonce, {}) \
                FROM leasehold.leases WHERE name IN ({names}) \
             UNION ALL SELECT concat_ws('|', 'ticket', name, id, row_number() OVER (PARTITION BY name ORDER BY arrival), \
                {mode}, ttl, {}, {}, nonce, {}) FROM leasehold.tickets WHERE name IN ({names}) \
             UNION ALL SELECT concat_ws('|', 'spent', name, id, {}, why) FROM leasehold.spent WHERE name IN ({names}) \
             UNION ALL SELECT concat_ws('|', 'name', name, fence, version, holders, waiters) FROM leasehold.names \
                WHERE name IN ({names}) AND (version > 0 OR holders > 0 OR waiters > 0)",
            us("expires"),
            us("granted_at"),
            flags("repeated", "revoked"),
            us("lapses"),
            us("joined"),
            flags("repeated", "woken"),
            us("until"),
        ));
        rows.sort();
        expected.sort();
        if rows == expected { Ok(()) } else { Err(format!("stored:   {rows:#?}\ncontract: {expected:#?}")) }
    }
}

#[test]
fn the_functions_answer_and_keep_as_the_contract_says() {
    drive::agrees(&mut Tables::start(&[]), STEPS);
}

/// The rules of the contract, each altered in the functions.
const FAULTS: &[Planted] = &[
    (
        "expiry is late",
        "IF n.next_expiry <= o_now OR n.next_lapse <= o_now OR n.next_forget <= o_now THEN",
        "IF n.next_expiry < o_now OR n.next_lapse < o_now OR n.next_forget < o_now THEN",
    ),
    (
        "a try overtakes the queue",
        "(t.id IS NULL AND (p_queue IS NULL OR n.waiters >= 128))",
        "(t.id IS NULL AND n.waiters >= 128)",
    ),
    (
        "a repeat re-arms",
        "a.expires := l.expires;\n                EXIT act;",
        "a.expires := o_now + l.ttl * interval '1 microsecond';\n                EXIT act;",
    ),
    ("release ignores the nonce", "IF n.nonce <> p_nonce THEN", "IF false THEN"),
    (
        "the fence stays",
        "a.fence := greatest(n.fence + 1, leasehold.",
        "a.fence := greatest(n.fence, leasehold.",
    ),
    (
        "a reader passes a waiting writer",
        "EXIT WHEN NOT enters OR s.arrival = t.arrival;",
        "IF NOT enters AND s.arrival IS DISTINCT FROM t.arrival THEN enters := NULL; CONTINUE; END IF; \
         EXIT WHEN s.arrival = t.arrival;",
    ),
    (
        "spent ids are forgotten",
        "PERFORM 1 FROM leasehold.spent WHERE name = p_name AND id = p_id;\n            IF FOUND THEN",
        "IF false THEN",
    ),
    ("spent for a minute only", "greatest(p_ttl, 60000000)", "60000000"),
    ("shorten ignores the count", "IF p_shorten IS NULL OR p_shorten = l.renewals THEN", "IF true THEN"),
    ("wakes twice", "IF NOT t.woken THEN", "IF true THEN"),
    ("notifies nobody", "count(pg_notify(channel, numbers))", "count(numbers)"),
    (
        "wakes only the first",
        "LIMIT 128\n    LOOP\n        EXIT WHEN NOT CASE",
        "LIMIT 1\n    LOOP\n        EXIT WHEN NOT CASE",
    ),
    (
        "wakes 129",
        "LIMIT 128\n    LOOP\n        EXIT WHEN NOT CASE",
        "LIMIT 129\n    LOOP\n        EXIT WHEN NOT CASE",
    ),
    ("lets 129 in", "LIMIT 128\n            LOOP", "LIMIT 129\n            LOOP"),
    ("one permit too many", "ELSE inside < p_permits END", "ELSE inside <= p_permits END"),
    (
        "a refresh loses the place",
        "lapses = a.next_lapse, nonce",
        "arrival = arrival + 1000000, lapses = a.next_lapse, nonce",
    ),
    ("a revoked lease is renewed", "IF l.revoked THEN", "IF false THEN"),
    ("a raised fence is forgotten", "n.fence := greatest(n.fence, p_raise);", ""),
    (
        "fences rise without bound",
        "IF p_raise > least(greatest(n.fence + 1, leasehold.clock_fence(p_now) + 22118400000), 900000000000000) THEN",
        "IF p_raise > 900000000000000 THEN",
    ),
    ("revoke meets anybody", "n.holders > 0 AND (p_fence IS NULL OR fence = p_fence)", "n.holders > 0"),
    (
        "a clock set back prolongs",
        "THEN least(greatest(l.expires, p_now + p_ttl * interval '1 microsecond'),\n                    p_now + l.ttl * interval '1 microsecond')",
        "THEN greatest(l.expires, p_now + p_ttl * interval '1 microsecond')",
    ),
];

#[test]
fn functions_with_one_wrong_rule_are_seen() {
    for fault in drive::some_of(FAULTS) {
        let mut tables = Tables::start(std::slice::from_ref(fault));
        let seen = drive::first_failure(&mut tables, STEPS_TO_SEE);
        let seen = seen.unwrap_or_else(|| panic!("{} was not seen", fault.0));
        println!("{}: step {}: {}", fault.0, seen.step, seen.what.lines().next().unwrap_or_default());
    }
}
