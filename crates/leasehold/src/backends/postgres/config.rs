//! Turns a URL into the settings of connections: the driver's settings, TLS, timeouts, and our own options.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use crate::error::{Error, Result};

use super::connect::Place;
use super::fault;
use super::tls::{self, Tls, TlsFiles};

/// How long connecting to one address may take in all, unless the user sets another limit: as long as a request may
/// take by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// TCP probes a connection after this long without data, at this interval, this many times, and gives it up after 5 +
/// 3 · 3 = 14 s: the client notices within 15 s that a machine vanished.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(3), 3);

/// How long sent data may stay unacknowledged.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// What `pg_stat_activity` shows, unless the URL sets another name.
const APPLICATION_NAME: &str = "leasehold";

/// Where the server's socket is if the URL names no host, as in libpq on Debian.
const SOCKET_DIRECTORY: &str = "/var/run/postgresql";

/// Options that the driver reads by itself.
const DRIVERS: &[&str] = &[
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "password",
    "port",
    "sslnegotiation",
    "target_session_attrs",
    "user",
];

/// Options that we read: those about TLS, which the driver leaves to us, and one for which the driver has another
/// unit.
const OURS: &[&str] = &["sslcert", "sslkey", "sslmode", "sslrootcert", "tcp_user_timeout"];

/// The address of a PostgreSQL server and how to connect to it: from a URL, or from the driver's own settings.
///
/// A URL is `postgres://user:password@host:port/database?option=value&…`, as psql knows it. Without a host it means
/// the server on this machine, by its Unix socket.
///
/// | option | says |
/// |---|---|
/// | `sslmode` | `disable`: no TLS. `prefer` (the default): TLS if the server has it, but it is **not** checked who it is. `require`: TLS or nothing; who it is is checked only if `sslrootcert` is given. `verify-ca`: its certificate must come from an authority in `sslrootcert`. `verify-full`: it must come from a trusted authority and be for the host of the URL. Over a network use `verify-full`. On a Unix socket there is no TLS |
/// | `sslrootcert` | a PEM file of the authorities to trust; `system`, and the default of `verify-full`: those of the machine. These vouch for anybody's name, so only `verify-full` accepts them |
/// | `sslcert`, `sslkey` | PEM files of a certificate and its key, to show who the client is |
/// | `connect_timeout` | seconds to connect to one address of one host, with TLS, login and the session's settings; 5. Then the next address is tried. Connections begin with the address that was reached last |
/// | `keepalives_idle`, `keepalives_interval`, `keepalives_retries` | TCP probes; 5 s, 3 s, 3: a machine that vanished is noticed within 15 s |
/// | `tcp_user_timeout` | milliseconds that what was sent may stay without a sign that it arrived; 10000. 0: what the system has |
/// | `application_name` | what `pg_stat_activity` shows; `leasehold` |
/// | `target_session_attrs` | `read-write` if there are several hosts: the primary is looked for |
/// | `user`, `password`, `dbname`, `host`, `hostaddr`, `port`, `options`, `channel_binding`, `load_balance_hosts`, `sslnegotiation` | as in libpq |
#[derive(Clone)]
pub struct Address {
    pub(super) config: Config,
    pub(super) tls: Arc<rustls::ClientConfig>,
    /// How long one address may take, from the first byte until the connection is ready.
    pub(super) timeout: Duration,
    /// The host, by its place in the list, and the address that were reached last. The next connection begins there,
    /// so that a silent host before it costs its time limit only once. Clones share it.
    pub(super) last_reached: Arc<Mutex<Option<(usize, Place)>>>,
}

impl Address {
    /// Parses a URL whose scheme is `postgres` or `postgresql`.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL is invalid, or names files that cannot be read. The error contains no part of the
    /// URL.
    pub fn parse(url: &str) -> Result<Self> {
        Ok(Address::parse_with(url, &[])?.0)
    }

