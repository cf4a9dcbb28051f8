//! The certificates of the server and of the client, and the errors when they are refused.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, RootCertStore};
use tokio_rustls::TlsConnector;

use super::address::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::tls::{self, Identity};

/// Makes the TLS connector for the server of these options.
pub(super) fn connector(options: &Options) -> Result<(TlsConnector, ServerName<'static>)> {
    let roots = match &options.ca {
        // A bundle may contain certificates of other kinds.
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(tls::certificates(path, "CA")?);
            roots
        }
        None => tls::system_authorities(),
    };
    let identity = options.identity.as_ref().map(|(cert, key)| Identity {
        cert,
        cert_is: "certificate",
        key,
        key_is: "key",
    });
    let config = tls::client(|builder| builder.with_root_certificates(roots), identity)?;
    let name = ServerName::try_from(options.host.clone()).map_err(|error| {
        Error::invalid("the host name of the URL is not valid for TLS").with_source(error)
    })?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// The error for a TLS connection that failed.
pub(super) fn failed(error: io::Error) -> Error {
    let refused = refusal(&error);
    let unavailable = |message: &'static str| Error::new(ErrorKind::Unavailable, message);
    let told = refused.or_else(|| match fault(&error)? {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(unavailable(
            "the server's certificate is not signed by a trusted authority; name its authority with `ca` (`--cacert`)",
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(unavailable("the server's certificate is for a different host than the one in the URL")),
        rustls::Error::InvalidCertificate(_) => Some(unavailable("the server's certificate is not valid")),
        rustls::Error::InvalidMessage(_) => {
            Some(unavailable("the server does not speak TLS; write http:, or check the port"))
        }
        _ => None,
    });
    told.unwrap_or_else(|| unavailable("cannot set up TLS with the server")).with_source(error)
}

/// If the server has refused our certificate, or wants one: an error that says so.
pub(super) fn refusal(error: &(dyn StdError + 'static)) -> Option<Error> {
    use AlertDescription as Alert;
    let rustls::Error::AlertReceived(alert) = fault(error)? else { return None };
    let message = match alert {
        Alert::CertificateRequired => {
            "the server requires a client certificate; name one with `cert` and `key` (`--cert`)"
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::DecryptError
        | Alert::AccessDenied => {
            "the server rejected the client certificate; check that its authority for clients signed it"
        }
        _ => return None,
    };
    Some(Error::new(ErrorKind::AuthFailed, message))
}

/// The TLS error, however it is wrapped.
fn fault<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // `source` of an I/O error skips the error that it wraps; `get_ref` does not.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
