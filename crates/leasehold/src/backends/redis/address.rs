//! The addresses of the servers and how to reach them: turns a URL into connections.

use std::fmt;
use std::time::Duration;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo,
    TlsCertificates,
};

use super::fault;
use crate::doctor::is_loopback;
use crate::error::{Error, Result};
use crate::tls;

/// How long connecting may take, including TLS and login.
const CONNECT: Duration = Duration::from_secs(2);

/// How long an answer may take: longer than the silence of a server that saves or loads a big value, and shorter than
/// the 5 s after which the wait loop gives up a request, so that a half-open connection is replaced before that.
const RESPONSE: Duration = Duration::from_secs(2);

/// How long replicas may take to confirm, by default.
const CONFIRM: Duration = Duration::from_millis(1000);

/// The kinds of installations.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Layout {
    Single,
    /// The name of the service that the sentinels watch.
    Sentinel(String),
    Cluster,
}

/// Everything needed to connect.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) scheme: &'static str,
    pub(super) layout: Layout,
    /// The server, the sentinels, or some nodes of the cluster.
    pub(super) hosts: Vec<ConnectionAddr>,
    /// User and password.
    login: RedisConnectionInfo,
    /// The number of the database. [`connect`](super::connect) selects it, because it can tell why that fails.
    pub(super) db: i64,
    /// User and password for the sentinels, if they need any.
    sentinel_login: RedisConnectionInfo,
    tls: bool,
    certificates: TlsCertificates,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    /// How many replicas must confirm a grant, and how long they may take.
    pub(super) wait_replicas: Option<(u32, Duration)>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never show host, user, password or path.
        f.debug_struct("Address")
            .field("scheme", &self.scheme)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("wait_replicas", &self.wait_replicas)
            .finish_non_exhaustive()
    }
}

fn bad(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::invalid(what)
}