    /// Makes an address from the driver's settings and a TLS configuration. It adds only a limit on the time to
    /// connect.
    pub fn new(config: Config, tls: rustls::ClientConfig) -> Self {
        let timeout = config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        Address { config, tls: Arc::new(tls), timeout, last_reached: Arc::default() }
    }

    /// As [`parse`](Address::parse), for a URL that may also have our own options. The caller has checked the suffix
    /// of the scheme, from a `+` on.
    pub(crate) fn parse_with(url: &str, own: &[&str]) -> Result<(Self, OwnOptions)> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(Error::invalid(
                "a PostgreSQL URL has two slashes after the scheme: postgres://user@host/database",
            ));
        };
        let scheme = scheme.split('+').next().unwrap_or_default().to_ascii_lowercase();
        if scheme != "postgres" && scheme != "postgresql" {
            return Err(Error::invalid("a PostgreSQL URL begins with postgres:// or postgresql://"));
        }
        // Everything before the first @ is a user and a password, as in the driver, unless that @ is in the value of
        // an option.
        let at = rest.find('@').filter(|at| !ends_in_an_option(&rest[..*at], own));
        let credentials = at.map_or(0, |at| at + 1);
        let query = rest[credentials..].find('?').map(|at| credentials + at);
        let (base, query) = query.map_or((rest, ""), |at| (&rest[..at], &rest[at + 1..]));

        let (mut ours, mut theirs) = (BTreeMap::new(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| unknown_option(own))?;
            if DRIVERS.contains(&key) {
                // The driver would take a bare @ for the end of a password.
                theirs.push(pair.replace('@', "%40"));
            } else if OURS.contains(&key) || own.contains(&key) {
                ours.insert(key.to_owned(), decode(value)?);
            } else {
                return Err(unknown_option(own));
            }
        }
        let mut own = OwnOptions(ours);
        let given = |key: &str| theirs.iter().any(|pair| pair.split_once('=').is_some_and(|(k, _)| k == key));
        let mut config = Config::from_str(&format!("postgres://{base}?{}", theirs.join("&")))
            .map_err(|error| fault::url(&error))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host(SOCKET_DIRECTORY);
        }
        if !given("application_name") {
            config.application_name(APPLICATION_NAME);
        }
        match own.number("tcp_user_timeout", 0, u64::from(u32::MAX))? {
            None => _ = config.tcp_user_timeout(TCP_USER_TIMEOUT),
            // As in libpq: the system's default.
            Some(0) => {}
            Some(millis) => _ = config.tcp_user_timeout(Duration::from_millis(millis)),
        }
        if !given("keepalives_idle") {
            config.keepalives_idle(KEEPALIVE.0);
        }
        if !given("keepalives_interval") {
            config.keepalives_interval(KEEPALIVE.1);
        }
        if !given("keepalives_retries") {
            config.keepalives_retries(KEEPALIVE.2);
        }
        if config.get_hosts().len() > 1 && !given("target_session_attrs") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let tls = own.tls()?;
        config.ssl_mode(match tls {
            Tls::Disable => SslMode::Disable,
            Tls::Prefer => SslMode::Prefer,
            Tls::Require | Tls::VerifyCa | Tls::VerifyFull => SslMode::Require,
        });
        let direct = config.get_ssl_negotiation() == SslNegotiation::Direct;
        let files =
            TlsFiles { root: own.take("sslrootcert"), cert: own.take("sslcert"), key: own.take("sslkey") };
        let address = Address::new(config, tls::client_config(tls, &files, direct)?);
        if address.config.get_load_balance_hosts() == LoadBalanceHosts::Random && address.is_multiple() {
            return Err(Error::invalid(
                "load_balance_hosts=random could take one lock on two servers; name the hosts of one primary",
            ));
        }
        Ok((address, own))
    }

    /// Whether there are several hosts, of which one is the primary.
    fn is_multiple(&self) -> bool {
        self.config.get_hosts().len() > 1
            && self.config.get_target_session_attrs() != TargetSessionAttrs::ReadWrite
    }

    /// How long it may take to connect to one address.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The settings, as the driver has them.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Show neither user nor password.
        let hosts: Vec<String> = self.config.get_hosts().iter().map(show).collect();
        f.debug_struct("Address").field("hosts", &hosts).field("ports", &self.config.get_ports()).finish()
    }
}

