//! Bodies of HTTP answers.

use serde::{Deserialize, Serialize};

use super::ModeName;

/// The answer 200 to an acquire.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"acquired": true, "lock_name": "nightly", "mode": "exclusive", "owner_id": "worker-7", "lease_id": "yh0Cm8bDT0GgEJQmEQbM2A", "fencing_token": 459475822995008_u64, "ttl_ms": 30000, "expires_in_ms": 30000, "lease_expiry_ms": 1794827493574_u64, "waited_ms": 0, "renewals": 0, "acquired_at_ms": 1794827463574_u64})))]
pub struct Acquired {
    /// Always true.
    pub acquired: bool,
    /// The name of the lock.
    pub lock_name: String,
    /// The mode in which it is held.
    pub mode: ModeName,
    /// How many permits there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The owner label of the holder.
    pub owner_id: String,
    /// The id that proves that the caller holds the lease: a secret.
    pub lease_id: String,
    /// The fence. Pass it along with every write to what the lock protects.
    pub fencing_token: u64,
    /// How long the lease lasts unless renewed.
    pub ttl_ms: u64,
    /// How long it lasts from the moment of measurement, which was at least `waited_ms` after the call.
    pub expires_in_ms: u64,
    /// When it expires, milliseconds since 1970 by the store's clock: for display.
    pub lease_expiry_ms: u64,
    /// How long the server waited for the lock.
    pub waited_ms: u64,
    /// How often it was renewed.
    pub renewals: u64,
    /// When it was granted, milliseconds since 1970: for display.
    pub acquired_at_ms: u64,
}

/// The answer 409 to an acquire: another client holds the lock; try again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"acquired": false, "lock_name": "nightly", "reason": "HELD", "current_owner_id": "worker-3", "current_expiry_ms": 1794827493574_u64, "current_expires_in_ms": 12000, "queue_length": 0, "queue_place": null, "recommended_retry_ms": 1000, "type": "about:blank", "title": "Conflict", "status": 409, "detail": "another client holds the lock; try again", "error": "another client holds the lock; try again", "code": "HELD", "retryable": true})))]
pub struct Busy {
    /// Always false.
    pub acquired: bool,
    /// The name that was asked for.
    pub lock_name: String,
    /// `HELD`; `WAIT_TIMEOUT` after a wait; `BUSY_RETRY` if the store itself is too busy.
    pub reason: String,
    /// The owner label of the holder, or of one of them.
    pub current_owner_id: Option<String>,
    /// When that lease expires unless renewed, milliseconds since 1970: for display.
    pub current_expiry_ms: Option<u64>,
    /// How long that lease lasts unless renewed.
    #[serde(default)]
    pub current_expires_in_ms: Option<u64>,
    /// How many claims wait.
    pub queue_length: u64,
    /// How many claims are before this one, if it has a place in the queue.
    #[serde(default)]
    pub queue_place: Option<u64>,
    /// How long to wait before the next try.
    pub recommended_retry_ms: u64,
    /// The fields of every error; `code` is the reason.
    #[serde(flatten)]
    pub problem: Problem,
}

/// The answer 200 to a renewal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"renewed": true, "lock_name": "nightly", "lease_expiry_ms": 1794827493574_u64, "expires_in_ms": 30000, "fencing_token": 459475822995008_u64, "mode": "exclusive", "renewals": 1, "acquired_at_ms": 1794827463574_u64})))]
pub struct Renewed {
    /// Always true.
    pub renewed: bool,
    /// The name of the lock.
    pub lock_name: String,
    /// When it expires, milliseconds since 1970: for display.
    pub lease_expiry_ms: u64,
    /// How long it lasts from the moment of measurement.
    pub expires_in_ms: u64,
    /// The fence.
    pub fencing_token: u64,
    /// The mode in which it is held now.
    pub mode: ModeName,
    /// How many permits there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How often it was renewed.
    pub renewals: u64,
    /// When it was granted, milliseconds since 1970: for display.
    pub acquired_at_ms: u64,
}

/// The answer 410 to an acquire or a renewal: the lease is gone and will not come back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"renewed": false, "lock_name": "nightly", "reason": "NOT_OWNER_OR_EXPIRED", "gone": "expired", "type": "about:blank", "title": "Gone", "status": 410, "detail": "the lease is gone; stop work that needs it", "error": "the lease is gone; stop work that needs it", "code": "LOST", "retryable": false})))]
pub struct LeaseGone {
    /// False, in the answer to an acquire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired: Option<bool>,
    /// False, in the answer to a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<bool>,
    /// The name of the lock.
    pub lock_name: String,
    /// `NOT_OWNER_OR_EXPIRED`, or `SUPERSEDED` for an id that was given up or taken over.
    pub reason: String,
    /// `expired`, `not_found`, `superseded` or `revoked`.
    pub gone: String,
    /// The fields of every error.
    #[serde(flatten)]
    pub problem: Problem,
}

