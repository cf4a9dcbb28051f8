//! Shared by the random histories of stores.

use leasehold::backend::Mode;

/// The modes of claims on one name, by claimant, for histories of one of four kinds.
pub fn modes(kind: u8) -> fn(usize) -> Mode {
    match kind {
        0 => |_| Mode::Exclusive,
        1 => |who| if who % 3 == 0 { Mode::Exclusive } else { Mode::Shared },
        2 => |_| Mode::Permit { limit: 3 },
        // Kinds that do not go together, and a semaphore without permits.
        _ => |who| match who % 5 {
            0 => Mode::Permit { limit: 2 },
            1 => Mode::Permit { limit: 0 },
            2 => Mode::Exclusive,
            _ => Mode::Shared,
        },
    }
}
