//! A lease as plain data, for callers that renew by themselves or pass leases between processes.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Claim, Grant, Mode, Release, Renewal};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;

/// A granted claim, as plain data: nothing renews it, and dropping it releases nothing.
///
/// Any process that has it can renew and release the lease: it contains the lease id, so treat it as a secret. `Debug`
/// hides the id. With the feature `serde` it survives JSON unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "Wire", try_from = "Wire")
)]
#[non_exhaustive]
pub struct Lease {
    /// What is locked.
    pub name: Name,
    /// The id that proves who acquired it: a secret.
    pub id: LeaseId,
    /// The mode in which it is held.
    pub mode: Mode,
    /// The fencing token.
    pub fence: Fence,
    /// The owner label of the holder.
    pub owner: Arc<str>,
    /// How long the lease lasts from a renewal.
    pub ttl: Duration,
    /// When it expires, milliseconds since 1970 by the store's wall clock: for display. `None` for session locks.
    pub expires_at_ms: Option<u64>,
}

impl Lease {
    /// Makes a lease from its parts, for example from columns of a table. Only the store knows whether it is held.
    /// `expires_at_ms` is unknown unless set.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::backend::Released;
    /// use leasehold::{Lease, LeaseId};
    ///
    /// let locks = leasehold::Locks::connect("memory:").await?;
    /// let lease = locks.leasing("nightly-report").acquire().await?;
    /// let stored = (lease.id.expose().to_owned(), lease.fence);
    ///
    /// // Another process knows the rest, and reads those two.
    /// let id = LeaseId::parse(&stored.0)?;
    /// let again = Lease::new(lease.name, id, lease.mode, stored.1, lease.owner, lease.ttl);
    /// assert_eq!(locks.release(&again).await?, Released::Done);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(
        name: Name,
        id: LeaseId,
        mode: Mode,
        fence: Fence,
        owner: impl Into<Arc<str>>,
        ttl: Duration,
    ) -> Self {
        Lease { name, id, mode, fence, owner: owner.into(), ttl, expires_at_ms: None }
    }

    pub(crate) fn granted(claim: Claim, grant: &Grant) -> Self {
        let expires_at_ms = grant.expires_at_ms;
        let lease = Lease::new(claim.name, claim.id, grant.mode, grant.fence, claim.owner, claim.ttl);
        Lease { expires_at_ms, ..lease }
    }

    pub(crate) fn renewal(&self) -> Renewal {
        let mut renewal = Renewal::new(self.name.clone(), self.id, self.ttl);
        renewal.fence = Some(self.fence);
        renewal
    }

    pub(crate) fn release(&self) -> Release {
        let mut release = Release::new(self.name.clone(), self.id);
        release.fence = Some(self.fence);
        release
    }
}

/// The form in JSON.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct Wire {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
    lease_id: LeaseId,
    mode: Mode,
    fence: Fence,
    owner: Arc<str>,
    ttl_ms: u64,
    #[serde(default)]
    expires_at_ms: Option<u64>,
}

#[cfg(feature = "serde")]
impl From<Lease> for Wire {
    fn from(lease: Lease) -> Wire {
        Wire {
            namespace: lease.name.namespace().into_owned(),
            name: lease.name.as_str().to_owned(),
            lease_id: lease.id,
            mode: lease.mode,
            fence: lease.fence,
            owner: lease.owner,
            ttl_ms: u64::try_from(lease.ttl.as_millis()).unwrap_or(u64::MAX),
            expires_at_ms: lease.expires_at_ms,
        }
    }
}

#[cfg(feature = "serde")]
impl TryFrom<Wire> for Lease {
    type Error = crate::error::Error;

    fn try_from(wire: Wire) -> Result<Lease, Self::Error> {
        let Wire { lease_id, mode, fence, owner, expires_at_ms, .. } = wire;
        let name = Name::within(&wire.namespace, &wire.name)?;
        let ttl = Duration::from_millis(wire.ttl_ms);
        Ok(Lease { expires_at_ms, ..Lease::new(name, lease_id, mode, fence, owner, ttl) })
    }
}
