//! Reads the state of locks without changing it: for people, dashboards and debugging, never to decide whether one may
//! write.

use crate::backend::{HolderInfo, NameInfo, Note, Page, Query, check_page_limit};
use crate::client::locks::Locks;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// A lease, without its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeaseInfo {
    /// [`digest_name`](crate::digest_name) of the name.
    pub name_hash: String,
    /// [`LeaseId::hash`] of the lease id.
    pub lease_id_hash: String,
    /// The fencing token; `None` where the store has none.
    pub fence: Option<Fence>,
    /// When it was granted, milliseconds since 1970 by the store's wall clock.
    pub acquired_at_ms: u64,
    /// When it expires, by the same clock; `None` for session locks.
    pub expires_at_ms: Option<u64>,
}

impl LeaseInfo {
    fn new(name: &Name, holder: &HolderInfo) -> Self {
        let grant = &holder.grant;
        LeaseInfo {
            name_hash: name.hash(),
            lease_id_hash: holder.id.hash(),
            fence: Some(grant.fence).filter(|fence| !fence.is_unfenced()),
            acquired_at_ms: grant.acquired_at_ms,
            expires_at_ms: grant.expires_at_ms,
        }
    }
}

impl Locks {
    /// Whether any client holds the name at this moment. Read only; by the time you look at the answer it may have
    /// changed.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad name; faults of the store.
    pub async fn is_locked(&self, name: impl AsRef<str>) -> Result<bool> {
        Ok(!self.inspect(name).await?.holders.is_empty())
    }

    /// The lease that holds the name, without its secrets; the oldest if there are several. `None` if there is no
    /// lease or it has expired.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// As [`is_locked`](Locks::is_locked).
    pub async fn lookup(&self, name: impl AsRef<str>) -> Result<Option<LeaseInfo>> {
        let info = self.inspect(name).await?;
        Ok(info.holders.first().map(|holder| LeaseInfo::new(&info.name, holder)))
    }

    /// The lease of an id, without its secrets. `None` if there is no lease or it has expired.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// Faults of the store; `Unsupported` where it cannot find a lease by its id; `AuthFailed` from a leasehold server if
    /// the token may not read the lock.
    pub async fn lookup_by_id(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        let found = self.find(id).await?;
        Ok(found.and_then(|info| {
            let holder = info.holders.iter().find(|holder| holder.id == id)?;
            Some(LeaseInfo::new(&info.name, holder))
        }))
    }

    /// Whether this id holds a lease at this moment: a diagnosis, not a reason to write. Use
    /// [`Guard::check`](crate::Guard::check) and fences for that.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// As [`lookup_by_id`](Locks::lookup_by_id).
    pub async fn owns(&self, id: LeaseId) -> Result<bool> {
        Ok(self.lookup_by_id(id).await?.is_some())
    }

    /// Everything about a name, lease ids included: for debugging, not for logs.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// As [`is_locked`](Locks::is_locked).
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<NameInfo> {
        let name = self.name(name)?;
        let page = self.query(Query::Name(name.clone())).await?;
        Ok(page.items.into_iter().next().unwrap_or_else(|| NameInfo::unused(name)))
    }

    /// The note of a name, which a holder has written with [`Guard::write_note`](crate::Guard::write_note). `None` if
    /// there is none, or if it was cleared. Read only; it may be replaced by the time you look at it.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// As [`is_locked`](Locks::is_locked); `Unsupported` where the store keeps no notes.
    pub async fn note(&self, name: impl AsRef<str>) -> Result<Option<Note>> {
        let name = self.name(name)?;
        self.info().require_notes()?;
        let page = self.query(Query::Name(name)).await?;
        let note = page.items.into_iter().next().and_then(|info| info.note);
        Ok(note.filter(|note| !note.text.is_empty()))
    }

    /// Everything about the name on which an id holds a lease or waits: for debugging, not for logs.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// As [`lookup_by_id`](Locks::lookup_by_id).
    pub async fn find(&self, id: LeaseId) -> Result<Option<NameInfo>> {
        if !self.info().find_by_id {
            let scheme = self.info().scheme;
            let message = format!("{scheme}: cannot find a lease by its id alone");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(self.query(Query::LeaseId(id)).await?.items.into_iter().next())
    }

    /// Lists the names in use, in this client's namespace, that begin with `prefix`.
    ///
    /// Returns a page of at most `limit` names, starting at `cursor`, the [`Page::next`] of the previous page. A page
    /// may have fewer names, or none, and still a next page: the store has looked through many names that are not in
    /// use.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit of zero; faults of the store.
    pub async fn list(&self, prefix: &str, limit: usize, cursor: Option<String>) -> Result<Page> {
        check_page_limit(limit)?;
        let stored = Name::stored_prefix(&self.namespace, prefix)?;
        self.query(Query::Prefix { stored, limit, cursor }).await
    }

    async fn query(&self, query: Query) -> Result<Page> {
        self.within(self.options.request_timeout, self.client.backend.inspect(&query)).await?
    }
}
