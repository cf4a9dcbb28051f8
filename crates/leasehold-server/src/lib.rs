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
//! serve(app, listener, None, std::future::ready(())).await?; // `ready` ends it at once
//! # Ok(())
//! # }
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("the leasehold server builds on Linux only. Clients on other systems use it over HTTP");

mod acquisition;
mod app;
mod dashboard;
mod digits;
mod extract;
mod handlers;
mod history;
mod log;
mod look;
mod metrics;
mod middleware;
mod problem;
mod serve;
mod settings;
mod sweep;
mod token;
mod turns;

pub use app::App;
pub use handlers::app;
pub use handlers::findings::Examiner;
pub use log::{Log, LogForm};
pub use serve::listen::{Listeners, listen};
pub use serve::probe::serve_probe;
pub use serve::sole::SoleServer;
pub use serve::tls::Tls;
pub use serve::{serve, serve_figures};
pub use settings::Settings;
pub use token::{Limits, NewToken, Scope, Tokens, Verb};
