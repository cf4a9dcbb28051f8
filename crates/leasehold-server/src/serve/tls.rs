//! TLS certificates, which can be read again while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::Result;
use leasehold::tls::{self, Identity};
use parking_lot::RwLock;
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

/// The server's certificate, and the authority that its clients' certificates must come from.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads a certificate chain and its key, in PEM. With `client_ca`, only clients with a certificate of that
    /// authority are admitted.
    ///
    /// # Errors
    /// `InvalidArgument` if the files cannot be read or do not fit together.
    pub fn read(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Result<Self> {
        let current = RwLock::new(Arc::new(config(&cert, &key, client_ca.as_deref())?));
        Ok(Tls { cert, key, client_ca, current })
    }

    /// Reads the files again. Open connections stay open.
    ///
    /// # Errors
    /// As [`read`](Tls::read); the old certificate then stays in use.
    pub fn reload(&self) -> Result<()> {
        let new = Arc::new(config(&self.cert, &self.key, self.client_ca.as_deref())?);
        *self.current.write() = new;
        Ok(())
    }

    /// The path of the certificate file.
    pub(crate) fn path(&self) -> &Path {
        &self.cert
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read()).into()
    }
}

fn config(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<ServerConfig> {
    let clients =
        client_ca.map(|path| tls::authorities(path, &format!("client CA in {path:?}"))).transpose()?;
    let identity = Identity {
        cert,
        cert_is: &format!("certificate in {cert:?}"),
        key,
        key_is: &format!("key in {key:?}"),
    };
    let mut config = tls::server(&identity, clients)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
