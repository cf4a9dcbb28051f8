//! The statements: one for each verb, the same text whether it is prepared or not.

use tokio_postgres::types::{ToSql, Type};

use super::schema;

/// A parameter with its type, as an unnamed statement needs it.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Release,
    Renew,
    Revoke,
    Sweep,
    Forget,
    Counts,
    LookName,
    LookId,
    LookPrefix,
}

impl Verb {
    pub(super) const ALL: [Verb; 10] = [
        Verb::Acquire,
        Verb::Release,
        Verb::Renew,
        Verb::Revoke,
        Verb::Sweep,
        Verb::Forget,
        Verb::Counts,
        Verb::LookName,
        Verb::LookId,
        Verb::LookPrefix,
    ];

    fn sql(self) -> String {
        let look = |wanted: &str| format!("{wanted}{}", include_str!("sql/look.sql"));
        match self {
            // One value instead of a table: that needs no room of its own in the server.
            Verb::Acquire => {
                "SELECT leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)".into()
            }
            Verb::Release => "SELECT leasehold.release($1, $2, $3, $4, $5, $6)".into(),
            Verb::Renew => "SELECT * FROM leasehold.renew($1, $2, $3, $4, $5, $6, $7, $8, $9)".into(),
            Verb::Revoke => "SELECT * FROM leasehold.revoke($1, $2)".into(),
            Verb::Sweep => "SELECT * FROM leasehold.sweep($1)".into(),
            Verb::Forget => "SELECT * FROM leasehold.forget($1, $2, $3)".into(),
            Verb::Counts => include_str!("sql/counts.sql").into(),
            Verb::LookName => look(include_str!("sql/look_name.sql")),
            Verb::LookId => look(include_str!("sql/look_id.sql")),
            Verb::LookPrefix => look(include_str!("sql/look_prefix.sql")),
        }
    }
}

/// The texts of all verbs, for one schema.
#[derive(Debug)]
pub(super) struct Statements([String; Verb::ALL.len()]);

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        Statements(Verb::ALL.map(|verb| schema::within(schema, &verb.sql())))
    }

    pub(super) fn text(&self, verb: Verb) -> &str {
        &self.0[verb as usize]
    }
}
