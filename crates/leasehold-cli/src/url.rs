//! Where the store's URL comes from, and how it may be shown.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::access::AccessArgs;
use crate::report::{Failure, say};

/// The variables that name a store, also for the command that `run` starts.
pub(crate) const URL: &str = "LEASEHOLD_URL";
pub(crate) const URL_FILE: &str = "LEASEHOLD_URL_FILE";

/// Options that say which store to use.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct StoreArgs {
    /// The store, for example sqlite:/var/lib/app/locks.db; `leasehold stores` lists all kinds [default:
    /// $LEASEHOLD_URL, then the file in $LEASEHOLD_URL_FILE, then file: in the user's state directory]
    #[arg(long, value_name = "URL", conflicts_with = "url_file", help_heading = "Store")]
    pub(crate) url: Option<String>,
    /// File that contains the URL, to keep a password out of `ps`.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub(crate) url_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// A store's URL, and what is known about it without opening it.
#[derive(Debug, Clone)]
pub(crate) struct Url {
    pub(crate) text: String,
    /// The file it was read from, if any.
    file: Option<PathBuf>,
    /// The user has not named a store.
    pub(crate) is_default: bool,
}

impl StoreArgs {
    /// Finds the URL, and creates the directory of the default store.
    pub(crate) fn resolve(&self) -> Result<Url, Failure> {
        self.named()?.map_or_else(Url::default_store, Ok)
    }

    /// The URL that an option or a variable names.
    pub(crate) fn named(&self) -> Result<Option<Url>, Failure> {
        if let Some(text) = &self.url {
            let url = Url::new(text, None)?;
            if url.has_password() {
                say("leasehold: a password in --url shows in ps; --url-file and LEASEHOLD_URL keep it out");
            }
            return Ok(Some(url));
        }
        if let Some(file) = &self.url_file {
            return Url::read(file).map(Some);
        }
        match std::env::var(URL) {
            Ok(text) if text.trim().is_empty() => return Err(named_nothing(URL)),
            Ok(text) => return Url::new(&text, None).map(Some),
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(Failure::Usage(format!("{URL} is not UTF-8")));
            }
            Err(std::env::VarError::NotPresent) => {}
        }
        match std::env::var_os(URL_FILE) {
            Some(file) if file.is_empty() => Err(named_nothing(URL_FILE)),
            Some(file) => Url::read(Path::new(&file)).map(Some),
            None => Ok(None),
        }
    }
}

/// The error for an empty variable. The user meant to name a store, perhaps with a secret that was missing; locks in
/// local files would not keep out the clients that the lock is meant for.
fn named_nothing(variable: &str) -> Failure {
    Failure::Usage(format!(
        "{variable} is empty: name a store in it, or unset it for lock files of this user"
    ))
}

impl Url {
    pub(crate) fn new(text: &str, file: Option<PathBuf>) -> Result<Self, Failure> {
        let text = text.trim();
        // The process that uses it next may have another working directory.
        let absolute = ["file", "sqlite"].into_iter().find_map(|scheme| {
            let path = text.strip_prefix(scheme)?.strip_prefix(':')?;
            (!path.is_empty() && !path.starts_with('/'))
                .then(|| Some((scheme, std::path::absolute(path).ok()?)))?
        });
        let text = match absolute.as_ref().and_then(|(scheme, path)| Some((scheme, path.to_str()?))) {
            Some((scheme, path)) => format!("{scheme}:{path}"),
            None => text.to_owned(),
        };
        Ok(Url { text, file, is_default: false })
    }

    fn read(file: &Path) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::Usage(format!("cannot read the URL from {file:?}: {error}"));
        let text = std::fs::read_to_string(file).map_err(failed)?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (Some(line), None) = (lines.next(), lines.next()) else {
            return Err(Failure::Usage(format!("{file:?} must hold one URL on one line")));
        };
        let url = Url::new(line, Some(std::path::absolute(file).map_err(failed)?))?;
        let mode = std::fs::metadata(file).map_err(failed)?.permissions().mode();
        if url.has_password() && mode & 0o077 != 0 {
            say(&format!("leasehold: others can read the password in {file:?}; run chmod 600 on it"));
        }
        Ok(url)
    }

    /// `file:` in the user's state directory, which is created if missing.
    fn default_store() -> Result<Self, Failure> {
        let home =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
        // Service accounts often have a HOME that does not exist and must not be created.
        let own = || home("HOME").filter(|home| home.is_dir()).map(|home| home.join(".local/state"));
        let state = home("XDG_STATE_HOME").or_else(own).ok_or_else(|| {
            Failure::Usage(format!("there is no HOME to keep locks in: name a store with --url or {URL}"))
        })?;
        let dir = state.join("leasehold/locks");
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => leasehold::ErrorKind::AuthFailed,
                _ => leasehold::ErrorKind::Unavailable,
            };
            let what = "the directory of the default store cannot be made; name another store with --url";
            Failure::Lock(leasehold::Error::new(kind, what).with_source(error))
        })?;
        let dir = dir
            .to_str()
            .ok_or_else(|| Failure::Usage("the path of the state directory is not UTF-8".into()))?;
        Ok(Url { is_default: true, ..Url::new(&format!("file:{dir}"), None)? })
    }

    pub(crate) fn scheme(&self) -> &str {
        self.text.split(':').next().unwrap_or_default()
    }

    /// Whether it is a leasehold server, which may require a token and TLS.
    pub(crate) fn is_server(&self) -> bool {
        ["http", "https"].iter().any(|scheme| self.scheme().eq_ignore_ascii_case(scheme))
    }

    /// The path of a `file:` or `sqlite:` store.
    pub(crate) fn path(&self) -> Option<&Path> {
        let rest = self.text.strip_prefix("file:").or_else(|| self.text.strip_prefix("sqlite:"))?;
        let path = match rest.strip_prefix("//") {
            Some(absolute) if absolute.starts_with('/') => absolute,
            Some(_) => return None,
            None => rest,
        };
        (!path.is_empty()).then(|| Path::new(path))
    }

    /// The URL without secrets: no user, no password, no options.
    pub(crate) fn shown(&self) -> String {
        match self.scheme().to_ascii_lowercase().as_str() {
            "file" | "sqlite" | "memory" => self.text.clone(),
            "quorum" => {
                let nodes: Vec<String> =
                    nodes(&self.text["quorum:".len()..]).iter().map(|url| place(url)).collect();
                format!("quorum:{}", nodes.join(","))
            }
            _ => place(&self.text),
        }
    }

    /// Whether a reader of the URL could log in with it.
    pub(crate) fn has_password(&self) -> bool {
        let Some((_, rest)) = self.text.split_once("://") else { return false };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        place.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) || options.contains("password")
    }

    /// The variables to set or remove for a command that `run` starts.
    pub(crate) fn for_child(&self) -> [(&'static str, Option<OsString>); 2] {
        // A password from a file stays there: an environment ends up in logs and crash reports.
        let hidden = self.file.is_some() && self.has_password();
        let text = (!hidden).then(|| self.text.clone().into());
        [(URL, text), (URL_FILE, self.file.clone().map(Into::into))]
    }
}

