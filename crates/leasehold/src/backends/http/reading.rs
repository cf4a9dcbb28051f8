//! Turns the server's answers into those of the contract.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::backend::{
    Attempt, Busy, Gone, Grant, HolderInfo, Mode, NameInfo, Note, Released, Renewed, Revoked, WaiterInfo,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::lease_id::LeaseId;
use crate::name::Name;
use crate::wire;

/// An answer of the server.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// The fields of every error.
#[derive(Debug, Deserialize)]
struct Said {
    error: String,
    code: String,
}

/// Answers to a batch, each with its own status.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    pub(super) results: Vec<serde_json::Value>,
}

impl Answer {
    /// The body of a 200; every other status is an error.
    pub(super) fn ok<T: DeserializeOwned>(self) -> Result<T> {
        if self.status == 200 { self.read() } else { Err(self.error()) }
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let message = "cannot decode the answer; check that this is a leasehold server of this version";
            Error::new(ErrorKind::Internal, message).with_source(error)
        })
    }

    /// The server's own code of what went wrong.
    fn code(&self) -> Option<String> {
        serde_json::from_slice::<Said>(&self.body).ok().map(|said| said.code)
    }

    /// The error, by the server's own code, or by the status if a proxy answered.
    fn error(&self) -> Error {
        let said = serde_json::from_slice::<Said>(&self.body).ok();
        let kind = match (self.status, said.as_ref().and_then(|said| wire::kind(&said.code))) {
            (401 | 403, _) => ErrorKind::AuthFailed,
            (429, _) => ErrorKind::RateLimited,
            (_, Some(kind)) => kind,
            (404 | 405, None) => ErrorKind::Unsupported,
            (400..=499, None) => ErrorKind::InvalidArgument,
            // Also while it drains: another server, or this one a little later, can answer.
            _ => ErrorKind::Unavailable,
        };
        let message = match said {
            Some(said) => said.error,
            None if kind == ErrorKind::Unsupported => "there is no leasehold server at this address".into(),
            None => format!("the server answered with status {}", self.status),
        };
        Error::new(kind, message)
    }
}

fn odd(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, format!("the server gave {what} that this client does not know"))
}

pub(super) fn attempt(answer: Answer) -> Result<Attempt> {
    match answer.status {
        200 => {
            let body: wire::Acquired = answer.read()?;
            let mut grant = grant(body.mode, body.limit, body.fencing_token, body.expires_in_ms)?;
            grant.waited = Duration::from_millis(body.waited_ms);
            (grant.renewals, grant.acquired_at_ms) = (body.renewals, body.acquired_at_ms);
            grant.expires_at_ms = Some(body.lease_expiry_ms);
            Ok(Attempt::Granted(grant))
        }
        409 => {
            let body: wire::Busy = answer.read()?;
            if !matches!(body.reason.as_str(), "HELD" | "WAIT_TIMEOUT") {
                return Err(answer.error());
            }
            Ok(Attempt::Busy(Busy {
                retry_in: Some(Duration::from_millis(body.recommended_retry_ms)),
                place: body.queue_place,
                queue_length: body.queue_length,
                owner: body.current_owner_id.map(Into::into),
                holder_left: body.current_expires_in_ms.map(Duration::from_millis),
            }))
        }
        410 => Ok(Attempt::Gone(gone(&answer.read::<wire::LeaseGone>()?.gone)?)),
        _ => Err(answer.error()),
    }
}

pub(super) fn renewed(value: serde_json::Value) -> Result<Renewed> {
    let status = value.get("status").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let answer = Answer { status: u16::try_from(status).unwrap_or(0), body: value.to_string().into_bytes() };
    match answer.status {
        200 => {
            let body: wire::Renewed = answer.read()?;
            let mut grant = grant(body.mode, body.limit, body.fencing_token, body.expires_in_ms)?;
            (grant.renewals, grant.acquired_at_ms) = (body.renewals, body.acquired_at_ms);
            grant.expires_at_ms = Some(body.lease_expiry_ms);
            Ok(Renewed::Held(grant))
        }
        410 => Ok(Renewed::Gone(gone(&answer.read::<wire::LeaseGone>()?.gone)?)),
        _ => Err(answer.error()),
    }
}

