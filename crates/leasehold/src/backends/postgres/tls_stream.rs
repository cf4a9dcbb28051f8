//! The driver's connections over rustls, bound to the server's certificate at login where possible.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect};
use tokio_rustls::TlsConnector;

use super::socket::SocketStream;

/// A handshake to come. Also made where there will be no TLS, as on a Unix socket: a bad name fails only when it is
/// needed.
pub(crate) struct Handshake {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) host: String,
}

impl TlsConnect<SocketStream> for Handshake {
    type Stream = TlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsStream>> + Send>>;

    fn connect(self, stream: SocketStream) -> Self::Future {
        Box::pin(async move {
            let host = ServerName::try_from(self.host).map_err(io::Error::other)?;
            TlsConnector::from(self.config).connect(host, stream).await.map(TlsStream)
        })
    }
}

/// A connection over TLS.
pub(crate) struct TlsStream(tokio_rustls::client::TlsStream<SocketStream>);

impl tokio_postgres::tls::TlsStream for TlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificate = self.0.get_ref().1.peer_certificates().and_then(|all| all.first());
        match certificate.and_then(|certificate| end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The `tls-server-end-point` of RFC 5929: the certificate's hash, by the hash function of its own signature; MD5 and
/// SHA-1 count as SHA-256. `None` where that is ambiguous.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    // The object identifiers of signatures: RSA's begin with 1.2.840.113549.1.1, ECDSA's with 1.2.840.10045.4.
    const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: [u8; 6] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
    let algorithm = signature_algorithm(certificate)?;
    let own = algorithm.strip_prefix(&RSA).map(|rest| (true, rest));
    match own.or_else(|| algorithm.strip_prefix(&ECDSA).map(|rest| (false, rest)))? {
        (true, [4 | 5 | 11]) | (false, [1] | [3, 2]) => Some(Sha256::digest(certificate).to_vec()),
        (true, [12]) | (false, [3, 3]) => Some(Sha384::digest(certificate).to_vec()),
        (true, [13]) | (false, [3, 4]) => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// `Certificate ::= SEQUENCE { tbsCertificate, SEQUENCE { algorithm, … }, … }`: the algorithm's number.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const NUMBER: u8 = 0x06;
    let (inside, _) = element(certificate, SEQUENCE)?;
    let (_, after) = element(inside, SEQUENCE)?;
    let (identifier, _) = element(after, SEQUENCE)?;
    Some(element(identifier, NUMBER)?.0)
}

/// The content of a DER element of this kind, and what comes after it.
fn element(der: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    if tag != kind {
        return None;
    }
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_s_algorithm_is_found_and_nonsense_is_not_one() {
        // SEQUENCE { SEQUENCE {} SEQUENCE { OID ecdsa-with-SHA384 } }
        let der = [0x30, 14, 0x30, 0, 0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3];
        assert_eq!(signature_algorithm(&der), Some(&der[8..]));
        assert_eq!(end_point(&der), Some(Sha384::digest(der).to_vec()));
        for cut in 0..der.len() {
            assert_eq!(end_point(&der[..cut]), None);
        }
        assert_eq!(element(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 1], 0x30), None);
        assert_eq!(element(&[0x30, 0x80, 1], 0x30), None);
        assert_eq!(element(&[0x30, 0x81, 1, 7, 9], 0x30), Some((&[7][..], &[9][..])));
    }
}
