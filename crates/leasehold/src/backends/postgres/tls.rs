//! TLS by rustls: what each `sslmode` checks.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier,
};

use crate::error::{Error, Result};
use crate::tls::{self, Identity};

/// `sslmode`, as libpq has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tls {
    Disable,
    /// TLS if the server has it; any certificate.
    Prefer,
    /// TLS required; any certificate, unless the authorities are given.
    Require,
    /// A certificate of a trusted authority.
    VerifyCa,
    /// A certificate of a trusted authority, for this host.
    VerifyFull,
}

/// The value of `sslrootcert` for the machine's own authorities.
const SYSTEM: &str = "system";

/// The files that a URL names.
#[derive(Default)]
pub(super) struct TlsFiles {
    pub(super) root: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

/// Makes the rustls configuration. `direct`: TLS without asking the server first, which then wants the protocol's
/// name.
pub(super) fn client_config(mode: Tls, files: &TlsFiles, direct: bool) -> Result<ClientConfig> {
    if matches!(mode, Tls::Disable | Tls::Prefer) && files.root.is_some() {
        return Err(Error::invalid(
            "`sslrootcert` has no effect with this `sslmode`; set `sslmode=verify-full`, or remove `sslrootcert`",
        ));
    }
    let public = match mode {
        Tls::Disable | Tls::Prefer | Tls::VerifyFull => false,
        Tls::Require => files.root.as_deref() == Some(SYSTEM),
        Tls::VerifyCa => files.root.as_deref().is_none_or(|root| root == SYSTEM),
    };
    if public {
        return Err(Error::invalid(
            "this `sslmode` does not check the host name, so it is not safe with the machine's own authorities; set `sslmode=verify-full`, or name a PEM file of your own authority with `sslrootcert`",
        ));
    }
    let roots = match (&files.root, mode) {
        // As in libpq: if a root file is given, it is used, even with `require`.
        (Some(file), _) if file != SYSTEM => Some(tls::authorities(file, "file of `sslrootcert`")?),
        (_, Tls::VerifyFull) => Some(tls::system_authorities()),
        _ => None,
    };
    if roots.as_ref().is_some_and(RootCertStore::is_empty) {
        return Err(Error::invalid(
            "this machine has no certificate authorities to check the server with; name a PEM file with `sslrootcert`",
        ));
    }
    let identity = match (&files.cert, &files.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some(Identity {
            cert: cert.as_ref(),
            cert_is: "file of `sslcert`",
            key: key.as_ref(),
            key_is: "file of `sslkey`",
        }),
        _ => return Err(Error::invalid("`sslcert` and `sslkey` must be given together")),
    };
    let verify = |builder: ConfigBuilder<ClientConfig, WantsVerifier>| match roots {
        Some(roots) if mode == Tls::VerifyFull => builder.with_root_certificates(roots),
        roots => {
            let verifier = AnyName { roots, provider: tls::provider() };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = tls::client(verify, identity)?;
    if direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(config)
}

/// Checks that the server has the key of its certificate and, if authorities are given, who issued it; not which host
/// it is for.
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
