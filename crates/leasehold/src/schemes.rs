//! The schemes that store URLs begin with, and what a build must have for them: one table.

use crate::error::{Error, ErrorKind};

/// A scheme that some build knows.
#[derive(Debug)]
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    /// The scheme that its store calls itself by; another spelling, or the same with TLS, has that of the first.
    pub(crate) store: &'static str,
    /// What brings it; nothing has to.
    feature: Option<&'static str>,
    /// Whether this build has it.
    built: bool,
}

const fn scheme(name: &'static str, feature: Option<&'static str>, built: bool) -> Scheme {
    Scheme { name, store: name, feature, built }
}

const FILE: bool = cfg!(all(feature = "file", unix));
const HTTP: bool = cfg!(feature = "http");
const POSTGRES: bool = cfg!(feature = "postgres");
const REDIS: bool = cfg!(feature = "redis");
const SQLITE: bool = cfg!(all(feature = "sqlite", target_os = "linux"));

/// All of them. `connect.rs` opens each that is built.
pub(crate) const SCHEMES: &[Scheme] = &[
    scheme("memory", None, true),
    scheme("sqlite", Some("sqlite"), SQLITE),
    scheme("file", Some("file"), FILE),
    scheme("redis", Some("redis"), REDIS),
    scheme("rediss", Some("redis"), REDIS),
    scheme("redis-sentinel", Some("redis"), REDIS),
    scheme("redis-cluster", Some("redis"), REDIS),
    scheme("quorum", None, true),
    scheme("postgres", Some("postgres"), POSTGRES),
    Scheme { store: "postgres", ..scheme("postgresql", Some("postgres"), POSTGRES) },
    scheme("postgres+advisory", Some("postgres"), POSTGRES),
    Scheme { store: "postgres+advisory", ..scheme("postgresql+advisory", Some("postgres"), POSTGRES) },
    scheme("http", Some("http"), HTTP),
    Scheme { store: "http", ..scheme("https", Some("http"), HTTP) },
];

/// The scheme of this name that this build has, in capitals or not.
pub(crate) fn built(name: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|scheme| scheme.built && scheme.name.eq_ignore_ascii_case(name))
}

/// Why this build cannot open a URL of such a scheme, and what would.
pub(crate) fn refusal(name: &str) -> Error {
    let known = SCHEMES.iter().find(|scheme| scheme.name.eq_ignore_ascii_case(name));
    if let Some(Scheme { name, feature: Some(feature), .. }) = known {
        let message = format!(
            "{name}: this build has no such store; it comes with the feature `{feature}`, where the system can have it"
        );
        return Error::new(ErrorKind::Unsupported, message);
    }
    let mut message =
        format!("unknown store scheme {name:?}; this build knows {}", list(|scheme| scheme.built));
    let mut told = Vec::new();
    for feature in SCHEMES.iter().filter(|scheme| !scheme.built).filter_map(|scheme| scheme.feature) {
        if !told.contains(&feature) {
            told.push(feature);
            let brings = list(|scheme| scheme.feature == Some(feature));
            message.push_str(&format!("; the feature `{feature}` brings {brings}"));
        }
    }
    Error::invalid(message)
}

fn list(wanted: impl Fn(&Scheme) -> bool) -> String {
    let names: Vec<String> =
        SCHEMES.iter().filter(|scheme| wanted(scheme)).map(|scheme| format!("{}:", scheme.name)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Locks;

    #[tokio::test]
    async fn each_scheme_is_opened_by_this_build_or_refused_with_the_feature_that_it_lacks() {
        for scheme in SCHEMES {
            for name in [scheme.name.to_owned(), scheme.name.to_ascii_uppercase()] {
                // Nowhere is there such a store, and no other computer is asked for it.
                let error = Locks::connect(&format!("{name}:///dev/null/x")).await.unwrap_err();
                assert!(!error.message().contains("unknown"), "{name}: {error}");
                let lacking = error.message().contains("this build has no such store");
                assert_eq!(lacking, !scheme.built, "{name}: {error}");
                if lacking {
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    assert!(error.message().contains(&format!("`{}`", scheme.feature.unwrap())), "{error}");
                }
            }
        }
    }

    #[test]
    fn who_names_an_unknown_scheme_is_told_all_that_this_build_knows_and_what_would_bring_the_others() {
        let error = refusal("gopher");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let (knows, brings) = error.message().split_once("; the feature").unwrap_or((error.message(), ""));
        for scheme in SCHEMES {
            let at = if scheme.built { knows } else { brings };
            assert!(at.contains(&format!(" {}:", scheme.name)), "{}: {error}", scheme.name);
            assert!(scheme.built || brings.contains(&format!("`{}`", scheme.feature.unwrap())), "{error}");
        }
    }

    #[test]
    fn each_store_of_this_build_has_its_scheme_and_each_scheme_its_store() {
        let stores: Vec<&str> = crate::stores().iter().map(|info| info.scheme).collect();
        assert!(stores.iter().all(|store| built(store).is_some()), "{stores:?}");
        for scheme in SCHEMES.iter().filter(|scheme| scheme.built) {
            assert!(stores.contains(&scheme.store), "{scheme:?}");
        }
    }
}
