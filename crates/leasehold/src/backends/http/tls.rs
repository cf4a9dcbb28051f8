//! Who the server is, and who we are: certificates, and what it means when they are refused.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, RootCertStore};
use tokio_rustls::TlsConnector;

use super::address::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::tls::{self, Identity};

/// What makes TLS connections to the server of these options.
pub(super) fn connector(options: &Options) -> Result<(TlsConnector, ServerName<'static>)> {
    let roots = match &options.ca {
        // A bundle may hold certificates of other kinds.
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
    let name = ServerName::try_from(options.host.clone())
        .map_err(|error| Error::invalid("the host name cannot be used").with_source(error))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Why no TLS connection came about.
pub(super) fn failed(error: io::Error) -> Error {
    let refused = refusal(&error);
    let unavailable = |message: &'static str| Error::new(ErrorKind::Unavailable, message);
    let told = refused.or_else(|| match fault(&error)? {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(unavailable(
            "the server's certificate was signed by nobody who is trusted here; name its authority (ca, --cacert)",
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(unavailable("the server's certificate is for another host than the one in the URL")),
        rustls::Error::InvalidCertificate(_) => Some(unavailable("the server's certificate is not valid")),
        rustls::Error::InvalidMessage(_) => {
            Some(unavailable("what answers does not speak TLS; is it http:, or another port?"))
        }
        _ => None,
    });
    told.unwrap_or_else(|| unavailable("the server cannot be reached by TLS")).with_source(error)
}

/// If the server has refused our certificate, or wants one: an error that says so.
pub(super) fn refusal(error: &(dyn StdError + 'static)) -> Option<Error> {
    use AlertDescription as Alert;
    let rustls::Error::AlertReceived(alert) = fault(error)? else { return None };
    let message = match alert {
        Alert::CertificateRequired => "the server wants a certificate; name one and its key (cert, --cert)",
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::DecryptError
        | Alert::AccessDenied => {
            "the server does not accept our certificate; is it of its authority for clients?"
        }
        _ => return None,
    };
    Some(Error::new(ErrorKind::AuthFailed, message))
}

/// What TLS says, wherever it is wrapped.
fn fault<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // The source of an I/O error is that of what it wraps, not what it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
