//! What the workspace's tests share: faulty backends, child processes, a TCP proxy, names of their own.

pub mod faulty;
pub mod history;
pub mod paused;
pub mod process;
pub mod proxy;
