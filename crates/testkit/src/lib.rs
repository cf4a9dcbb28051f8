//! What the workspace's tests share: faulty backends, child processes, a TCP proxy, throw-away servers.

pub mod faulty;
pub mod paused;
pub mod process;
pub mod redis;
pub mod proxy;
