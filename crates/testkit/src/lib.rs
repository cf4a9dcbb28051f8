//! What the workspace's tests share: faulty backends, child processes, real servers, a TCP proxy, names of their own.

mod daemon;
pub mod faulty;
pub mod paused;
pub mod postgres;
pub mod process;
pub mod proxy;
