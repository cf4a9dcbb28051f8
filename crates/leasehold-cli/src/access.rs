//! Access to a server: a token and certificates, from options, environment and files.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use leasehold::backends::http::Options;

use crate::report::{Failure, say};
use crate::url::Url;

const TOKEN: &str = "LEASEHOLD_TOKEN";
const TOKEN_FILE: &str = "LEASEHOLD_TOKEN_FILE";
const CACERT: &str = "LEASEHOLD_CACERT";
const CERT: &str = "LEASEHOLD_CERT";
const KEY: &str = "LEASEHOLD_KEY";

/// Options for access to a server. There is no option for the token: it would show in `ps`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct AccessArgs {
    /// Trust only the certificate authority in this PEM file (for https: servers) [default: $LEASEHOLD_CACERT]. The
    /// token comes from $LEASEHOLD_TOKEN, or from the file in $LEASEHOLD_TOKEN_FILE.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    cacert: Option<PathBuf>,
    /// Client certificate in PEM, for servers that require one [default: $LEASEHOLD_CERT]
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, in PEM [default: $LEASEHOLD_KEY]
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    key: Option<PathBuf>,
}

/// The resolved access options.
#[derive(Clone, Default)]
pub(crate) struct Access {
    /// Access options of a server; `None` for other stores.
    pub(crate) server: Option<Options>,
    /// Files to pass on to the command that `run` starts.
    files: Vec<(&'static str, PathBuf)>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("server", &self.server.is_some()).finish_non_exhaustive()
    }
}

impl AccessArgs {
    /// Finds the access options for this store.
    pub(crate) fn resolve(&self, url: &Url) -> Result<Access, Failure> {
        let given = [("--cacert", &self.cacert), ("--cert", &self.cert), ("--key", &self.key)];
        let given = given.iter().find(|(_, file)| file.is_some());
        if !url.is_server() {
            if let Some((option, _)) = given {
                return Err(Failure::Usage(format!(
                    "{option} is for a server (https:), and this store is {}:",
                    url.scheme()
                )));
            }
            // A set token means that the user wants a server: a local lock would not keep other machines out.
            let set = [TOKEN, TOKEN_FILE].into_iter().find(|name| variable(name).is_some());
            if let (Some(name), true) = (set, url.is_default) {
                return Err(Failure::Usage(format!(
                    "{name} is set, but no server is named: set LEASEHOLD_URL, or unset {name} to use the \
                     locks of this machine"
                )));
            }
            return Ok(Access::default());
        }
        let mut options = Options::parse(&url.text)?;
        if let (Some((option, _)), false) = (given, options.tls) {
            return Err(Failure::Usage(format!("{option} is for TLS, and http: has none; use https:")));
        }
        let mut access = Access::default();
        if options.token.is_none() {
            options.token = token(&mut access.files)?;
        }
        if options.tls {
            if let Some(path) = file(&self.cacert, CACERT, "the authority", &mut access.files)? {
                options.ca = Some(path);
            }
            let cert = file(&self.cert, CERT, "the certificate", &mut access.files)?;
            let key = file(&self.key, KEY, "the key", &mut access.files)?;
            match (cert, key) {
                (Some(cert), Some(key)) => {
                    tell_if_open(&key, "the key");
                    options.identity = Some((cert, key));
                }
                (None, None) => {}
                (Some(_), None) => return Err(Failure::Usage("`--cert` also needs `--key`".into())),
                (None, Some(_)) => return Err(Failure::Usage("`--key` also needs `--cert`".into())),
            }
        } else if options.token.is_some() && !options.is_loopback() {
            say(&format!("leasehold: the token goes to {} without encryption; use https:", url.shown()));
        }
        access.server = Some(options);
        Ok(access)
    }
}

impl Access {
    /// Variables for a command that `run` starts: absolute paths of files. A token in the environment stays there, and
    /// a token in a file stays in it.
    pub(crate) fn for_child(&self) -> impl Iterator<Item = (&'static str, Option<OsString>)> + '_ {
        self.files.iter().map(|(name, path)| (*name, Some(path.clone().into())))
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn token(files: &mut Vec<(&'static str, PathBuf)>) -> Result<Option<String>, Failure> {
    let (text, whence) = if let Some(text) = variable(TOKEN) {
        // Never print the contents.
        let text = text.into_string().map_err(|_| Failure::Usage(format!("{TOKEN} is not UTF-8")))?;
        (text, TOKEN.to_owned())
    } else if let Some(path) = variable(TOKEN_FILE) {
        let path = absolute(Path::new(&path), "the token")?;
        let text = std::fs::read_to_string(&path).map_err(|error| unreadable("the token", &path, &error))?;
        tell_if_open(&path, "the token");
        let whence = format!("{path:?}");
        files.push((TOKEN_FILE, path));
        (text, whence)
    } else {
        return Ok(None);
    };
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(Failure::Usage(format!("{whence} must hold one token: ASCII characters without spaces")));
    }
    Ok(Some(text.to_owned()))
}

/// A readable file, named by an option or a variable.
fn file(
    option: &Option<PathBuf>,
    name: &'static str,
    what: &str,
    files: &mut Vec<(&'static str, PathBuf)>,
) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = option.clone().or_else(|| variable(name).map(PathBuf::from)) else { return Ok(None) };
    let path = absolute(&path, what)?;
    // Read here first, because later errors do not say which file failed.
    std::fs::read(&path).map_err(|error| unreadable(what, &path, &error))?;
    files.push((name, path.clone()));
    Ok(Some(path))
}

fn absolute(path: &Path, what: &str) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| unreadable(what, path, &error))
}

fn unreadable(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("cannot read {what} from {path:?}: {error}"))
}

/// Warns about a token file that others can read, as for a URL file. Does not refuse it: in a container all users may
/// be one.
fn tell_if_open(path: &Path, what: &str) {
    let open = std::fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0);
    if open {
        say(&format!("leasehold: others can read {what} in {path:?}; run chmod 600 on it"));
    }
}
