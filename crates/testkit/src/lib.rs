//! What the workspace's tests share: faulty backends, child processes, terminals, names of their own.

pub mod faulty;
pub mod paused;
pub mod process;
pub mod pty;
