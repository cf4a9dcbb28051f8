//! What the workspace's tests share: faulty backends, child processes and trials by them, throw-away servers,
//! a TCP proxy before them.

pub mod faulty;
pub mod history;
pub mod paused;
pub mod process;
pub mod proxy;
pub mod redis;
