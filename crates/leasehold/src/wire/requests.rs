//! Bodies of requests.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::ModeName;

/// A body that must be a JSON object. By itself serde also takes a list, whose items are the fields in their order here:
/// what a client meant by that nobody knows.
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
    /// Who asks: a label for people, at most 256 bytes.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub owner_id: String,
    /// How long the lease lasts unless renewed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub ttl_ms: u64,
    /// How to share the name; `exclusive` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeName>,
    /// How many permits there are, with mode `permit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long to wait for the name to come free, at most 50000; 0 unless said: one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// How long a place in the queue is kept after an answer that grants nothing. 10000 unless said for who
    /// waits with a `lease_id` of its own; 0: not at all. With `wait_ms` 0 it makes a single attempt queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// The id the lease shall have: 22 characters of base64url, random, new for every acquisition. Whoever makes
    /// it can repeat a call whose answer was lost. The server makes one unless it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<String>,
    /// Whatever shall be seen with the lease, at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// An earlier call with this `lease_id` got no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
    /// For callers that number their attempts by themselves: which attempt this call belongs to. The server then
    /// does not take back what such a caller, gone before the answer, may have got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// With `attempt`: whether this is the attempt's first call; it is unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<bool>,
}

/// `POST /v1/locks/{name}/renew`, and each of `POST /v1/renew`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"lease_id": "yh0Cm8bDT0GgEJQmEQbM2A", "extend_by_ms": 30000})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Renew {
    /// The name the lease is on; in a batch, where no path says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_name: Option<String>,
    /// The id of the lease.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub lease_id: String,
    /// How long it shall last from now; never shortens it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub extend_by_ms: u64,
    /// Act only if the lease has this owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// Act only if the lease has this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// Let it end sooner, provided it was renewed exactly this often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shorten: Option<u64>,
    /// Downgrade to this mode: `shared`, of an exclusive lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeName>,
    /// The limit of that mode, where it is a permit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Raise the fence to at least this: at most a day ahead of the store's clock, or one above the name's last fence.
    /// A quorum needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raise_fencing_token: Option<u64>,
}

/// `POST /v1/renew`: a batch, answered one by one in the same order.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({"leases": [{"lock_name": "nightly", "lease_id": "yh0Cm8bDT0GgEJQmEQbM2A", "extend_by_ms": 30000}]})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RenewMany {
    /// At most 512.
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
    /// An acquire with this id and this ttl, in milliseconds, is still unanswered: refuse the id from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u64>,
    /// Act only if this is still the latest attempt with that id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
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
    /// Act only on the lease with this fence: 409 `HOLDER_CHANGED` if there is none by now, and nothing changes.
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

/// A body that says nothing: `{}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(example = json!({})))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NoFields {}
