//! What refuses stale fences: marks in stores, `Fenced`, the `tower` layer; and a writer that is really paused.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod layer;
mod marks;
mod paused;

use leasehold::{Fence, WriteFence};

pub(crate) fn fence(number: u64) -> WriteFence {
    WriteFence::received(Fence::new(number)).unwrap()
}
