//! Setting up the store: what can be said beside the URL.

use std::sync::Arc;
use std::time::Duration;

use super::Redis;
use super::address::Address;
use crate::error::Result;

/// Sets up a [`Redis`].
#[derive(Debug, Clone)]
pub struct RedisBuilder {
    address: Address,
}

impl RedisBuilder {
    pub(super) fn new(address: Address) -> Self {
        RedisBuilder { address }
    }

    /// Sets how long an answer may take before the call fails and the connection is replaced: 2 s unless set.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.address.response_timeout = timeout;
        self
    }

    /// Sets how long connecting may take, with TLS and login: 2 s unless set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.address.connect_timeout = timeout;
        self
    }

    /// Lets every grant and renewal count only when this many replicas have it (`WAIT`). If they do not confirm it in
    /// time, the call fails with `Unavailable`, and as after any fault it may have taken effect: the same claim again
    /// asks the replicas again, a release gives it up. Zero: no waiting, as unless set.
    #[must_use]
    pub fn wait_replicas(mut self, replicas: u32, timeout: Duration) -> Self {
        self.address.wait_replicas = (replicas > 0).then_some((replicas, timeout));
        self
    }

    /// Logs in to the sentinels with this password, and this user if there is one; otherwise they are asked without.
    #[must_use]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        if let Some(user) = user {
            self.address.set_sentinel_user(user);
        }
        self.address.set_sentinel_password(password);
        self
    }

    /// Trusts the certificates that this authority, in PEM, has signed, and no others.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.address.set_root_certificate(pem.into());
        self
    }

    /// Shows this certificate, with its key, both in PEM, to the server.
    #[must_use]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.address.set_client_certificate(pem.into(), key.into());
        self
    }

    /// Connects, and checks the server.
    ///
    /// # Cancel safety
    /// Dropped, nothing is left.
    ///
    /// # Errors
    /// `InvalidArgument` for certificates without TLS, for a database that the server does not have, and for a node of a
    /// cluster that is named as a single server, or the other way round; `Unsupported` for a Redis before 6.2;
    /// `AuthFailed` if it does not let us in; `Unavailable` if it cannot be reached.
    pub async fn connect(self) -> Result<Redis> {
        Redis::open(Arc::new(self.address), None).await
    }
}
