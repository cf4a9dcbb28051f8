//! TLS by rustls, set up in one place for the stores and the server: provider, PEM files, authorities, identities.
//!
//! Redis takes PEM as bytes, because its driver builds its own configuration; it needs only [`read`]. This module is
//! hidden from the documentation: it is public only for the server.

use std::error::Error as StdError;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};

use crate::error::{Error, Result};

/// The one crypto provider: no other crate of a program can change it, and none has to be installed.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn unusable(what: &str, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
    Error::invalid(format!("the {what} cannot be used")).with_source(error)
}

/// Reads the bytes of a file. The error calls the file `what` instead of its path, which may come from a URL.
///
/// # Errors
/// `InvalidArgument` if it cannot be read.
pub fn read(path: impl AsRef<Path>, what: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::invalid(format!("the {what} cannot be read")).with_source(error))
}

/// The certificates in a PEM file.
///
/// # Errors
/// `InvalidArgument` if there is none, or one cannot be read.
pub fn certificates(path: impl AsRef<Path>, what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path, what)?;
    let all = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    match all {
        Ok(all) if all.is_empty() => Err(unusable(what, "the file holds no certificate in PEM form")),
        all => all.map_err(|error| unusable(what, error)),
    }
}

/// The authorities in a PEM file.
///
/// # Errors
/// `InvalidArgument` if there is none, or one cannot be read.
pub fn authorities(path: impl AsRef<Path>, what: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, what)? {
        roots.add(certificate).map_err(|error| unusable(what, error))?;
    }
    Ok(roots)
}

/// The authorities that this machine trusts. There may be none.
pub fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// A certificate file and a key file, both PEM, and what errors call them.
#[derive(Debug)]
pub struct Identity<'a> {
    /// The certificate, followed by the chain up to its authority.
    pub cert: &'a Path,
    /// What errors call the certificate.
    pub cert_is: &'a str,
    /// The private key.
    pub key: &'a Path,
    /// What errors call the key.
    pub key_is: &'a str,
}

impl Identity<'_> {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = PrivateKeyDer::from_pem_slice(&read(self.key, self.key_is)?)
            .map_err(|error| unusable(self.key_is, error))?;
        Ok((certificates(self.cert, self.cert_is)?, key))
    }

    fn refused(&self, error: rustls::Error) -> Error {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            let message = format!("the {} and the {} do not belong together", self.cert_is, self.key_is);
            return Error::invalid(message).with_source(error);
        }
        unusable(self.cert_is, error)
    }
}

/// Makes a client's configuration. `verify` says how to check the server's certificate.
///
/// # Errors
/// `InvalidArgument` if the identity cannot be used.
pub fn client(
    verify: impl FnOnce(
        ConfigBuilder<ClientConfig, WantsVerifier>,
    ) -> ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<Identity<'_>>,
) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS provider", error))?;
    let builder = verify(builder);
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = identity.load()?;
    builder.with_client_auth_cert(chain, key).map_err(|error| identity.refused(error))
}

/// Makes a server's configuration. With `clients`, only clients with a certificate from these authorities may connect.
///
/// # Errors
/// `InvalidArgument` if the identity or the authorities cannot be used.
pub fn server(identity: &Identity<'_>, clients: Option<RootCertStore>) -> Result<ServerConfig> {
    let (chain, key) = identity.load()?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS provider", error))?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable("client CA", error))?)
        }
    };
    builder.with_single_cert(chain, key).map_err(|error| identity.refused(error))
}
