//! Certificates for a test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Writes a file that only its owner can read.
pub(crate) fn write(path: PathBuf, text: &str) -> PathBuf {
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

/// An authority that signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn write(&self, path: PathBuf) -> PathBuf {
        let certificate: &Certificate = self.0.as_ref();
        write(path, &certificate.pem())
    }

    /// Makes a certificate for this host and its key, in files of this name.
    pub(crate) fn sign(&self, dir: &Path, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.into()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (
            write(dir.join(format!("{name}.pem")), &certificate.pem()),
            write(dir.join(format!("{name}.key")), &key.serialize_pem()),
        )
    }
}
