#![doc = include_str!("../../../README.md")]

pub mod backend;
pub mod clock;
mod error;
mod fence;
mod lease_id;
mod name;
pub mod state;

pub use backend::{Backend, Gone, Info, Mode};
pub use error::{Error, ErrorKind, Result};
pub use fence::Fence;
pub use lease_id::LeaseId;
pub use name::{Name, hash_name, storage_key};
