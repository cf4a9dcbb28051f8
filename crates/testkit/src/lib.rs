//! What the workspace's tests share: faulty backends, stuck calls, child processes, terminals, a browser, throw-away servers, a TCP proxy.

pub mod blocked;
pub mod browser;
pub mod faulty;
pub mod history;
pub mod notes;
pub mod paused;
pub mod process;
pub mod pty;

pub use leasehold_torture::proxy;
pub use leasehold_torture::servers::{postgres, redis};
