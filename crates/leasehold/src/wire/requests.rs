//! Bodies of HTTP requests.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::ModeName;

/// A body that must be a JSON object. By itself serde also accepts a list, whose items are the fields in the order
/// written here; a client can hardly have meant that.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

fn objects<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Renew>, D::Error> {
    let all = Vec::<Object<Renew>>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|Object(one)| one).collect())
}

/// `POST /v1/locks/{name}/acquire`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"owner_id": "worker-7", "ttl_ms": 30000, "wait_ms": 10000})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Acquire {
    /// A label that tells people which client asks, at most 256 bytes.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub owner_id: String,
    /// How long the lease lasts unless renewed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub ttl_ms: u64,
    /// How to share the name; the default is `exclusive`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeName>,
    /// How many permits there are, with mode `permit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long to wait until the name is free, at most 50000. The default 0 makes one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// How long the store keeps the waiter's place in the queue after an answer that grants nothing; 0: not at all.
    /// The default is 10000 for a client that waits and sent its own `lease_id`. With `wait_ms` 0 it makes a single
    /// attempt join the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// The id that the lease will have: 22 characters of base64url, random, new for every acquisition. A client that
    /// makes it can repeat a call whose answer was lost. If it is missing, the server makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    /// Text that is shown with the lease, at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// An earlier call with this `lease_id` got no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
    /// The number of the attempt that this call belongs to, for callers that number their attempts by themselves. If
    /// such a caller is gone before the answer, the server does not take back what it may have got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// With `attempt`: whether this is the attempt's first call; the default is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<bool>,
}

/// `POST /v1/locks/{name}/renew`, and each item of `POST /v1/renew`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"lease_id": "yh0Cm8bDT0GgEJQmEQbM2A", "extend_by_ms": 30000})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Renew {
    /// The name of the lock; only in a batch, where no path gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_name: Option<String>,
    /// The id of the lease.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub lease_id: String,
    /// How long the lease is to last from now; it never gets shorter.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub extend_by_ms: u64,
    /// Act only if the lease has this owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Act only if the lease has this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// Let the lease end sooner, provided it was renewed exactly this often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shorten: Option<u64>,
    /// Downgrade to this mode: an exclusive lease to `shared`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeName>,
    /// The limit of that mode, if it is a permit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Raise the fence to at least this: at most a day ahead of the store's clock, or one above the name's last fence.
    /// A quorum needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise_fencing_token: Option<u64>,
    /// Write this as the note of the name: at most 1024 bytes, without NUL characters. Empty: clear the note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// With `note`: orders the notes of one lease. A lower one than that of the stored note writes nothing; the default
    /// 0 replaces other notes with 0 only. Another lease's note is ordered by its fence alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_revision: Option<u64>,
}

/// `POST /v1/renew`: a batch. The answers come in the same order.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"leases": [{"lock_name": "nightly", "lease_id": "yh0Cm8bDT0GgEJQmEQbM2A", "extend_by_ms": 30000}]})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RenewMany {
    /// The leases to renew, at most 512.
    #[serde(deserialize_with = "objects")]
    pub leases: Vec<Renew>,
}

/// `POST /v1/locks/{name}/release`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"lease_id": "yh0Cm8bDT0GgEJQmEQbM2A"})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Release {
    /// The id of the lease, or of the place in the queue.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub lease_id: String,
    /// Act only if the lease has this owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Act only if the lease has this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// An acquire with this id and this ttl, in milliseconds, is still unanswered: refuse the id from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u64>,
    /// Act only if this is still the latest attempt with that id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// If this ends a lease, write this as the note of the name, as in a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// With `note`: as in a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_revision: Option<u64>,
}

/// `POST /v1/locks/{name}/revoke`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"now": false})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Revoke {
    /// Free the name at once, and rely on fences to stop the old holders.
    #[serde(default)]
    pub now: bool,
    /// Act only on the lease with this fence: 409 `HOLDER_CHANGED` if it is gone, and nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
}

/// `POST /v1/leases/lookup`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"lease_id": "yh0Cm8bDT0GgEJQmEQbM2A"})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Lookup {
    /// The id to look for.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub lease_id: String,
}

/// An empty body: `{}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NoFields {}