/// Scheme, host, port and database of a URL.
fn place(url: &str) -> String {
    let scheme = url.split(':').next().filter(|scheme| is_scheme(scheme) && scheme.len() < url.len());
    // Even a text that is not a URL may be a password.
    let Some(scheme) = scheme else { return "…".into() };
    let Some(rest) = url[scheme.len()..].strip_prefix("://") else { return format!("{scheme}:…") };
    let (rest, options) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    // An unescaped password with such a character: the text before it may be the start of the password.
    if options.contains('@') {
        return format!("{scheme}://…");
    }
    // A password may contain a slash or an @.
    let place = rest.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{place}")
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// The URLs of a quorum. A comma that is not followed by a URL belongs to the URL before it.
fn nodes(urls: &str) -> Vec<String> {
    let begins = |part: &str| part.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme));
    let mut nodes: Vec<String> = Vec::new();
    for part in urls.split(',') {
        match nodes.last_mut() {
            Some(node) if !begins(part) => node.extend([",", part]),
            _ => nodes.push(part.to_owned()),
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::new(text, None).unwrap_or_else(|_| panic!("{text}"))
    }

    #[test]
    fn what_is_shown_holds_no_secret() {
        for (text, shown) in [
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("redis://:pa@ss/word@h/0", "redis://h/0"),
            ("postgres://me:secret@h/db?sslmode=require&password=x", "postgres://h/db"),
            ("postgres:me:secret@h", "postgres:…"),
            ("file:/run/locks", "file:/run/locks"),
            ("redis://:sec?ret@h", "redis://…"),
            ("postgres://h/db?password=x@y", "postgres://…"),
            ("redis-cluster://me:se,cret@h:1,i:2", "redis-cluster://h:1,i:2"),
            (
                "quorum:redis://:secret@h:1,redis-sentinel://:se,://cret@i,j/m?password=x,postgres://me:x@k/db",
                "quorum:redis://h:1,redis-sentinel://i,j/m,postgres://k/db",
            ),
            ("quorum:sqlite:x", "quorum:sqlite:…"),
            ("secret@h/db", "…"),
            ("me@redis://:secret@h", "…"),
        ] {
            assert_eq!(url(text).shown(), shown);
        }
    }

    #[test]
    fn a_password_is_seen_in_the_address_and_in_the_options() {
        assert!(url("redis://:secret@h").has_password());
        assert!(url("postgres://h/db?password=x").has_password());
        assert!(!url("postgres://me@h/db?sslmode=require").has_password());
        assert!(!url("sqlite:/a:b@c").has_password());
    }

    #[test]
    fn a_relative_path_is_made_absolute_and_others_stay_as_they_are() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(url("sqlite:locks.db").text, format!("sqlite:{}", here.join("locks.db").display()));
        assert_eq!(url("file:///run/x").path(), Some(Path::new("/run/x")));
        assert_eq!(url("sqlite:/a/b").path(), Some(Path::new("/a/b")));
        assert_eq!(url("file://host/x").path(), None);
        assert_eq!(url("file:").path(), None);
        assert_eq!(url("memory:").text, "memory:");
    }

    #[test]
    fn a_password_from_a_file_never_enters_the_environment() {
        let file = Some(PathBuf::from("/etc/app/url"));
        let secret = Url { file: file.clone(), ..url("redis://:secret@h") };
        assert_eq!(secret.for_child(), [(URL, None), (URL_FILE, Some("/etc/app/url".into()))]);
        let open = Url { file, ..url("redis://h") };
        assert_eq!(open.for_child()[0], (URL, Some("redis://h".into())));
    }
}
