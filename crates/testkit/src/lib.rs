//! What the workspace's tests share: faulty backends, child processes, names of their own.

pub mod faulty;
pub mod paused;
pub mod process;
