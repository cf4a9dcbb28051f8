//! Sets up the store: options besides the URL.

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

    /// Sets how long an answer may take before the call fails and the connection is replaced. Default 2 s.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.address.response_timeout = timeout;
        self
    }

    /// Sets how long connecting may take, including TLS and login. Default 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.address.connect_timeout = timeout;
        self
    }

    /// Makes every grant and renewal count only when this many replicas have it (`WAIT`). Zero, the default, does not
    /// wait.
    ///
    /// If the replicas do not confirm in time, the call fails with `Unavailable`. As after any fault it may have taken
    /// effect: the same claim again asks the replicas again, and a release gives it up.
    #[must_use]
    pub fn wait_replicas(mut self, replicas: u32, timeout: Duration) -> Self {
        self.address.wait_replicas = (replicas > 0).then_some((replicas, timeout));
        self
    }

    /// Logs in to the sentinels with this password, and this user if given. Without it the client sends no login.
    #[must_use]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        if let Some(user) = user {
            self.address.set_sentinel_user(user);
        }
        self.address.set_sentinel_password(password);
        self
    }

    /// Trusts only certificates that this authority, in PEM, has signed.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.address.set_root_certificate(pem.into());
        self
    }

    /// Shows this certificate to the server; certificate and key in PEM.
    #[must_use]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.address.set_client_certificate(pem.into(), key.into());
        self
    }

    /// Connects, and checks the server.
    ///
    /// # Cancel safety
    /// If dropped, nothing is left behind.
    ///
    /// # Errors
    /// `InvalidArgument` for certificates without TLS, for a database that the server does not have, and for a cluster
    /// node addressed as a single server, or the other way round; `Unsupported` for a Redis before 6.2; `AuthFailed`
    /// if the server refuses the login; `Unavailable` if it cannot be reached.
    pub async fn connect(self) -> Result<Redis> {
        Redis::open(Arc::new(self.address), None).await
    }
}
