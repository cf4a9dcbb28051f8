//! Access to a server with tokens and certificates, against a real server that requires both.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::authority::{Authority, write};
use support::{Ended, Served, ended, leasehold};
use tempfile::TempDir;

/// A server that requires a token and a client certificate, and what a client needs.
struct Fortress {
    dir: TempDir,
    served: Served,
    token: String,
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Fortress {
    fn new(host: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (servers, clients) = (Authority::new(), Authority::new());
        let (ca, client_ca) = (servers.write(at("ca.pem")), clients.write(at("client_ca.pem")));
        let (server_cert, server_key) = servers.sign(dir.path(), "server", host);
        let (cert, key) = clients.sign(dir.path(), "client", "me");
        let (token, tokens) = tokens(dir.path(), "read,acquire,admin");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let options = [
            "--tls-cert",
            &text(&server_cert),
            "--tls-key",
            &text(&server_key),
            "--tls-client-ca",
            &text(&client_ca),
            "--tokens",
            &text(&tokens),
        ];
        let served = Served::start(dir.path(), &options);
        Fortress { served, token, ca, cert, key, dir }
    }

    /// Runs `leasehold …` with everything it needs.
    fn call(&self, args: &[&str]) -> Ended {
        self.call_with(args, |command| {
            command.env("LEASEHOLD_TOKEN", &self.token);
        })
    }

    /// Runs `leasehold …` with certificates by options, and other settings from `more`.
    fn call_with(&self, args: &[&str], more: impl FnOnce(&mut std::process::Command)) -> Ended {
        let (verb, rest) = args.split_first().unwrap();
        let options = self.certificates();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.bare(&[&[*verb], &options[..], rest].concat(), more)
    }

    fn certificates(&self) -> [String; 6] {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        [
            "--cacert".into(),
            text(&self.ca),
            "--cert".into(),
            text(&self.cert),
            "--key".into(),
            text(&self.key),
        ]
    }

    fn bare(&self, args: &[&str], more: impl FnOnce(&mut std::process::Command)) -> Ended {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_URL", &self.served.url).current_dir(self.dir.path());
        more(&mut command);
        let outcome = ended(command);
        assert!(!outcome.err.contains(&self.token) && !outcome.out.contains(&self.token), "{outcome:?}");
        outcome
    }
}

/// A token, and the server's token file.
fn tokens(dir: &Path, allow: &str) -> (String, PathBuf) {
    let file = dir.join("tokens");
    let made = ended(leasehold(&["token", "create", "--tokens", file.to_str().unwrap(), "--allow", allow]));
    assert_eq!(made.code(), 0, "{made:?}");
    (made.out.trim().to_owned(), file)
}

#[test]
fn a_second_token_of_one_name_is_made_with_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let create = |name| {
        let mut command = leasehold(&["token", "create", "--tokens", "t", "--name", name]);
        command.current_dir(directory.path());
        ended(command)
    };
    assert_eq!([create("ci").err, create("cd").err], ["", ""]);
    let second = create("ci");
    assert!(second.out.starts_with("lh_"), "{second:?}");
    second.says(0, "t has another token named \"ci\"");
}

#[test]
fn every_command_works_with_a_token_and_a_client_certificate() {
    let fortress = Fortress::new("127.0.0.1");
    let lease = fortress.call(&["acquire", "x", "--owner", "me"]);
    assert_eq!((lease.code(), lease.err.as_str()), (0, ""), "{lease:?}");
    let file = write(fortress.dir.path().join("lease.json"), &lease.out);
    let file = file.to_str().unwrap();
    for (args, says) in [
        (&["list"][..], "me"),
        (&["show", "x"], "held by me"),
        (&["renew", "--lease", file], "renewed"),
        (&["revoke", "x", "--yes"], "1 revoked"),
        (&["release", "--lease", file], "released"),
        (&["wait", "x"], ""),
        (&["doctor"], "is there"),
        (&["run", "x", "--", "echo", "ran"], "ran"),
    ] {
        let outcome = fortress.call(args);
        assert_eq!(outcome.code(), 0, "{args:?} {outcome:?}");
        assert!(outcome.out.contains(says) && outcome.err.is_empty(), "{args:?} {outcome:?}");
    }
}

