//! The marks of a database: its table `fences`, made when the first fence is checked.

use async_trait::async_trait;

use super::fault::Fault;
use super::turn::Turn;
use super::writer::{Job, Reply};
use super::{Sqlite, out_of_turn, sql};
use crate::error::Result;
use crate::fence::Fence;
use crate::marks::{Checked, Marks, WriteFence};
use crate::name::Name;

#[async_trait]
impl Marks for Sqlite {
    async fn check(&self, resource: &Name, fence: WriteFence) -> Result<Checked> {
        match self.ask(Job::Check(resource.clone(), fence)).await? {
            Reply::Checked(checked) => Ok(checked),
            _ => Err(out_of_turn()),
        }
    }
}

impl Turn<'_> {
    /// Raises the mark of a resource, and compares.
    pub(super) fn check(&mut self, resource: &Name, fence: WriteFence) -> Result<Checked, Fault> {
        let db = &self.writer.db;
        db.prepare_cached(const { sql("make_fences") })?.execute([])?;
        let mut raise = db.prepare_cached(const { sql("raise_fence") })?;
        let values = (resource.stored(), fence.get().get().cast_signed());
        let highest: i64 = raise.query_row(values, |row| row.get(0))?;
        drop(raise);
        self.changed = true;
        Ok(Checked::against(fence, Fence::new(highest.cast_unsigned())))
    }
}