fn show(host: &Host) -> String {
    match host {
        Host::Tcp(host) => host.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    }
}

/// Options of a URL that are not the driver's; each is taken once.
#[derive(Default)]
pub(crate) struct OwnOptions(BTreeMap<String, String>);

impl OwnOptions {
    /// The value of an option.
    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    /// The value of an option that must be one of several words.
    pub(crate) fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Err(Error::invalid(format!("the URL's option {key} must be one of {}", words.join(", "))))
            }
        }
    }

    /// The value of an option that must be a number in a range.
    pub(crate) fn number(&mut self, key: &str, least: u64, most: u64) -> Result<Option<u64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            Error::invalid(format!("the URL's option {key} must be a number from {least} to {most}"))
        })
    }

    fn tls(&mut self) -> Result<Tls> {
        let modes = [
            ("disable", Tls::Disable),
            ("prefer", Tls::Prefer),
            ("require", Tls::Require),
            ("verify-ca", Tls::VerifyCa),
            ("verify-full", Tls::VerifyFull),
        ];
        Ok(self.choice("sslmode", &modes)?.unwrap_or(Tls::Prefer))
    }
}

/// Whether this beginning of a URL ends within the value of an option: the last thing in it that looks like an option
/// is a known one.
fn ends_in_an_option(beginning: &str, own: &[&str]) -> bool {
    let Some((_, query)) = beginning.split_once('?') else { return false };
    let last = query.rsplit('&').next().and_then(|pair| pair.split_once('='));
    last.is_some_and(|(key, _)| DRIVERS.contains(&key) || OURS.contains(&key) || own.contains(&key))
}

