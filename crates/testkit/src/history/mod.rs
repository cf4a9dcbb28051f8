//! A trial by many processes: they take and give back one lock, some are killed and some are stopped, and what
//! each wrote down is judged afterwards.
//!
//! [`record`] is what a process writes, [`worker`] the process, [`run`] starts, kills and stops them, and
//! [`check`] reads it all and names the invariant that was broken.

pub mod check;
pub mod record;
pub mod run;
pub mod worker;
