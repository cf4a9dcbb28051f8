//! TLS by rustls: what each `sslmode` checks.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::error::{Error, Result};

/// `sslmode`, as libpq has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tls {
    Disable,
    /// If the server has it; anybody's.
    Prefer,
    /// Anybody's, unless the authorities are given.
    Require,
    /// One of a trusted authority.
    VerifyCa,
    /// One of a trusted authority, for this host.
    VerifyFull,
}

/// What `sslrootcert` says for the machine's own authorities.
const SYSTEM: &str = "system";

/// The files that a URL names.
#[derive(Default)]
pub(super) struct TlsFiles {
    pub(super) root: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

/// What rustls needs to know. `direct`: without asking the server first, which then wants to hear the protocol's name.
pub(super) fn client_config(mode: Tls, files: &TlsFiles, direct: bool) -> Result<ClientConfig> {
    if matches!(mode, Tls::Disable | Tls::Prefer) && files.root.is_some() {
        return Err(Error::invalid(
            "sslrootcert checks nothing with this sslmode; say sslmode=verify-full, or leave it out",
        ));
    }
    let public = match mode {
        Tls::Disable | Tls::Prefer | Tls::VerifyFull => false,
        Tls::Require => files.root.as_deref() == Some(SYSTEM),
        Tls::VerifyCa => files.root.as_deref().is_none_or(|root| root == SYSTEM),
    };
    if public {
        return Err(Error::invalid(
            "the machine's own authorities vouch for servers of anybody, so without a look at the name they prove nothing; \
             say `sslmode=verify-full`, or name a PEM file of your own authority with `sslrootcert`",
        ));
    }
    let provider = Arc::new(ring::default_provider());
    let checks_name = mode == Tls::VerifyFull;
    // As in libpq: whoever names authorities wants them to be asked.
    let checks_origin = match mode {
        Tls::Disable | Tls::Prefer => false,
        Tls::Require => files.root.is_some(),
        Tls::VerifyCa | Tls::VerifyFull => true,
    };
    let roots = if checks_origin { roots(files.root.as_deref())? } else { RootCertStore::empty() };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS cannot be set up").with_source(error))?;
    let builder = if checks_name {
        builder.with_root_certificates(roots)
    } else {
        let roots = checks_origin.then_some(roots);
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName { roots, provider }))
    };
    let mut config = match (&files.cert, &files.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            builder.with_client_auth_cert(certificates(cert, "sslcert")?, private_key(key)?).map_err(
                |error| Error::invalid("sslcert and sslkey do not belong together").with_source(error),
            )?
        }
        _ => return Err(Error::invalid("sslcert and sslkey are only of use together")),
    };
    if direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(config)
}

fn roots(file: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) if file != SYSTEM => {
            for certificate in certificates(file, "sslrootcert")? {
                roots.add(certificate).map_err(|error| {
                    Error::invalid("sslrootcert holds something that is no certificate of an authority")
                        .with_source(error)
                })?;
            }
        }
        _ => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(Error::invalid(
            "there are no authorities to check the server's certificate with; name a PEM file with sslrootcert",
        ));
    }
    Ok(roots)
}

// The errors of these files have no source: it would repeat the path, which comes from the URL.

fn certificates(file: &str, option: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(file).and_then(Iterator::collect).map_err(|_| {
        Error::invalid(format!("the file that {option} names cannot be read, or is not in PEM form"))
    })
}

fn private_key(file: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file)
        .map_err(|_| Error::invalid("the file that sslkey names cannot be read, or is not in PEM form"))
}

/// Checks that the server has the key of its certificate, and who issued that, if anybody is to be trusted; not
/// which host it is for.
#[derive(Debug)]
struct AnyName {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