/// The answer 200 to a release.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"released": true, "lock_name": "nightly"})))]
pub struct Released {
    /// Whether this call ended the lease or gave up the place.
    pub released: bool,
    /// The name of the lock.
    pub lock_name: String,
    /// `NOT_OWNER` or `EXPIRED`, if there was nothing to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in more detail: `expired`, `not_found`, `superseded` or `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
}

/// The answer 200 to a revocation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"revoked": 1, "lock_name": "nightly"})))]
pub struct Revoked {
    /// How many leases it affected.
    pub revoked: u64,
    /// The name of the lock.
    pub lock_name: String,
}

/// The answer 200 to a sweep.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"expired": 2, "tickets": 1, "counters": 0, "held": 17, "waiting": 3})))]
pub struct Swept {
    /// Expired leases that were dropped.
    pub expired: u64,
    /// Places in queues that had lapsed.
    pub tickets: u64,
    /// Fence counters that were no longer needed.
    pub counters: u64,
    /// Live leases after the sweep.
    pub held: u64,
    /// Live waiters after the sweep.
    pub waiting: u64,
}

/// One live lease, without its secrets.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Holder {
    /// Stands for the lease id without revealing it.
    pub lease_digest: String,
    /// The owner label of the holder.
    pub owner_id: String,
    /// The mode in which it is held.
    pub mode: ModeName,
    /// How many permits there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Its fence.
    pub fencing_token: u64,
    /// How long it lasts from now.
    pub expires_in_ms: Option<u64>,
    /// When it expires, milliseconds since 1970.
    pub lease_expiry_ms: Option<u64>,
    /// When it was granted, milliseconds since 1970.
    pub acquired_at_ms: u64,
    /// How often it was renewed.
    pub renewals: u64,
    /// The text that the holder attached.
    pub metadata: Option<String>,
    /// Whether the store refuses to renew it.
    pub revoked: bool,
}

/// One waiter.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Waiter {
    /// Stands for the id that its lease will have, without revealing it.
    pub lease_digest: String,
    /// The owner label of the waiter.
    pub owner_id: String,
    /// The mode it waits for.
    pub mode: ModeName,
    /// How many permits there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long it has waited.
    pub waited_ms: u64,
}

/// A lock with its holders and waiters. The fields at the top level are those of the oldest holder.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"lock_name": "nightly", "held": true, "owner_id": "worker-7", "fencing_token": 459475822995008_u64, "lease_expiry_ms": 1794827493574_u64, "version": 3, "last_fencing_token": 459475822995008_u64, "holders": [{"lease_digest": "mZ3u1qYk0Vx8TgH5sJd2Pw", "owner_id": "worker-7", "mode": "exclusive", "fencing_token": 459475822995008_u64, "expires_in_ms": 30000, "lease_expiry_ms": 1794827493574_u64, "acquired_at_ms": 1794827463574_u64, "renewals": 0, "metadata": null, "revoked": false}], "holder_count": 1, "waiters": [{"lease_digest": "c9Rk2LwXo7bNfE4tYhQ1Sg", "owner_id": "worker-3", "mode": "exclusive", "waited_ms": 1200}], "queue_length": 1})))]
pub struct Lock {
    /// The name of the lock.
    pub lock_name: String,
    /// Whether any client holds it.
    pub held: bool,
    /// The owner label of the oldest holder.
    pub owner_id: Option<String>,
    /// The fence of the oldest holder; while no client holds it, the last fence there was.
    pub fencing_token: u64,
    /// When that lease expires, milliseconds since 1970.
    pub lease_expiry_ms: Option<u64>,
    /// Counts every change of the name.
    pub version: u64,
    /// The fence of the latest grant.
    pub last_fencing_token: u64,
    /// The note that a holder left, also if it was cleared. None if nobody left one, or if the store keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
    /// The holders, oldest grant first; at most a hundred. A lookup always shows the lease it asks for.
    pub holders: Vec<Holder>,
    /// How many leases hold it. An answer of an older server may lack it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub holder_count: u64,
    /// The waiters, in order; at most a hundred.
    pub waiters: Vec<Waiter>,
    /// How many claims wait.
    pub queue_length: u64,
}

