//! What the workspace's tests share: faulty backends, child processes, terminals, a browser, throw-away servers, a TCP proxy.

pub mod browser;
mod daemon;
pub mod faulty;
pub mod history;
pub mod paused;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod pty;
pub mod redis;
