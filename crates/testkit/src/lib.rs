//! What the workspace's tests share: faulty backends, child processes, throw-away servers.

pub mod faulty;
pub mod paused;
pub mod process;
pub mod redis;
