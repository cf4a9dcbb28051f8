//! The statements of a store, built once: for each space of keys and each mode, with fences or without.

use crate::backend::Mode;
use crate::backends::queries;

use super::super::quoted;
use super::key::AdvisoryKey;
use crate::bugs::{self, Bug};

/// The fence tables: the durable one and the fast one.
pub(super) const TABLES: [&str; 2] = ["advisory_fences", "advisory_fences_live"];

/// How long a statement on our session may take, unless it waits in the queue: less than a request has by default.
pub(super) const STATEMENT_TIMEOUT: &str = "4500ms";

/// How far ahead of the clock fences are reserved, 256 000 of them a second: of one key's commits, one in this many
/// seconds waits for the disk. After a crash, fences are ahead of the clock by as much.
const AHEAD: u64 = 10 * 256_000;

/// The questions that a session asks again and again, as prepared statements.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask {
    /// A row with the fence (or, without fences, whether it was granted) and the server process; with fences and not
    /// granted: no row.
    Attempt(Mode),
    /// Whether the session had it.
    Unlock(Mode),
    /// The row of an attempt, after a wait that was granted; otherwise no row, or one that says no.
    Waited,
    /// Takes the key as shared too, which the server grants at once to a session that has it exclusively.
    Downgrade,
}

/// All statements of a store.
#[derive(Debug)]
pub(super) struct Sql {
    /// The prepared statements, by [`slot`](Sql::slot).
    prepared: Vec<String>,
    /// The schema, quoted.
    pub(super) schema: String,
    pub(super) fenced: bool,
}

impl Sql {
    pub(super) fn new(schema: &str, fenced: bool) -> Self {
        let schema = quoted(schema);
        let pair = "(($1::bigint << 32) | ($2::bigint & 4294967295))";
        let (bigint, pair) =
            (prepared(1, "$1", "$1", &schema, fenced), prepared(2, "$1, $2", pair, &schema, fenced));
        let prepared = bigint.into_iter().chain(pair).collect();
        Sql { prepared, schema, fenced }
    }

    /// How many prepared statements a session can have.
    pub(super) const PREPARED: usize = 12;

    /// The index of a prepared statement.
    pub(super) fn slot(key: AdvisoryKey, ask: Ask) -> usize {
        let shared = |mode| usize::from(is_shared(mode));
        let first = match key {
            AdvisoryKey::Bigint(_) => 0,
            AdvisoryKey::Pair(..) => Sql::PREPARED / 2,
        };
        first
            + match ask {
                Ask::Attempt(mode) => shared(mode),
                Ask::Unlock(mode) => 2 + shared(mode),
                Ask::Downgrade => 4,
                Ask::Waited => 5,
            }
    }

    /// The text of a prepared statement.
    pub(super) fn text(&self, key: AdvisoryKey, ask: Ask) -> &str {
        &self.prepared[Sql::slot(key, ask)]
    }

    /// Waits in the server's queue. The wait lifts the session's statement limit and sets it again afterwards.
    pub(super) fn wait(&self, key: AdvisoryKey, mode: Mode) -> String {
        let shared = if is_shared(mode) { "_shared" } else { "" };
        let parameters = match key {
            AdvisoryKey::Bigint(key) => format!("'{key}'::bigint"),
            AdvisoryKey::Pair(high, low) => format!("'{high}'::int, '{low}'::int"),
        };
        let call = |function: &str| format!("{function}{shared}({parameters})");
        body(include_str!("wait.sql"))
            .replace("%LOCK%", &call("pg_advisory_lock"))
            .replace("%TRY%", &call("pg_try_advisory_lock"))
            .replace("%UNLOCK%", &call("pg_advisory_unlock"))
            .replace("%HELD%", &held(key))
            .replace("%TIMEOUT%", STATEMENT_TIMEOUT)
    }
}

/// Whether the server's lock for a mode is a shared one.
fn is_shared(mode: Mode) -> bool {
    mode == Mode::Shared || bugs::on(Bug::AdvisoryLocksShared)
}

/// The statements for one space of keys, in the order of their slots. `key`: its parameters as one number.
fn prepared(
    space: i16,
    parameters: &str,
    key: &str,
    schema: &str,
    fenced: bool,
) -> [String; Sql::PREPARED / 2] {
    let call = |function: &str| format!("{function}({parameters})");
    let select = |function: &str| format!("SELECT {}", call(function));
    let granted = |lock: &str| match fenced {
        true => const { query("fenced") }
            .replace("%LOCK%", lock)
            .replace("%SPACE%", &space.to_string())
            .replace("%KEY%", key)
            .replace("%CLOCK%", const { query("clock") })
            .replace("%AHEAD%", &AHEAD.to_string())
            .replace("%SCHEMA%", schema),
        false => format!("SELECT {lock}, pg_backend_pid()"),
    };
    [
        granted(&call("pg_try_advisory_lock")),
        granted(&call("pg_try_advisory_lock_shared")),
        select("pg_advisory_unlock"),
        select("pg_advisory_unlock_shared"),
        select("pg_advisory_lock_shared"),
        granted("coalesce(current_setting('leasehold.granted', true) = 'yes', false)"),
    ]
}

/// The query that looks for a lock of this session.
pub(super) fn held(key: AdvisoryKey) -> String {
    let packed = key.packed();
    const { query("held") }
        .replace("%HIGH%", &((packed >> 32) as u32).to_string())
        .replace("%LOW%", &(packed as u32).to_string())
        .replace("%SPACE%", &key.space().to_string())
}

/// The statement of this name in `queries.sql`.
pub(super) const fn query(name: &str) -> &'static str {
    queries::named(include_str!("queries.sql"), name)
}

/// A script without its comments, which the server does not need.
pub(super) fn body(sql: &str) -> String {
    sql.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}