pub(super) fn released(answer: Answer) -> Result<Released> {
    let body: wire::Released = answer.ok()?;
    match body.gone {
        _ if body.released => Ok(Released::Done),
        Some(text) => Ok(Released::Gone(gone(&text)?)),
        None => Ok(Released::Gone(Gone::NotFound)),
    }
}

pub(super) fn revoked(answer: Answer) -> Result<Revoked> {
    if answer.status == 409 && answer.code().as_deref() == Some(wire::HOLDER_CHANGED) {
        return Ok(Revoked { leases: 0 });
    }
    answer.ok::<wire::Revoked>().map(|body| Revoked { leases: body.revoked })
}

fn gone(text: &str) -> Result<Gone> {
    wire::gone(text).ok_or_else(|| odd("a reason for a loss"))
}

fn grant(mode: wire::ModeName, limit: Option<u32>, fence: u64, left_ms: u64) -> Result<Grant> {
    let left = Duration::from_millis(left_ms);
    Ok(Grant::new(Fence::new(fence), read_mode(mode, limit)?, Some(left)))
}

fn read_mode(mode: wire::ModeName, limit: Option<u32>) -> Result<Mode> {
    wire::mode_of(mode, limit).map_err(|_| odd("a mode"))
}

pub(super) fn name_info(lock: wire::Lock) -> Result<NameInfo> {
    let id = |text: &str| LeaseId::parse(text).map_err(|_| odd("a digest"));
    let holder = |holder: wire::Holder| {
        let left = holder.expires_in_ms.unwrap_or_default();
        let mut grant = grant(holder.mode, holder.limit, holder.fencing_token, left)?;
        (grant.renewals, grant.acquired_at_ms) = (holder.renewals, holder.acquired_at_ms);
        grant.expires_at_ms = holder.lease_expiry_ms;
        Ok(HolderInfo {
            id: id(&holder.lease_digest)?,
            owner: holder.owner_id.into(),
            metadata: holder.metadata.map(Into::into),
            grant,
            revoked: holder.revoked,
        })
    };
    let waiter = |waiter: wire::Waiter| {
        Ok(WaiterInfo {
            id: id(&waiter.lease_digest)?,
            owner: waiter.owner_id.into(),
            mode: read_mode(waiter.mode, waiter.limit)?,
            waited: Duration::from_millis(waiter.waited_ms),
        })
    };
    Ok(NameInfo {
        name: Name::new(&lock.lock_name)?,
        version: lock.version,
        last_fence: Fence::new(lock.last_fencing_token),
        note: lock.note.map(|note| Note::new(note.text, Fence::new(note.fencing_token), note.revision)),
        // A server that does not send the count shows all holders.
        holder_count: lock.holder_count.max(lock.holders.len() as u64),
        holders: lock.holders.into_iter().map(holder).collect::<Result<_>>()?,
        waiters: lock.waiters.into_iter().map(waiter).collect::<Result<_>>()?,
        queue_length: lock.queue_length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_http_answers() {
        testkit::fuzz::fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/wire_answers.txt"), |input| {
            for status in [200, 400, 403, 404, 409, 410, 413, 429, 500, 503] {
                let answer = || Answer { status, body: input.to_vec() };
                match attempt(answer()) {
                    // Nothing counts as granted unless the server said so.
                    Ok(Attempt::Granted(_)) => assert_eq!(status, 200),
                    Ok(Attempt::Busy(_)) => assert_ne!(status, 200),
                    _ => {}
                }
                let _ = (released(answer()), revoked(answer()), answer().ok::<Batch>());
            }
            if let Ok(value) = serde_json::from_slice::<serde_json::Value>(input) {
                let _ = renewed(value);
            }
            if let Ok(lock) = serde_json::from_slice::<wire::Lock>(input)
                && let Ok(info) = name_info(lock.clone())
            {
                assert_eq!(info.name.as_str(), Name::new(&lock.lock_name).expect("a name").as_str());
            }
        });
    }
}
