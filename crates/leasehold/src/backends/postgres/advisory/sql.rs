//! The statements, made once for a store: for each space of keys, each mode, with fences or without.

use tokio_postgres::types::Type;

use crate::backend::Mode;

use super::key::AdvisoryKey;

/// The statements of one space of keys.
#[derive(Debug)]
struct Space {
    types: &'static [Type],
    /// Each for Exclusive, then for Shared.
    attempt: [String; 2],
    wait: [String; 2],
    unlock: [String; 2],
    downgrade: String,
}

/// All statements of a store.
#[derive(Debug)]
pub(super) struct Sql {
    bigint: Space,
    pair: Space,
    /// The schema, quoted.
    pub(super) schema: String,
    pub(super) fenced: bool,
}

impl Sql {
    pub(super) fn new(schema: &str, fenced: bool) -> Self {
        let schema = quoted(schema);
        Sql {
            bigint: Space::new(1, "$1", "$1", &[Type::INT8], &schema, fenced),
            pair: Space::new(
                2,
                "$1, $2",
                "(($1::bigint << 32) | ($2::bigint & 4294967295))",
                &[Type::INT4, Type::INT4],
                &schema,
                fenced,
            ),
            schema,
            fenced,
        }
    }

    fn space(&self, key: AdvisoryKey) -> &Space {
        match key {
            AdvisoryKey::Bigint(_) => &self.bigint,
            AdvisoryKey::Pair(..) => &self.pair,
        }
    }

    /// The types of a key's parameters.
    pub(super) fn types(&self, key: AdvisoryKey) -> &'static [Type] {
        self.space(key).types
    }

    /// A row with the fence (or whether it was granted, without fences) and the session's process; fenced and
    /// not granted: no row.
    pub(super) fn attempt(&self, key: AdvisoryKey, mode: Mode) -> &str {
        &self.space(key).attempt[index(mode)]
    }

    /// The same row, when it is granted.
    pub(super) fn wait(&self, key: AdvisoryKey, mode: Mode) -> &str {
        &self.space(key).wait[index(mode)]
    }

    /// Whether the session had it.
    pub(super) fn unlock(&self, key: AdvisoryKey, mode: Mode) -> &str {
        &self.space(key).unlock[index(mode)]
    }

    /// Takes it shared as well, which a session that has it exclusively is granted at once.
    pub(super) fn downgrade(&self, key: AdvisoryKey) -> &str {
        &self.space(key).downgrade
    }
}

impl Space {
    fn new(
        space: i16,
        parameters: &str,
        key: &str,
        types: &'static [Type],
        schema: &str,
        fenced: bool,
    ) -> Self {
        let call = |function: &str| format!("{function}({parameters})");
        let fill = |template: &str, name: &str, function: &str| {
            template
                .replace(name, &call(function))
                .replace("%SPACE%", &space.to_string())
                .replace("%KEY%", key)
                .replace("%CLOCK%", include_str!("sql/clock.sql").trim())
                .replace("%SCHEMA%", schema)
        };
        let attempt = |function: &str| {
            if fenced {
                fill(&body(include_str!("sql/try_fenced.sql")), "%TRY%", function)
            } else {
                format!("SELECT {}, pg_backend_pid()", call(function))
            }
        };
        let wait = |function: &str| {
            if fenced {
                fill(&body(include_str!("sql/wait_fenced.sql")), "%WAIT%", function)
            } else {
                format!("SELECT {}::text IS NOT NULL, pg_backend_pid()", call(function))
            }
        };
        let select = |function: &str| format!("SELECT {}", call(function));
        Space {
            types,
            attempt: [attempt("pg_try_advisory_lock"), attempt("pg_try_advisory_lock_shared")],
            wait: [wait("pg_advisory_lock"), wait("pg_advisory_lock_shared")],
            unlock: [select("pg_advisory_unlock"), select("pg_advisory_unlock_shared")],
            downgrade: select("pg_advisory_lock_shared"),
        }
    }
}

fn index(mode: Mode) -> usize {
    usize::from(mode == Mode::Shared)
}

/// A statement without its comments, which need not travel.
pub(super) fn body(sql: &str) -> String {
    sql.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}

/// An identifier as SQL has it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
