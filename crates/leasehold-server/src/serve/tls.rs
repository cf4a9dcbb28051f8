//! Certificates, read again when told to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The certificate of a server, and whose client certificates it demands.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads a chain of certificates and its key, in PEM. With `client_ca` only clients with a certificate of
    /// that authority get in.
    ///
    /// # Errors
    /// `InvalidArgument` if the files cannot be read or do not fit together.
    pub fn read(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Result<Self> {
        let current = RwLock::new(Arc::new(config(&cert, &key, client_ca.as_ref())?));
        Ok(Tls { cert, key, client_ca, current })
    }

    /// Reads the files again. Connections that are there stay.
    ///
    /// # Errors
    /// As [`read`](Tls::read); the old certificate stays in use then.
    pub fn reload(&self) -> Result<()> {
        let new = Arc::new(config(&self.cert, &self.key, self.client_ca.as_ref())?);
        *self.current.write() = new;
        Ok(())
    }

    /// The file of its certificate.
    pub(crate) fn path(&self) -> &Path {
        &self.cert
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read()).into()
    }
}

fn bad(what: &str, path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the {what} in {path:?} cannot be used"))
        .with_source(error)
}

fn config(cert: &Path, key_file: &Path, client_ca: Option<&PathBuf>) -> Result<ServerConfig> {
    let chain = |path: &Path, what: &'static str| {
        CertificateDer::pem_file_iter(path)
            .and_then(|certs| certs.collect::<std::result::Result<Vec<_>, _>>())
            .map_err(|error| bad(what, path, error))
    };
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| bad("key", key_file, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("certificate", cert, error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in chain(path, "client CA")? {
                roots.add(root).map_err(|error| bad("client CA", path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad("client CA", path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain(cert, "certificate")?, key)
        .map_err(|error| bad("certificate", cert, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
