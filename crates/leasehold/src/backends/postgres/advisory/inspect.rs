//! Inspects a key: the holders as the server sees them, and which of them are ours.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

use crate::backend::{Grant, HolderInfo, Mode, NameInfo, Page, PageBuilder, Query, WaiterInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::state::{HOLDERS_SHOWN, WAITERS_SHOWN};

use super::super::fault;
use super::key::AdvisoryKey;
use super::sql::query;
use super::store::Store;

impl Store {
    pub(super) async fn inspect(self: Arc<Self>, query: Query) -> Result<Page> {
        match query {
            Query::Name(name) => Ok(Page::new(vec![self.view(name).await?], None)),
            Query::LeaseId(_) => Err(Error::new(
                ErrorKind::Unsupported,
                "postgres+advisory: cannot find a lease by its id; ask by name",
            )),
            Query::Prefix { stored, limit, cursor } => {
                let mut page = PageBuilder::new(limit)?;
                for name in self.names(&stored, cursor.as_deref()) {
                    let item = self.view(name).await?;
                    let is_used = !item.holders.is_empty() || item.queue_length > 0;
                    if is_used && !page.take(item) {
                        break;
                    }
                }
                Ok(page.finish())
            }
        }
    }

    /// The names that this client holds or waits for: the server knows only keys.
    fn names(&self, prefix: &str, after: Option<&str>) -> Vec<Name> {
        let book = self.book.lock();
        let waited = book.waiting.values().map(|waiter| &waiter.name);
        let mut names: Vec<Name> = book
            .leases()
            .map(|(_, lease)| &lease.name)
            .chain(waited)
            .filter(|name| {
                name.stored().starts_with(prefix) && after.is_none_or(|after| name.stored() > after)
            })
            .cloned()
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    async fn view(&self, name: Name) -> Result<NameInfo> {
        let key = self.key(&name)?;
        let mut info = NameInfo::unused(name);
        let loan = self.pool.shared(&[]).await?;
        let session = loan.session();
        if self.sql.fenced {
            let sql = const { query("last_fence") }.replace("%SCHEMA%", &self.sql.schema);
            let (space, packed) = (key.space(), key.packed());
            let params: [(&(dyn ToSql + Sync), Type); 2] = [(&space, Type::INT2), (&packed, Type::INT8)];
            let row = session.ask(|client| client.query_typed_opt(&sql, &params)).await?;
            if let Some(row) = row {
                let fence: i64 = row.try_get(0).map_err(fault::statement)?;
                info.last_fence = Fence::new(u64::try_from(fence).unwrap_or_default());
            }
        }
        let packed = key.packed();
        // As two unsigned halves, which is how `pg_locks` shows them.
        let (high, low) = ((packed >> 32) as u32, packed as u32);
        let space = key.space();
        let sql = const { query("inspect") };
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&high, Type::OID), (&low, Type::OID), (&space, Type::INT2)];
        let rows = session.ask(|client| client.query_typed(sql, &params)).await?;
        for row in rows {
            let pid: i32 = row.try_get(0).map_err(fault::statement)?;
            let shared: bool = row.try_get(2).map_err(fault::statement)?;
            let mode = if shared { Mode::Shared } else { Mode::Exclusive };
            let program: String = row.try_get(3).map_err(fault::statement)?;
            if row.try_get(1).map_err(fault::statement)? {
                info.holders.push(self.holder(key, pid, mode, &program)?);
            } else {
                let waited: Option<f64> = row.try_get(4).map_err(fault::statement)?;
                info.queue_length += 1;
                if info.waiters.len() < WAITERS_SHOWN {
                    let waited = Duration::try_from_secs_f64(waited.unwrap_or_default()).unwrap_or_default();
                    let own = self.waiter(key, pid);
                    info.waiters.push(match own {
                        Some(own) => own,
                        None => WaiterInfo { id: nobody()?, owner: stranger(pid, &program), mode, waited },
                    });
                }
            }
        }
        info.holders.sort_by_key(|holder| holder.grant.fence);
        info.holder_count = info.holders.len() as u64;
        info.holders.truncate(HOLDERS_SHOWN);
        Ok(info)
    }

    /// This client's own waiter, about which it knows more, found by the server process that waits for it.
    fn waiter(&self, key: AdvisoryKey, pid: i32) -> Option<WaiterInfo> {
        let now = self.now();
        let book = self.book.lock();
        let mut all = book.waiting.iter();
        let (id, own) = all.find(|(_, waiter)| waiter.key == key && waiter.pid == Some(pid))?;
        let waited = now.since(own.since);
        Some(WaiterInfo { id: *id, owner: Arc::clone(&own.owner), mode: own.mode, waited })
    }

    fn holder(&self, key: AdvisoryKey, pid: i32, mode: Mode, program: &str) -> Result<HolderInfo> {
        let book = self.book.lock();
        let own = book.leases().find(|(_, lease)| lease.key == key && lease.session().pid() == pid);
        Ok(match own {
            Some((id, lease)) => HolderInfo {
                id: *id,
                owner: Arc::clone(&lease.held.owner),
                metadata: lease.metadata.clone(),
                grant: lease.held.grant.clone(),
                revoked: false,
            },
            None => HolderInfo {
                id: nobody()?,
                owner: stranger(pid, program),
                metadata: None,
                grant: Grant::new(Fence::UNFENCED, mode, None),
                revoked: false,
            },
        })
    }
}

/// The id shown for a holder or waiter of another client.
fn nobody() -> Result<LeaseId> {
    LeaseId::parse("----------------------")
}

fn stranger(pid: i32, program: &str) -> Arc<str> {
    format!("PostgreSQL session {pid} {program}").trim_end().into()
}