impl Address {
    /// Parses a URL of one of the four schemes.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let form = "a Redis URL is redis://[user:password@]host[:port][/db], rediss:// likewise, \
                    redis-sentinel://host[:port],…/service[/db] or redis-cluster://host[:port],…";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad(form))?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "redis" => "redis",
            "rediss" => "rediss",
            "redis-sentinel" => "redis-sentinel",
            "redis-cluster" => "redis-cluster",
            _ => return Err(bad(form)),
        };
        if rest.contains('#') {
            return Err(bad("a Redis URL has no fragment; certificates are always checked"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let path = path.trim_end_matches('/');
        let (layout, db) = match scheme {
            "redis-sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(bad("redis-sentinel:// needs the name of the service as its path"));
                }
                (Layout::Sentinel(service.to_owned()), db)
            }
            "redis-cluster" if path.is_empty() => (Layout::Cluster, ""),
            "redis-cluster" => return Err(bad("a cluster has no databases; leave the path out")),
            _ => (Layout::Single, path),
        };
        let default_port = if layout == Layout::Single || layout == Layout::Cluster { 6379 } else { 26379 };
        // User, password and database are decoded by the driver.
        let at = if user.is_empty() { String::new() } else { format!("{user}@") };
        let login = format!("redis://{at}localhost/{db}")
            .into_connection_info()
            .map_err(|_| bad("cannot parse the user, password or database number of the Redis URL"))?
            .redis_settings()
            .clone();
        if login.username().is_some() && login.password().is_none() {
            return Err(bad(
                "the Redis URL names a user without a password, and Redis would take us for the user default; \
                 add the password (any, if the user needs none), or leave the user out",
            ));
        }
        let mut address = Address {
            scheme,
            layout,
            hosts: Vec::new(),
            db: login.db(),
            login: login.set_db(0),
            sentinel_login: RedisConnectionInfo::default(),
            tls: scheme == "rediss",
            certificates: TlsCertificates { client_tls: None, root_cert: None },
            connect_timeout: CONNECT,
            response_timeout: RESPONSE,
            wait_replicas: None,
        };
        address.options(query)?;
        let single = address.layout == Layout::Single;
        for host in hosts.split(',') {
            address.hosts.push(address.host(host, default_port)?);
        }
        if single && address.hosts.len() != 1 {
            return Err(bad(
                "redis:// takes one host; several are for redis-sentinel:// and redis-cluster://",
            ));
        }
        Ok(address)
    }

    /// Parses the part after the question mark.
    fn options(&mut self, query: &str) -> Result<()> {
        let (mut cacert, mut cert, mut key) = (None, None, None);
        let (mut replicas, mut confirm) = (None, CONFIRM);
        for (option, value) in query
            .split('&')
            .filter(|part| !part.is_empty())
            .map(|part| part.split_once('=').unwrap_or((part, "")))
        {
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|_| bad(format!("{option} in the Redis URL must be a whole number")))
            };
            let time = || match number()? {
                0 => Err(bad(format!("{option} in the Redis URL must be above zero"))),
                millis => Ok(Duration::from_millis(millis.into())),
            };
            match option {
                "response_timeout_ms" => self.response_timeout = time()?,
                "connect_timeout_ms" => self.connect_timeout = time()?,
                "wait_replicas" => replicas = Some(number()?),
                "wait_timeout_ms" => confirm = time()?,
                "sentinel_user" => self.set_sentinel_user(&decode(value)?),
                "sentinel_password" => self.set_sentinel_password(&decode(value)?),
                "tls" => match value {
                    "1" | "true" | "" => self.tls = true,
                    "0" | "false" if !self.tls => {}
                    "0" | "false" => return Err(bad("`tls=0` contradicts the rest of the Redis URL")),
                    _ => return Err(bad("invalid value for `tls` in the Redis URL; say `tls=1` or `tls=0`")),
                },
                "cacert" => cacert = Some(decode(value)?),
                "cert" => cert = Some(decode(value)?),
                "key" => key = Some(decode(value)?),
                _ => {
                    // An unencoded question mark in a password puts part of it here, so do not repeat the text.
                    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
                    let harmless = option.bytes().all(is_name) && !query.contains('@');
                    let which = if harmless { format!(" {option}") } else { String::new() };
                    return Err(bad(format!(
                        "unknown option{which} in the Redis URL; there are response_timeout_ms, connect_timeout_ms, \
                         wait_replicas, wait_timeout_ms, sentinel_user, sentinel_password, tls, cacert, cert, key"
                    )));
                }
            }
        }
        self.wait_replicas = replicas.filter(|replicas| *replicas > 0).map(|replicas| (replicas, confirm));
        for (option, value) in [("cacert", &cacert), ("cert", &cert), ("key", &key)] {
            if value.is_some() {
                self.needs_tls(option)?;
            }
        }
        if let Some(file) = cacert {
            self.set_root_certificate(read(&file)?);
        }
        match (cert, key) {
            (Some(cert), Some(key)) => self.set_client_certificate(read(&cert)?, read(&key)?),
            (None, None) => {}
            _ => return Err(bad("`cert` and `key` of a Redis URL belong together")),
        }
        Ok(())
    }

    /// Refuses a TLS option without TLS, so that no user believes the connection is encrypted.
    fn needs_tls(&self, option: &str) -> Result<()> {
        if self.tls {
            return Ok(());
        }
        Err(bad(format!(
            "`{option}` has no effect without TLS, which the Redis URL does not ask for; use rediss://, or add `tls=1`"
        )))
    }

    /// Refuses combinations of the URL and the builder that make no sense, before anything is sent.
    pub(super) fn check(&self) -> Result<()> {
        if self.certificates.root_cert.is_some() {
            self.needs_tls("root_certificate")?;
        }
        if self.certificates.client_tls.is_some() {
            self.needs_tls("client_certificate")?;
        }
        if self.sentinel_login.username().is_some() && self.sentinel_login.password().is_none() {
            return Err(bad(
                "`sentinel_user` in the Redis URL needs `sentinel_password`: without it the sentinels would take us for \
                 the user default",
            ));
        }
        Ok(())
    }

    pub(super) fn set_sentinel_user(&mut self, user: &str) {
        self.sentinel_login = self.sentinel_login.clone().set_username(user);
    }

    pub(super) fn set_sentinel_password(&mut self, password: &str) {
        self.sentinel_login = self.sentinel_login.clone().set_password(password);
    }

    pub(super) fn set_root_certificate(&mut self, pem: Vec<u8>) {
        self.certificates.root_cert = Some(pem);
    }

    pub(super) fn set_client_certificate(&mut self, client_cert: Vec<u8>, client_key: Vec<u8>) {
        self.certificates.client_tls = Some(ClientTlsConfig { client_cert, client_key });
    }

    /// Parses `host`, `host:port` or `[v6]:port`.
    fn host(&self, text: &str, default_port: u16) -> Result<ConnectionAddr> {
        let unreadable = || bad("cannot parse a host of the Redis URL");
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(unreadable)?)),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let wrong = |_| bad("the port of a host in the Redis URL must be a number from 0 to 65535");
        let port = port.map_or(Ok(default_port), |port| port.parse().map_err(wrong))?;
        if host.is_empty() {
            return Err(unreadable());
        }
        Ok(self.at(host.to_owned(), port))
    }

    /// An address of this installation.
    pub(super) fn at(&self, host: String, port: u16) -> ConnectionAddr {
        if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    /// Whether nobody on a network can read along: with TLS, or on this machine.
    pub(super) fn is_private(&self) -> bool {
        self.hosts.iter().all(|host| match host {
            ConnectionAddr::Tcp(host, _) => self.tls || is_loopback(host),
            _ => true,
        })
    }

    /// A client of one server.
    pub(super) fn client(&self, addr: ConnectionAddr) -> Result<Client> {
        self.client_as(addr, &self.login)
    }

    fn client_as(&self, addr: ConnectionAddr, login: &RedisConnectionInfo) -> Result<Client> {
        let open = || {
            let info: ConnectionInfo = addr.into_connection_info()?.set_redis_settings(login.clone());
            if self.tls {
                Client::build_with_tls(info, self.certificates.clone())
            } else {
                Client::open(info)
            }
        };
        open().map_err(|fault| match fault.kind() {
            // The driver reads the certificates here.
            redis::ErrorKind::Io => bad("cannot read the certificates"),
            _ => fault::error(&fault),
        })
    }

    /// A client of one sentinel.
    pub(super) fn sentinel(&self, addr: ConnectionAddr) -> Result<Client> {
        self.client_as(addr, &self.sentinel_login)
    }
}

