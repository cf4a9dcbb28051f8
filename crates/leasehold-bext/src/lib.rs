#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "conformance")]
pub mod conformance;
mod handle;
mod kept;
mod options;
mod plugin;

pub use handle::fence_of;
pub use options::PluginOptions;
pub use plugin::LeaseholdPlugin;
