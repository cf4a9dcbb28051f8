//! What acquires brought, in the words of the vectors.

use leasehold::{Error, ErrorKind, Guard, GuardState, LostReason, LostSignal};
use serde_json::Value;

/// A lock that was acquired, released by now or not.
pub(crate) struct Held {
    pub(crate) fence: u64,
    pub(crate) lost: LostSignal,
    pub(crate) guard: Option<Guard>,
}

impl Held {
    pub(crate) fn new(guard: Guard) -> Self {
        Held { fence: guard.fence().get(), lost: guard.lost(), guard: Some(guard) }
    }

    /// `held` or `lost`, by a look of its holder.
    pub(crate) fn look(&self) -> &'static str {
        match &self.guard {
            Some(guard) if guard.check().is_ok() => "held",
            _ => "lost",
        }
    }

    /// Releases it, if that has not happened yet.
    pub(crate) async fn release(&mut self) -> Result<&'static str, Error> {
        let Some(guard) = self.guard.take() else { return Ok("gone") };
        Ok(if guard.release().await? == GuardState::Released { "released" } else { "gone" })
    }
}

/// The kind of an error in the words of the vectors.
pub(crate) fn kind(error: &Error) -> String {
    let mut words = String::new();
    for letter in format!("{:?}", error.kind()).chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

pub(crate) fn reason(reason: LostReason) -> String {
    match reason {
        LostReason::Refused(gone) => gone.as_str().into(),
        LostReason::DeadlinePassed => "deadline_passed".into(),
        LostReason::MaxHold => "max_hold".into(),
        other => format!("{other:?}"),
    }
}

/// Whether an error says that the network or the server failed.
pub(crate) fn is_fault(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NetworkTimeout | ErrorKind::Overloaded)
}

/// Whether this is what the step expects, or one of several such.
pub(crate) fn suits(seen: &str, expected: &Value) -> bool {
    match expected {
        Value::Array(any) => any.iter().any(|one| suits(seen, one)),
        one => one.as_str() == Some(seen),
    }
}

pub(crate) fn demand(seen: &str, expected: &Value) -> Result<(), String> {
    if suits(seen, expected) { Ok(()) } else { Err(format!("saw {seen}, expected {expected}")) }
}
