//! What the workspace's tests share: faulty backends, child processes, a TCP proxy, throw-away servers.
//! What the workspace's tests share: faulty backends, child processes, real servers, names of their own.

mod daemon;
pub mod faulty;
pub mod paused;
pub mod postgres;
pub mod process;
pub mod redis;
pub mod proxy;
