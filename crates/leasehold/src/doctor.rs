//! Findings about how a store is set up: what each one risks and how to fix it.

use std::fmt;

use crate::client::locks::Locks;
use crate::error::Result;
use crate::stores;

/// The finding that says how far the locks of a file reach.
#[cfg(any(feature = "http", all(feature = "sqlite", target_os = "linux")))]
pub(crate) const ONLY_HERE: &str = "locks hold between the processes of this machine, and no further";

/// How a finding ends if its file is lost when the machine restarts.
#[cfg(any(feature = "file", feature = "http", feature = "sqlite"))]
pub(crate) const IN_MEMORY: &str = ", in memory";

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Two clients could hold the same lock, or a lock could be lost without its holder noticing.
    Risk,
}

/// One property that was examined. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What can go wrong because of it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub risk: Option<String>,
    /// What to do about it.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub fix: Option<String>,
}

impl Finding {
    /// A finding that all is as it should be.
    pub fn ok(what: impl Into<String>) -> Self {
        Finding { level: Level::Ok, what: what.into(), risk: None, fix: None }
    }

    /// A finding that is good to know.
    pub fn note(what: impl Into<String>) -> Self {
        Finding { level: Level::Note, ..Finding::ok(what) }
    }

    /// A finding that is a risk to safety.
    pub fn risk(what: impl Into<String>, risk: impl Into<String>, fix: impl Into<String>) -> Self {
        Finding { level: Level::Risk, ..Finding::ok(what) }.because(risk, fix)
    }

    /// The same finding, with what can go wrong and what to do about it.
    #[must_use]
    pub fn because(mut self, risk: impl Into<String>, fix: impl Into<String>) -> Self {
        (self.risk, self.fix) = (Some(risk.into()), Some(fix.into()));
        self
    }

    /// The same finding, about one part of a store.
    #[must_use]
    pub(crate) fn about(mut self, part: &str) -> Self {
        self.what = format!("{part}: {}", self.what);
        self
    }

    /// The same finding, for a store behind a server; `None` if the server makes it untrue. The server's clients
    /// survive a restart of its machine, so they may believe in leases that are gone.
    #[cfg(feature = "http")]
    pub fn behind_a_server(self) -> Option<Self> {
        match &*self.what {
            ONLY_HERE => None,
            what if what.ends_with(IN_MEMORY) => Some(Finding::risk(
                what,
                "a restart of the server's machine frees every lock while its holder still believes that it has it",
                "keep it on a disk",
            )),
            _ => Some(self),
        }
    }

    /// Logs a warning if this finding is a risk.
    #[cfg(feature = "redis")]
    pub(crate) fn log(&self) {
        if self.level == Level::Risk {
            let line = self.to_string();
            crate::engine::reporter::log(move || tracing::warn!("{line}"));
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        for (sign, text) in [(": ", &self.risk), ("; ", &self.fix)] {
            if let Some(text) = text {
                write!(f, "{sign}{text}")?;
            }
        }
        Ok(())
    }
}

/// Examines how the store of a URL is set up: what it promises in this state, and what it risks.
///
/// Each finding that is not `Ok` says what can go wrong and what to do about it. This opens the store as a client does,
/// so a missing SQLite file or missing PostgreSQL tables are made; it changes nothing else. `leasehold doctor` prints
/// these findings, and those of its own trials; `leasehold run` and `leasehold serve` print the risks among them. Of
/// library clients, only one of a Redis server logs risks by itself, when it connects; on other stores call this, or
/// [`Locks::findings`].
///
/// # Cancel safety
/// If dropped, nothing is left behind.
///
/// # Errors
/// As [`Locks::connect`](crate::Locks::connect).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// for finding in leasehold::doctor::examine("memory:").await? {
///     println!("{finding}");
/// }
/// # Ok(())
/// # }
/// ```
pub async fn examine(url: &str) -> Result<Vec<Finding>> {
    stores::examine(url.to_owned()).await
}

/// What [`preview`] found out about a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// What could be examined.
    pub findings: Vec<Finding>,
    /// What could not, because it does not exist yet, one line each.
    pub unchecked: Vec<String>,
}

/// As [`examine`], but creates no database file and no table of a store that has not been used yet. (The directory of
/// `file:` is made, as by [`examine`].)
///
/// # Cancel safety
/// If dropped, nothing is left behind.
///
/// # Errors
/// As [`examine`].
pub async fn preview(url: &str) -> Result<Preview> {
    stores::preview(url.to_owned()).await
}

impl Locks {
    /// Examines how this client's store is set up, as [`examine`] does, over the connections that the client has. (The
    /// nodes of a quorum are connected to once more.)
    ///
    /// Empty for a client that was not made from a URL: what its store risks is not known here.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind.
    ///
    /// # Errors
    /// Faults of the store.
    pub async fn findings(&self) -> Result<Vec<Finding>> {
        match &self.client.examiner {
            Some(examiner) => examiner.findings().await,
            None => Ok(Vec::new()),
        }
    }
}

/// Whether a host is this machine, as far as its name shows.
#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

/// The finding for a connection to a store over a network without TLS.
#[cfg(any(feature = "http", feature = "postgres", feature = "redis"))]
pub(crate) fn in_the_clear(fix: &str) -> Finding {
    Finding::note("what is said to it over the network is not encrypted").because(
        "who can listen has the lease ids and the password or token, and can release every lock",
        fix,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_why_and_how() {
        let finding = Finding::risk("it forgets", "two hold it", "make it remember").about("node 2");
        assert_eq!(finding.to_string(), "node 2: it forgets: two hold it; make it remember");
        assert_eq!(Finding::ok("fine").to_string(), "fine");
        assert!(Level::Risk > Level::Note && Level::Note > Level::Ok);
    }

    #[cfg(feature = "http")]
    #[test]
    fn what_is_harmless_on_one_machine_may_not_be_behind_a_server() {
        assert_eq!(Finding::note(ONLY_HERE).behind_a_server(), None);
        let forgets = Finding::note(format!("it is on tmpfs{IN_MEMORY}")).behind_a_server().unwrap();
        assert_eq!(forgets.level, Level::Risk);
        let fine = Finding::ok("it is on ext4, a file system of this machine");
        assert_eq!(fine.clone().behind_a_server(), Some(fine));
    }

    #[cfg(any(feature = "http", feature = "redis"))]
    #[test]
    fn this_machine_is_known_by_its_usual_names() {
        for (host, here) in
            [("localhost", true), ("127.0.0.2", true), ("[::1]", true), ("db", false), ("10.0.0.1", false)]
        {
            assert_eq!(is_loopback(host), here, "{host}");
        }
    }
}