fn read(path: &str) -> Result<Vec<u8>> {
    tls::read(path, &format!("certificate file {path:?} of the Redis URL"))
}

/// Percent-decodes a path.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let hex = [rest.next().unwrap_or(b'%'), rest.next().unwrap_or(b'%')];
                let hex = std::str::from_utf8(&hex).unwrap_or("%%");
                u8::from_str_radix(hex, 16).map_err(|_| bad("invalid percent-encoding in the Redis URL"))?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad("a path in the Redis URL is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn urls_are_read_and_wrong_ones_refused_without_showing_them() {
        let address =
            Address::parse("redis://me:s%20cret@db.example:7000/3?response_timeout_ms=700&wait_replicas=2");
        let address = address.unwrap();
        assert_eq!((address.db, address.login.password()), (3, Some("s cret")));
        assert_eq!(address.hosts, [ConnectionAddr::Tcp("db.example".into(), 7000)]);
        assert_eq!(address.wait_replicas, Some((2, CONFIRM)));
        assert!(!format!("{address:?}").contains("cret") && !format!("{address:?}").contains("example"));
        let address = Address::parse("redis-sentinel://a,b:1,[::1]:2/main/1").unwrap();
        assert!(address.layout == Layout::Sentinel("main".into()) && address.hosts.len() == 3);
        assert_eq!(address.hosts[2], ConnectionAddr::Tcp("::1".into(), 2));
        for url in [
            "redis:secret",
            "redis://secret:x/0",
            "redis://secret/none",
            "redis://a,secret",
            "redis-sentinel://secret",
            "redis-cluster://secret/1",
            "redis://me:p?secret@h",
            "redis://me:p?secret=@h",
            "redis://h?wait_replicas=secret",
            "redis://h#secret",
            "redis://h?cert=/dev/null",
            "redis://h?response_timeout_ms=0",
            "redis://secret@h",
            "redis-sentinel://secret:@h/main",
            "redis-cluster://h?tls=secret",
            "rediss://h?tls=0",
            "redis-cluster://h?tls=1&tls=0",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        for (url, named) in [
            ("redis://h?colour=1", "unknown option colour "),
            ("redis://h?wait_replicas=two", "wait_replicas in the Redis URL"),
            ("redis://h?cacert=/no/such.pem", "`cacert`"),
            ("redis-sentinel://h/main?cert=/no/such.pem", "`cert`"),
            ("redis-cluster://h?tls=0&key=/no/such.pem", "`key`"),
            ("redis-cluster://h?tls=yes", "`tls`"),
            ("redis-sentinel://h/main?tls=True", "`tls`"),
            ("rediss://h?cacert=/no/such.pem", "/no/such.pem"),
            ("redis-cluster://h?cacert=/no/such.pem&tls=1", "/no/such.pem"),
            ("redis://h:99999", "the port of a host"),
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(error.message().contains(named), "{url}: {error:?}");
        }
    }

    #[test]
    fn fuzz_redis_urls() {
        use testkit::fuzz::{SECRET, fuzz};
        fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/redis_urls.txt"), |input| {
            let url = String::from_utf8_lossy(input);
            match Address::parse(&url) {
                Ok(read) => {
                    let secret = |text: Option<&str>| text.is_some_and(|text| text.contains(SECRET));
                    let hosts = format!("{:?}", read.hosts);
                    if secret(read.login.password()) && !hosts.contains(SECRET) {
                        assert!(!format!("{read:?}").contains(SECRET), "{read:?}");
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
