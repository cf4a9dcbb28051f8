//! What a handle's `lock_id` holds: the lease id and the fence, so that any process can renew and release the lock.

use bext_plugin_api::locking::LockHandle;
use leasehold::{Fence, LeaseId};

/// Between the lease id and the fence; neither contains it.
const SEPARATOR: char = '.';

/// The `lock_id` of a grant.
pub(crate) fn lock_id(id: LeaseId, fence: Fence) -> String {
    format!("{}{SEPARATOR}{fence}", id.expose())
}

/// The lease id and the fence of a `lock_id`; `None` if this crate did not write it.
pub(crate) fn parse(text: &str) -> Option<(LeaseId, Fence)> {
    let (id, digits) = text.split_once(SEPARATOR)?;
    let grant = (LeaseId::parse(id).ok()?, Fence::new(digits.parse().ok()?));
    // One grant has one text: neither a sign nor missing zeros.
    (lock_id(grant.0, grant.1) == text).then_some(grant)
}

/// The fencing token of a handle; `None` if the handle is not from a [`LeaseholdPlugin`](crate::LeaseholdPlugin).
///
/// Pass it along with every write to what the lock protects, and let that refuse a write whose fence is below the
/// highest it has seen. Then a node that was paused past its ttl can do no harm.
///
/// ```
/// use bext_plugin_api::locking::LockingPlugin as _;
/// use leasehold_bext::{LeaseholdPlugin, PluginOptions, fence_of};
///
/// let plugin = LeaseholdPlugin::connect("memory:", PluginOptions::default())?;
/// let first = plugin.try_lock("reports/nightly", 30_000)?.expect("free");
/// let fence = fence_of(&first).expect("a handle of this plugin");
/// plugin.release(first)?;
///
/// let second = plugin.try_lock("reports/nightly", 30_000)?.expect("free");
/// assert!(fence_of(&second) > Some(fence));
/// # plugin.release(second)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn fence_of(handle: &LockHandle) -> Option<Fence> {
    parse(&handle.lock_id).map(|(_, fence)| fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_id_is_read_back_exactly() {
        let id = LeaseId::random();
        for number in [0, 7, 459_000_000_000_001, Fence::MAX.get(), u64::MAX] {
            let text = lock_id(id, Fence::new(number));
            assert_eq!(parse(&text), Some((id, Fence::new(number))), "{number}");
        }
    }

    #[test]
    fn any_other_text_is_refused() {
        let id = LeaseId::random();
        let (id, right) = (id.expose(), lock_id(id, Fence::new(7)));
        let wrong = [
            String::new(),
            ".".into(),
            id.into(),
            format!("{id}."),
            format!("{id}.7"),
            format!("{id}.+00000000000007"),
            format!("{id}.99999999999999999999"),
            format!("{}.000000000000007", &id[1..]),
            format!("{right} "),
            format!("{right}.1"),
            "550e8400-e29b-41d4-a716-446655440000".into(),
        ];
        for text in wrong {
            assert_eq!(parse(&text), None, "{text:?}");
        }
    }
}