/// The error does not repeat the option: a password with a `?` in it would be taken for one.
fn unknown_option(own: &[&str]) -> Error {
    let known: Vec<&str> = own.iter().chain(OURS).chain(DRIVERS).copied().collect();
    Error::invalid(format!("unknown option in the PostgreSQL URL; the options are {}", known.join(", ")))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String> {
    let malformed = || Error::invalid("a value in the PostgreSQL URL is not percent-encoded UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = digit().zip(digit()).ok_or_else(malformed)?;
        // Two hexadecimal digits are a byte.
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn parse(url: &str) -> Result<Config> {
        Address::parse(url).map(|address| address.config)
    }

    #[test]
    fn a_url_gives_the_driver_its_settings_and_us_our_options() {
        let url = "postgresql+advisory://al:p%40ss@db.example:6543/prod?schema=a%2Fb&sslmode=disable&options=-c%20x%3D1";
        let (address, mut own) = Address::parse_with(url, &["schema"]).unwrap();
        let config = address.config();
        assert_eq!(config.get_user(), Some("al"));
        assert_eq!(config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(config.get_hosts(), [Host::Tcp("db.example".into())]);
        assert_eq!(config.get_ports(), [6543]);
        assert_eq!(config.get_dbname(), Some("prod"));
        assert_eq!(config.get_options(), Some("-c x=1"));
        assert_eq!(config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(own.take("schema").as_deref(), Some("a/b"));
        assert_eq!(own.take("schema"), None);
    }

    #[test]
    fn url_defaults_let_a_dead_server_be_noticed() {
        let config = parse("postgres://localhost").unwrap();
        assert_eq!(config.get_application_name(), Some("leasehold"));
        assert_eq!(config.get_tcp_user_timeout(), Some(&TCP_USER_TIMEOUT));
        assert_eq!(config.get_keepalives_idle(), KEEPALIVE.0);
        assert_eq!(config.get_keepalives_interval(), Some(KEEPALIVE.1));
        assert_eq!(config.get_keepalives_retries(), Some(KEEPALIVE.2));
        assert_eq!(config.get_ssl_mode(), SslMode::Prefer);
        let config =
            parse("postgres://h?keepalives_idle=60&tcp_user_timeout=7000&application_name=x").unwrap();
        assert_eq!(config.get_application_name(), Some("x"));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(7)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
        assert_eq!(parse("postgres://h?tcp_user_timeout=0").unwrap().get_tcp_user_timeout(), None);
    }

    #[test]
    fn an_at_sign_in_an_option_starts_no_user_part() {
        for url in ["postgres://h/db?application_name=me@x", "postgres://h?dbname=db&application_name=me@x"] {
            let config = parse(url).unwrap();
            assert_eq!((config.get_user(), config.get_dbname()), (None, Some("db")), "{url}");
            assert_eq!(config.get_hosts(), [Host::Tcp("h".into())]);
            assert_eq!(config.get_application_name(), Some("me@x"));
        }
        let config = parse("postgres://u:a/b?c@h/db?application_name=me@x").unwrap();
        assert_eq!((config.get_user(), config.get_password()), (Some("u"), Some(&b"a/b?c"[..])));
        assert_eq!(config.get_application_name(), Some("me@x"));
        let (_, mut own) = Address::parse_with("postgres://h/db?schema=a@b", &["schema"]).unwrap();
        assert_eq!(own.take("schema").as_deref(), Some("a@b"));
    }

    #[test]
    fn public_authorities_are_trusted_only_for_a_name() {
        for mode in ["verify-ca", "verify-ca&sslrootcert=system", "require&sslrootcert=system"] {
            let error = parse(&format!("postgres://h/db?sslmode={mode}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{mode}");
            assert!(error.message().contains("sslmode=verify-full"), "{error}");
        }
    }

    #[test]
    fn without_a_host_it_is_the_socket_and_with_several_the_primary() {
        let config = parse("postgres:///db").unwrap();
        assert_eq!(config.get_hosts(), [Host::Unix(SOCKET_DIRECTORY.into())]);
        let config = parse("postgres://u@a,b/db").unwrap();
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        let config = parse("postgres://u@a/db").unwrap();
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::Any);
    }

    #[test]
    fn a_bad_url_is_refused_and_nothing_of_it_is_repeated() {
        for url in [
            "postgres:secret",
            "mysql://u:secret@h/db",
            "postgres://u:pass?secret=word@h/db?secret=1",
            "postgres://u:secret@h:port/db",
            "postgres://h/db?secret",
            "postgres://h/db?sslmode=secret",
            "postgres://h/db?sslrootcert=%zz",
            "postgres://h/db?sslrootcert=/secret/file",
            "postgres://h/db?connect_timeout=secret",
            "postgres://a,b/db?load_balance_hosts=random&target_session_attrs=any",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn debug_shows_neither_user_nor_password() {
        let address = Address::parse("postgres://root:hunter2@h/db").unwrap();
        let text = format!("{address:?}");
        assert!(text.contains('h') && !text.contains("hunter2") && !text.contains("root"), "{text}");
    }

    #[test]
    fn fuzz_postgres_urls() {
        use testkit::fuzz::{SECRET, fuzz};
        fuzz(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/postgres_urls.txt"), |input| {
            let url = String::from_utf8_lossy(input);
            match Address::parse(&url) {
                Ok(read) => {
                    let hosts: String = read.config().get_hosts().iter().map(show).collect();
                    let shown = format!("{read:?}");
                    assert!(hosts.contains(SECRET) || !shown.contains(SECRET), "{shown}");
                }
                Err(error) => {
                    let shown = format!("{error} {error:?}");
                    assert!(!shown.contains(SECRET), "the error shows a secret: {shown}");
                }
            }
        });
    }
}