#[test]
fn a_token_without_read_rights_learns_only_that_a_lock_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let (token, tokens) = tokens(dir.path(), "acquire");
    let served = Served::start(dir.path(), &["--tokens", tokens.to_str().unwrap()]);
    let call = |args: &[&str]| {
        let mut command = leasehold(args);
        command.env("LEASEHOLD_URL", &served.url).env("LEASEHOLD_TOKEN", &token);
        ended(command)
    };
    assert_eq!(call(&["acquire", "x"]).code(), 0);
    call(&["show", "x"]).says(77, "token");
    call(&["acquire", "-n", "x"]).says(75, "is held");
    call(&["run", "-n", "x", "true"]).says(75, "is held; the command was not run");
}

#[test]
fn a_token_file_serves_a_nested_leasehold_without_an_argument() {
    let fortress = Fortress::new("127.0.0.1");
    write(fortress.dir.path().join("token"), &format!("{}\n", fortress.token));
    let inside = format!(
        "tr '\\0\\n' '  ' </proc/$PPID/cmdline; echo; env | grep -c \"^LEASEHOLD_TOKEN=\"; cd /
         {0} run -n inner -- echo inside; {0} show outer | head -1",
        env!("CARGO_BIN_EXE_leasehold")
    );
    for by_file in [true, false] {
        let outcome = fortress.call_with(&["run", "outer", "--", "sh", "-c", &inside], |command| {
            if by_file {
                command.env("LEASEHOLD_TOKEN_FILE", "token");
            } else {
                command.env("LEASEHOLD_TOKEN", &fortress.token);
            }
        });
        let lines: Vec<&str> = outcome.out.lines().collect();
        assert!(lines[0].contains("run --cacert"), "{outcome:?}");
        // A token from a file stays in it.
        assert_eq!(lines[1], if by_file { "0" } else { "1" }, "{outcome:?}");
        assert_eq!(lines[2], "inside", "{outcome:?}");
        assert!(lines[3].ends_with(": held"), "{outcome:?}");
        assert_eq!((outcome.code(), outcome.err.as_str()), (0, ""), "{outcome:?}");
    }
}

#[test]
fn a_refused_client_reads_what_is_missing() {
    let fortress = Fortress::new("127.0.0.1");
    let token = |command: &mut std::process::Command| {
        command.env("LEASEHOLD_TOKEN", &fortress.token);
    };
    let run = ["run", "x", "true"];
    fortress.call_with(&run, |_| {}).says(77, "token");
    let wrong = |command: &mut std::process::Command| {
        command.env("LEASEHOLD_TOKEN", "not-the-one");
    };
    fortress.call_with(&run, wrong).says(77, "token");
    // Without the client certificate, with another client's, with another's key, without the authority.
    let ca = fortress.ca.to_str().unwrap();
    fortress.bare(&["run", "--cacert", ca, "x", "true"], token).says(77, "requires a client certificate");
    let stranger = Authority::new().sign(fortress.dir.path(), "stranger", "me");
    let (cert, key) = (stranger.0.to_str().unwrap(), stranger.1.to_str().unwrap());
    fortress
        .bare(&["run", "--cacert", ca, "--cert", cert, "--key", key, "x", "true"], token)
        .says(77, "rejected the client certificate");
    let own = fortress.cert.to_str().unwrap();
    fortress
        .bare(&["run", "--cacert", ca, "--cert", own, "--key", key, "x", "true"], token)
        .says(64, "the certificate and the key do not belong together");
    fortress.bare(&run, token).says(69, "not signed by a trusted authority; name its authority");
    // Not TLS at all, or TLS where none is expected.
    fortress
        .bare(&["run", "--url", &fortress.served.url.replace("https", "http"), "x", "true"], token)
        .says(69, "if it uses TLS");
    let plain = Served::start(tempfile::tempdir().unwrap().path(), &[]);
    fortress
        .bare(&["run", "--url", &plain.url.replace("http", "https"), "x", "true"], token)
        .says(69, "does not speak TLS");
    // A certificate for a different host.
    let elsewhere = Fortress::new("elsewhere.example");
    elsewhere.call(&run).says(69, "for a different host");
}

