//! The address of a server, and the credentials for it.

use std::path::PathBuf;

use hyper::Uri;

use crate::doctor::is_loopback;
use crate::error::{Error, Result};

/// How to reach a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Whether to speak TLS.
    pub tls: bool,
    /// The host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path before `/v1/`; empty, or beginning with a slash.
    pub base: String,
    /// The bearer token.
    pub token: Option<String>,
    /// The authority that signed the server's certificate, in PEM; the system's unless set.
    pub ca: Option<PathBuf>,
    /// The client's own certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("tls", &self.tls)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Options from a URL: `http://host:port/base?token_file=path&ca=path&cert=path&key=path`.
    ///
    /// # Errors
    /// `InvalidArgument`, without the URL in it, if the URL is invalid, or the token's file cannot be read or holds no token.
    pub fn parse(url: &str) -> Result<Self> {
        let bad = |why: &str| Error::invalid(format!("the URL of a server is http://host:port: {why}"));
        let uri: Uri = url.parse().map_err(|_| bad("it cannot be parsed"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("the scheme is http or https")),
        };
        let authority = uri.authority().ok_or_else(|| bad("there is no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("a URL must not contain a token; use `?token_file=path`"));
        }
        let host = match authority.host().strip_prefix('[') {
            Some(inside) => inside.strip_suffix(']').filter(|inside| is_ipv6(inside)),
            None => Some(authority.host()).filter(|host| !host.is_empty() && !host.contains(['[', ']'])),
        };
        let host = host.ok_or_else(|| bad("there is no host"))?.to_owned();
        // `port_u16` treats an invalid port as a missing one.
        let port = match authority.as_str()[authority.host().len()..].strip_prefix(':') {
            None | Some("") => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(port) => {
                let number = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
                number.ok_or_else(|| bad("the port is a number up to 65535"))?
            }
        };
        let mut options = Options {
            tls,
            host,
            port,
            base: uri.path().trim_end_matches('/').to_owned(),
            token: None,
            ca: None,
            identity: None,
        };
        let (mut cert, mut key) = (None, None);
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "token_file" => {
                    let text = std::fs::read_to_string(&value).map_err(|error| {
                        Error::invalid("cannot read the file of `token_file`").with_source(error)
                    })?;
                    let token = text.trim();
                    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                        return Err(Error::invalid(
                            "the file of `token_file` must hold one token: ASCII characters without spaces",
                        ));
                    }
                    options.token = Some(token.to_owned());
                }
                "ca" => options.ca = Some(value.into()),
                "cert" => cert = Some(PathBuf::from(value)),
                "key" => key = Some(PathBuf::from(value)),
                _ => return Err(bad("unknown option; the options are `token_file`, `ca`, `cert` and `key`")),
            }
        }
        options.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(bad("`cert` and `key` must be given together")),
        };
        Ok(options)
    }

    /// Whether the server is on this machine, as far as the name of its host shows.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// The host and port as in a `Host` header.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{host}:{}", self.port)
    }
}

/// Whether the text is an IPv6 address, perhaps with a zone.
fn is_ipv6(text: &str) -> bool {
    text.split('%').next().is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_a_secret_in_it_refused() {
        let options = Options::parse("https://[::1]:7420/locks/?ca=%2Fca.pem").unwrap();
        assert_eq!((options.host.as_str(), options.port, options.tls), ("::1", 7420, true));
        assert_eq!((options.base.as_str(), options.authority().as_str()), ("/locks", "[::1]:7420"));
        assert_eq!(options.ca, Some("/ca.pem".into()));
        assert_eq!(Options::parse("http://example").unwrap().port, 80);
        for bad in [
            "http://",
            "http:",
            "http://u:secret@h",
            "http://h?x=1",
            "http://h?cert=a",
            "ftp://h",
            "http://h:70000",
            "http://[h]",
            "http://&[::1]h",
        ] {
            let error = Options::parse(bad).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_token_file_must_hold_one_token() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let url = format!("http://h?token_file={}", file.path().display());
        for bad in ["", " \n", "hush hush", "hush\nhush", "h\u{fc}sh"] {
            std::fs::write(&file, bad).unwrap();
            let error = Options::parse(&url).unwrap_err();
            assert!(error.message().contains("`token_file` must hold one token"), "{bad:?}: {error}");
        }
        std::fs::write(&file, "hush\n").unwrap();
        assert_eq!(Options::parse(&url).unwrap().token.as_deref(), Some("hush"));
    }

    #[test]
    fn fuzz_http_urls() {
        use testkit::fuzz::{SECRET, fuzz};
        fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/http_urls.txt"), |input| {
            let url = String::from_utf8_lossy(input);
            match Options::parse(&url) {
                Ok(read) => {
                    // Paths of certificates and the host are not secret; there is no password.
                    let shown = format!(
                        "http{}://{}{}",
                        if read.tls { "s" } else { "" },
                        read.authority(),
                        read.base
                    );
                    if read.ca.is_none() && read.host.is_ascii() {
                        let again = Options::parse(&shown).expect("what was read is written as a URL");
                        assert_eq!((again.host, again.port, again.base), (read.host, read.port, read.base));
                    }
                }
                Err(error) => {
                    let shown = format!("{error} {error:?}");
                    assert!(!shown.contains(SECRET), "the error shows a secret: {shown}");
                }
            }
        });
    }
}
