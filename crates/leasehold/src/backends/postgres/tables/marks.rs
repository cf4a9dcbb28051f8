//! The marks of a database: the table `fences` in the schema, made when the first fence is checked.

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::lanes::Call;
use super::verbs::{Param, Verb};
use super::{Postgres, answers, text};
use crate::backends::postgres::fault;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::marks::{Checked, Marks, WriteFence};
use crate::name::Name;

#[async_trait]
impl Marks for Postgres {
    async fn check(&self, resource: &Name, fence: WriteFence) -> Result<Checked> {
        let name = text::write(resource.stored());
        let number = fence.get().get().cast_signed();
        let params: [Param<'_>; 2] = [(&name, Type::TEXT), (&number, Type::INT8)];
        let raise = || self.call_one(Verb::RaiseFence, Call::Attempt(&name), &params);
        let row = match raise().await {
            Err(error) if is_missing(&error) => {
                self.make_fences().await?;
                raise().await?
            }
            answer => answer?,
        };
        Ok(Checked::against(fence, Fence::new(answers::number(&row, 0)?)))
    }
}

impl Postgres {
    async fn make_fences(&self) -> Result<()> {
        match self.call(Verb::MakeFences, Call::Look, &[]).await {
            Err(error) if error.kind() == ErrorKind::AuthFailed => Err(Error::new(
                ErrorKind::AuthFailed,
                "the PostgreSQL user may not make the table `fences` in the schema of leasehold; let an administrator \
                 make it, as docs/postgres.md says",
            )
            .with_source(error)),
            // Two clients that make a table at the same time may collide; then it is there.
            Err(error) if is_doubled(&error) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// Whether the table is not there.
fn is_missing(error: &Error) -> bool {
    fault::code(error) == Some("42P01")
}

/// Whether another client has just made it.
fn is_doubled(error: &Error) -> bool {
    matches!(fault::code(error), Some("23505" | "42P07" | "42710"))
}