/// The answer 200 to a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"locks": [{"lock_name": "nightly", "held": true, "owner_id": "worker-7", "fencing_token": 459475822995008_u64, "lease_expiry_ms": 1794827493574_u64, "version": 3, "last_fencing_token": 459475822995008_u64, "holders": [{"lease_digest": "mZ3u1qYk0Vx8TgH5sJd2Pw", "owner_id": "worker-7", "mode": "exclusive", "fencing_token": 459475822995008_u64, "expires_in_ms": 30000, "lease_expiry_ms": 1794827493574_u64, "acquired_at_ms": 1794827463574_u64, "renewals": 0, "metadata": null, "revoked": false}], "holder_count": 1, "waiters": [{"lease_digest": "c9Rk2LwXo7bNfE4tYhQ1Sg", "owner_id": "worker-3", "mode": "exclusive", "waited_ms": 1200}], "queue_length": 1}], "next_cursor": "bGVhc2Vob2xkL25pZ2h0bHk"})))]
pub struct Listed {
    /// Names in use, in order.
    pub locks: Vec<Lock>,
    /// Where the next page begins; missing at the end.
    pub next_cursor: Option<String>,
    /// How long ago the store listed the names: a lock that was taken since at another server may be missing. What is
    /// reported of each lock is current. None: the list of names is current too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// The answer 200 to a lookup.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"found": true, "state": "held", "lock": {"lock_name": "nightly", "held": true, "owner_id": "worker-7", "fencing_token": 459475822995008_u64, "lease_expiry_ms": 1794827493574_u64, "version": 3, "last_fencing_token": 459475822995008_u64, "holders": [{"lease_digest": "mZ3u1qYk0Vx8TgH5sJd2Pw", "owner_id": "worker-7", "mode": "exclusive", "fencing_token": 459475822995008_u64, "expires_in_ms": 30000, "lease_expiry_ms": 1794827493574_u64, "acquired_at_ms": 1794827463574_u64, "renewals": 0, "metadata": null, "revoked": false}], "holder_count": 1, "waiters": [{"lease_digest": "c9Rk2LwXo7bNfE4tYhQ1Sg", "owner_id": "worker-3", "mode": "exclusive", "waited_ms": 1200}], "queue_length": 1}})))]
pub struct Found {
    /// Whether the id holds a lease or waits.
    pub found: bool,
    /// `held` or `waiting`.
    pub state: Option<String>,
    /// The lock that it holds or waits for.
    pub lock: Option<Lock>,
}

/// The note of a name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"text": "done: 2026-11-19", "fencing_token": 459475822995008_u64, "revision": 1})))]
pub struct Note {
    /// What the holder wrote. Empty: the note was cleared.
    pub text: String,
    /// The fence of the lease that wrote it.
    pub fencing_token: u64,
    /// Orders the notes that this lease wrote.
    pub revision: u64,
}

/// What a server and its store can do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"server": "leasehold", "version": "0.1.0", "store": "sqlite", "time": "store", "fenced": true, "fifo": true, "shared": true, "max_permits": 4294967295_u32, "downgrade": true, "find_by_id": true, "revoke": true, "detects_loss": true, "notes": true, "min_validity_percent": 0, "max_ttl_ms": 600000, "max_wait_ms": 50000})))]
pub struct Capabilities {
    /// Always `leasehold`.
    pub server: String,
    /// The version of the server.
    pub version: String,
    /// The scheme of its store.
    pub store: String,
    /// Whose clock decides expiry: `store` or `client`.
    pub time: String,
    /// Whether grants carry fences.
    pub fenced: bool,
    /// Whether waiting is first come, first served.
    pub fifo: bool,
    /// Whether the store has shared leases.
    pub shared: bool,
    /// The highest limit of permits.
    pub max_permits: u32,
    /// Whether an exclusive lease can become shared without a gap.
    pub downgrade: bool,
    /// Whether a lease can be found by its id.
    pub find_by_id: bool,
    /// Whether leases can be revoked.
    pub revoke: bool,
    /// Whether a client can notice a loss.
    pub detects_loss: bool,
    /// Whether names keep notes.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub notes: bool,
    /// The share of its ttl, in percent, that a grant must still have left to be usable.
    pub min_validity_percent: u8,
    /// The longest ttl.
    pub max_ttl_ms: u64,
    /// The longest wait of one request.
    pub max_wait_ms: u64,
}

/// An error as in RFC 9457, with three more fields. An answer of an older server may lack those of the RFC.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": "owner_id required", "error": "owner_id required", "code": "INVALID_ARGUMENT", "retryable": false})))]
pub struct Problem {
    /// Always `about:blank`: the status gives the meaning.
    #[serde(rename = "type", default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub kind: String,
    /// The HTTP status in words.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub status: u16,
    /// What went wrong and what to do, for people.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub detail: String,
    /// The same text as `detail`.
    pub error: String,
    /// What went wrong, for programs.
    pub code: String,
    /// Whether the same call can succeed a little later.
    pub retryable: bool,
}

/// What a server has found about how its store is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"findings": [{"level": "ok", "what": "leases are on disk before they are given"}, {"level": "risk", "what": "the server keeps leases in its memory", "risk": "a restart frees every lock while its holder still believes that it has it", "fix": "start it with --store sqlite:path"}]})))]
pub struct Findings {
    /// The findings.
    pub findings: Vec<crate::doctor::Finding>,
}
