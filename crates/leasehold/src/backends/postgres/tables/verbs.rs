//! The statements: one for each verb.

use tokio_postgres::types::{ToSql, Type};

use super::schema;
use crate::backends::queries;

/// A parameter with its type, as an unnamed statement needs it.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// The statement of this name in `queries.sql`.
pub(super) const fn query(name: &str) -> &'static str {
    queries::named(include_str!("queries.sql"), name)
}

/// What a look reads of the note of a name.
const NOTE_COLUMNS: &str = "n.note, n.note_fence, n.note_revision";

/// The questions to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Release,
    ReleaseWithNote,
    Renew,
    RenewWaiting,
    RenewWithNotes,
    RenewWithNotesWaiting,
    Revoke,
    RevokeOnly,
    Sweep,
    LookName,
    LookId,
    LookPrefix,
}

impl Verb {
    pub(super) const ALL: [Verb; 13] = [
        Verb::Acquire,
        Verb::Release,
        Verb::ReleaseWithNote,
        Verb::Renew,
        Verb::RenewWaiting,
        Verb::RenewWithNotes,
        Verb::RenewWithNotesWaiting,
        Verb::Revoke,
        Verb::RevokeOnly,
        Verb::Sweep,
        Verb::LookName,
        Verb::LookId,
        Verb::LookPrefix,
    ];

    /// `ours`: the session is set up for it. Otherwise the call sets it up first. `notes`: names have columns for notes.
    fn sql(self, ours: bool, notes: bool) -> String {
        // One value instead of a table: the server needs no extra storage for it.
        let value = |call: &str| match ours {
            true => format!("SELECT {call}"),
            false => format!("SELECT CASE WHEN leasehold.check_session() THEN {call} END"),
        };
        let look = |wanted: &str| {
            let sql = format!("{wanted}\n{}", const { query("look") });
            if notes { sql } else { sql.replace(NOTE_COLUMNS, "NULL::text, NULL::bigint, NULL::bigint") }
        };
        match self {
            Verb::Acquire => {
                value("leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)")
            }
            Verb::Release => value("leasehold.release($1, $2, $3, $4, $5, $6)"),
            Verb::ReleaseWithNote => value("leasehold.release_with_note($1, $2, $3, $4, $5, $6, $7, $8)"),
            Verb::Renew => "SELECT * FROM leasehold.renew($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)".into(),
            Verb::RenewWaiting => const { query("renew_waiting") }.into(),
            Verb::RenewWithNotes => {
                "SELECT * FROM leasehold.renew_with_notes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
                    .into()
            }
            Verb::RenewWithNotesWaiting => const { query("renew_with_notes_waiting") }.into(),
            Verb::Revoke => "SELECT * FROM leasehold.revoke($1, $2)".into(),
            Verb::RevokeOnly => "SELECT * FROM leasehold.revoke_only($1, $2, $3)".into(),
            Verb::Sweep => "SELECT * FROM leasehold.sweep($1, $2, $3)".into(),
            Verb::LookName => look(const { query("look_name") }),
            Verb::LookId => look(const { query("look_id") }),
            Verb::LookPrefix => look(const { query("look_prefix") }),
        }
    }
}

/// The texts of all verbs, for one schema.
#[derive(Debug)]
pub(super) struct Statements([String; Verb::ALL.len()]);

impl Statements {
    pub(super) fn new(schema: &str, ours: bool, notes: bool) -> Self {
        Statements(Verb::ALL.map(|verb| schema::within(schema, &verb.sql(ours, notes))))
    }

    pub(super) fn text(&self, verb: Verb) -> &str {
        &self.0[verb as usize]
    }
}
