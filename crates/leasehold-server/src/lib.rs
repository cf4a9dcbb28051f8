//! The leasehold lock server: leases over HTTP, for every language, on any leasehold store.
//!
//! [`App`] is one store with its settings; [`app`] is its routes, [`serve`] answers them on a listener until told
//! to stop. `docs/server.md` is the page for people who run one.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_server::{App, Settings, serve};
//!
//! let locks = leasehold::Locks::connect("memory:").await?;
//! let app = App::new(locks, Settings::default())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! serve(app, listener, None, std::future::ready(())).await?; // ends at once: it is told to
//! # Ok(())
//! # }
//! ```

mod acquire;
mod app;
mod dashboard;
mod digits;
mod findings;
mod gate;
mod history;
mod listening;
mod log;
mod looking;
mod metrics;
mod openapi;
mod problem;
mod reading;
mod reload;
mod serve;
mod settings;
mod sole;
mod sweep;
mod tls;
mod token;
mod verbs;

pub use app::{App, app};
pub use findings::Examiner;
pub use listening::{Listeners, listen};
pub use log::{Log, LogForm};
pub use serve::{serve, serve_figures};
pub use settings::Settings;
pub use sole::SoleServer;
pub use tls::Tls;
pub use token::{Limits, NewToken, Scope, Tokens, Verb};