#[test]
fn unusable_files_are_named_and_readable_ones_warned_of() {
    let fortress = Fortress::new("127.0.0.1");
    let ca = fortress.ca.to_str().unwrap();
    let (cert, key) = (fortress.cert.to_str().unwrap(), fortress.key.to_str().unwrap());
    for (args, says) in [
        (&["--cacert", "nowhere"][..], "cannot read the authority from"),
        (&["--cacert", ca, "--cert", "nowhere", "--key", key], "cannot read the certificate from"),
        (&["--cacert", ca, "--cert", cert, "--key", "nowhere"], "cannot read the key from"),
        (&["--cacert", ca, "--cert", cert, "--key", "/"], "cannot read the key from \"/\""),
        (&["--cacert", ca, "--cert", cert], "`--cert` also needs `--key`"),
        (&["--cacert", ca, "--key", key], "`--key` also needs `--cert`"),
        (&["--cacert", ca, "--cert", cert, "--key", cert], "the key cannot be used"),
    ] {
        fortress.bare(&[&["show"], args, &["x"]].concat(), |_| {}).says(64, says);
    }
    write(fortress.dir.path().join("empty"), "\n");
    for (name, text, says) in [
        ("LEASEHOLD_TOKEN_FILE", "nowhere", "cannot read the token from"),
        ("LEASEHOLD_TOKEN_FILE", "empty", "must hold one token"),
        ("LEASEHOLD_TOKEN", "hush hush", "LEASEHOLD_TOKEN must hold one token"),
        ("LEASEHOLD_TOKEN", "hüsh", "LEASEHOLD_TOKEN must hold one token"),
        ("LEASEHOLD_CERT", "nowhere", "cannot read the certificate from"),
    ] {
        let outcome = fortress.bare(&["show", "x"], |command| {
            command.env(name, text);
        });
        outcome.says(64, says);
        assert!(!outcome.err.contains("hush"), "{outcome:?}");
    }
    std::fs::set_permissions(&fortress.key, PermissionsExt::from_mode(0o644)).unwrap();
    let open = fortress.call(&["show", "x"]);
    assert_eq!(open.code(), 0, "{open:?}");
    assert!(open.err.contains("others can read the key in") && open.err.contains("chmod 600"), "{open:?}");
}

#[test]
fn server_options_are_refused_or_ignored_on_other_stores() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("db").display());
    ended(leasehold(&["show", "--url", &url, "--cacert", "ca.pem", "x"]))
        .says(64, "--cacert is for a server (https:), and this store is sqlite:");
    ended(leasehold(&["show", "--url", "http://127.0.0.1:1", "--cert", "c", "--key", "k", "x"]))
        .says(64, "--cert is for TLS, and http: has none");
    // A user who sets a token but names no server would get a lock that keeps nobody else out.
    let mut forgot = leasehold(&["run", "x", "true"]);
    forgot.env("HOME", dir.path()).env_remove("XDG_STATE_HOME").env("LEASEHOLD_TOKEN", "hush");
    let forgot = ended(forgot);
    forgot.says(64, "LEASEHOLD_TOKEN is set, but no server is named: set LEASEHOLD_URL");
    assert!(!forgot.err.contains("hush"));
    // A store named explicitly is used.
    let mut named = leasehold(&["run", "--url", &url, "x", "true"]);
    named.env("LEASEHOLD_TOKEN", "hush");
    let named = ended(named);
    assert_eq!((named.code(), named.err.as_str()), (0, ""));
}

#[test]
fn a_token_sent_in_clear_text_is_warned_of() {
    // No server is there; only the warnings before the connection matter.
    for (url, told) in [("http://192.0.2.1:1", true), ("http://127.0.0.1:1", false)] {
        let mut command = leasehold(&["run", "--url", url, "x", "true"]);
        command.env("LEASEHOLD_TOKEN", "hush");
        let outcome = ended(command);
        assert_eq!(outcome.code(), 69, "{outcome:?}");
        assert_eq!(outcome.err.contains("without encryption; use https:"), told, "{outcome:?}");
        assert!(!outcome.err.contains("hush"));
    }
}

/// A server would refuse two tokens on one line, at its start and when it reads the file again.
#[test]
fn a_token_gets_its_own_line_whatever_the_line_before() {
    let dir = tempfile::tempdir().unwrap();
    let (first, tokens) = tokens(dir.path(), "read");
    let text = std::fs::read_to_string(&tokens).unwrap();
    // As an editor may leave it.
    std::fs::write(&tokens, text.trim_end()).unwrap();
    let (second, _) = self::tokens(dir.path(), "read");
    let text = std::fs::read_to_string(&tokens).unwrap();
    assert!(text.lines().count() == 2 && text.ends_with('\n'), "{text}");
    let (third, _) = self::tokens(dir.path(), "read");
    let text = std::fs::read_to_string(&tokens).unwrap();
    assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), text.lines().count(), "{text}");
    let served = Served::start(dir.path(), &["--tokens", tokens.to_str().unwrap()]);
    for token in [first, second, third] {
        let mut list = leasehold(&["list", "--url", &served.url]);
        assert_eq!(
            ended({
                list.env("LEASEHOLD_TOKEN", token);
                list
            })
            .code(),
            0
        );
    }
}
