//! What was done and seen: [records](record) of one size in a file per process, and the [setting] in which it was.
//!
//! A directory holds one run: `setting.json`, a file of records per worker process (`worker-N`), `resource` by
//! the protected resource, `supervisor` by the one who makes faults and watches for stalls.

pub mod record;
pub mod setting;
