//! The histories of a run: [records](record) of one size in a file per process, and the [setting] of the run.
//!
//! A directory contains one run: `setting.json`, a file of records per worker process (`worker-N`), `resource` by the
//! protected resource, `supervisor` by the process that injects faults and watches for stalls.

pub mod record;
pub mod setting;
