//! Server settings from flags, the environment and a file, and which takes precedence.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::blocking::Locks;
use support::authority::Authority;
use support::{Ended, Served, ended, leasehold, until};

fn serve(arguments: &[&str], environment: &[(&str, &str)], directory: &Path) -> Command {
    let mut command = leasehold(&[&["serve"], arguments].concat());
    command.envs(environment.iter().copied()).current_dir(directory);
    command
}

fn started(arguments: &[&str], environment: &[(&str, &str)], directory: &Path) -> Served {
    Served::from(&mut serve(arguments, environment, directory))
}

/// The result of `serve --check`.
fn checked(arguments: &[&str], environment: &[(&str, &str)], directory: &Path) -> Ended {
    ended(serve(&[arguments, &["--check"]].concat(), environment, directory))
}

/// The status of its answer to a request with this `Host`.
fn addressed_as(host: &str, served: &Served) -> u16 {
    let (host, url) = (format!("Host: {host}"), format!("{}/v1/locks", served.url));
    let arguments = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", &host, &url];
    String::from_utf8(Command::new("curl").args(arguments).output().unwrap().stdout).unwrap().parse().unwrap()
}

#[test]
fn flags_override_the_config_file_and_bad_settings_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    std::fs::write(&config, "# a server\nlisten = 127.0.0.1:0\nstore = \"memory:\"\nmax-ttl-ms = 5000\n")
        .unwrap();
    let server = started(&["--config", "config", "--max-ttl-ms", "7000"], &[], directory.path());
    let info = Locks::connect(&server.url).unwrap().info();
    assert_eq!(info.max_ttl, Duration::from_secs(7));
    assert!(server.greeting.contains("in memory only"));
    for (file, says) in [
        ("lissen = 1", "line 1"),
        ("listen", "line 1"),
        ("log-names = maybe", "true or false"),
        ("max-ttl-ms = 0", "`--max-ttl-ms` must be above zero"),
    ] {
        std::fs::write(&config, file).unwrap();
        let answer = checked(&["--config", "config"], &[], directory.path());
        assert!(answer.code() == 64 && answer.err.contains(says), "{file}: {answer:?}");
    }
    for wrong in [
        ["--store", "file:x"],
        ["--listen", "nowhere"],
        ["--log", "loud"],
        ["--store", "odd:"],
        ["--max-ttl-ms", "0"],
    ] {
        let mut arguments = wrong.to_vec();
        // Use a free port, so that another server on the default port is not the reason for the failure.
        if wrong[0] != "--listen" {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        assert_eq!(checked(&arguments, &[], directory.path()).code(), 64, "{wrong:?}");
    }
}

#[test]
fn a_host_that_no_request_can_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let start = ["--listen", "127.0.0.1:0", "--store", "memory:", "--host"];
    for host in ["locks:7420", "http://locks", "locks/", "two names", "locks,a:b"] {
        let refused = checked(&[&start[..], &[host]].concat(), &[], directory.path());
        refused.says(64, "`--host` takes names without port, scheme or spaces");
    }
    let served = started(&[&start[..], &["a, b ,::1"]].concat(), &[], directory.path());
    for host in ["a", "b", "b:7420", "[::1]"] {
        assert_eq!(addressed_as(host, &served), 200, "{host}");
    }
    assert_eq!(addressed_as("c", &served), 403);
}

#[test]
fn each_option_for_tls_that_lacks_another_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (options, says) in [
        (&["--tls-cert", "c"][..], "`--tls-cert` also needs `--tls-key`"),
        (&["--tls-key", "k"], "`--tls-key` also needs `--tls-cert`"),
        (&["--tls-client-ca", "a"], "`--tls-client-ca` also needs `--tls-cert` and `--tls-key`"),
    ] {
        let start = [&["--listen", "127.0.0.1:0", "--store", "memory:"], options].concat();
        checked(&start, &[], directory.path()).says(64, says);
    }
}

#[test]
fn an_ambiguous_line_of_the_config_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("server.conf");
    for (text, line, key, says) in [
        ("namespace = prod # main", 1, "namespace", "a line of its own"),
        ("# main\nnamespace = prod#main", 2, "namespace", "a line of its own"),
        ("namespace = # main", 1, "namespace", "a line of its own"),
        ("namespace = prod ; main", 1, "namespace", "a line of its own"),
        ("namespace = 'prod'", 1, "namespace", "without single quotes"),
        ("namespace = prod's", 1, "namespace", "double quotes"),
        ("namespace = \"prod\" # main", 1, "namespace", "a line of its own"),
        ("namespace = \"prod", 1, "namespace", "double quote"),
        ("namespace = pr\"od", 1, "namespace", "double quote"),
        ("namespace =", 1, "namespace", "no value"),
        ("namespace = a\nlog = none\nnamespace = b", 3, "namespace", "line 1"),
        ("max_ttl_ms = 5000\nmax-ttl-ms = 6000", 2, "max-ttl-ms", "line 1"),
        ("store = redis://:hush@127.0.0.1:1 # main", 1, "store", "a line of its own"),
    ] {
        std::fs::write(&config, text).unwrap();
        // Also if a flag or a variable overrides the line.
        for flags in [&[][..], &["--namespace", "other"]] {
            let flags = [&["--config", "server.conf"], flags].concat();
            let start = serve(&flags, &[], directory.path());
            for refused in [checked(&flags, &[], directory.path()), ended(start)] {
                refused.says(64, says);
                let place = format!("server.conf\", line {line}, `{key}`: ");
                assert!(refused.err.contains(&place) && !refused.err.contains("hush"), "{text}: {refused:?}");
            }
        }
    }
}

#[test]
fn double_quotes_in_the_config_file_take_a_value_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let config =
        "listen = 127.0.0.1:0\nlog = none\nnamespace = \"it's # 1\"\nhost = a.example\nhost = b.example\n";
    std::fs::write(directory.path().join("config"), config).unwrap();
    let served = started(&["--config", "config"], &[], directory.path());
    let _held = Locks::connect(&served.url).unwrap().mutex("x").lock().unwrap();
    let db = rusqlite::Connection::open(directory.path().join("leasehold.db")).unwrap();
    let name: String = db.query_row("SELECT name FROM leases", [], |row| row.get(0)).unwrap();
    assert!(name.contains("it's # 1"), "{name}");
    // `host` may appear several times.
    assert_eq!([addressed_as("a.example", &served), addressed_as("b.example", &served)], [200, 200]);
}

/// All variables, by name.
const VARIABLES: [&str; 15] = [
    "LEASEHOLD_STORE",
    "LEASEHOLD_LISTEN",
    "LEASEHOLD_METRICS_LISTEN",
    "LEASEHOLD_TOKENS",
    "LEASEHOLD_INSECURE_NO_AUTH",
    "LEASEHOLD_TLS_CERT",
    "LEASEHOLD_TLS_KEY",
    "LEASEHOLD_TLS_CLIENT_CA",
    "LEASEHOLD_HOST",
    "LEASEHOLD_NAMESPACE",
    "LEASEHOLD_MAX_TTL_MS",
    "LEASEHOLD_LOG",
    "LEASEHOLD_LOG_NAMES",
    "LEASEHOLD_ACCEPT_RISKS",
    "LEASEHOLD_CONFIG",
];

#[test]
fn every_flag_has_a_variable_and_every_variable_is_tried_here() {
    let help = ended(leasehold(&["serve", "--help"])).out;
    // Lines are wrapped at the terminal's width.
    let whole = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let begins = |line: &&str| line.trim_start().starts_with("--");
    let flags: BTreeSet<String> = help
        .lines()
        .filter(begins)
        .filter_map(|line| line.trim_start().strip_prefix("--")?.split([' ', '[', '=']).next())
        // An action, not a setting.
        .filter(|flag| *flag != "check")
        .map(|flag| format!("LEASEHOLD_{}", flag.replace('-', "_").to_uppercase()))
        .collect();
    let variables: BTreeSet<String> =
        whole.split("[env: ").skip(1).map(|rest| rest.split(['=', ']']).next().unwrap().to_owned()).collect();
    assert_eq!(flags, variables, "{help}");
    let tried = VARIABLES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(variables, tried, "{help}");
}

#[test]
fn the_environment_configures_addresses_and_logging() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let environment = [
        ("LEASEHOLD_STORE", "sqlite:by-variable.db"),
        ("LEASEHOLD_LISTEN", "127.0.0.2:0"),
        ("LEASEHOLD_METRICS_LISTEN", "127.0.0.3:0"),
        ("LEASEHOLD_HOST", "one.example,two.example"),
        ("LEASEHOLD_NAMESPACE", "spaced"),
        ("LEASEHOLD_MAX_TTL_MS", "7000"),
        ("LEASEHOLD_LOG", "json"),
        ("LEASEHOLD_LOG_NAMES", "true"),
        // The test's directory may be in memory.
        ("LEASEHOLD_ACCEPT_RISKS", "true"),
        // Tells clients where the server is; the server ignores it.
        ("LEASEHOLD_URL", "memory:"),
    ];
    let mut command = serve(&[], &environment, directory.path());
    let served = Served::from(command.stderr(std::fs::File::create(&log).unwrap()));
    assert!(served.url.starts_with("http://127.0.0.2:"), "{}", served.greeting);
    assert!(served.told("dashboard").starts_with("http://127.0.0.3:"), "{}", served.greeting);
    assert!(served.told("data").ends_with("/by-variable.db"), "{}", served.greeting);
    let locks = Locks::connect(&served.url).unwrap();
    assert_eq!(locks.info().max_ttl, Duration::from_secs(7));
    let lease = locks.leasing("a-name").ttl(Duration::from_secs(5)).try_acquire().unwrap().unwrap();
    let db = rusqlite::Connection::open(directory.path().join("by-variable.db")).unwrap();
    let name: String = db.query_row("SELECT name FROM leases", [], |row| row.get(0)).unwrap();
    assert!(name.contains("spaced") && name.contains("a-name"), "{name}");
    locks.release(&lease).unwrap();
    let lines = || std::fs::read_to_string(&log).unwrap();
    until("the line of the acquire is there", || lines().lines().count() > 0);
    let line: serde_json::Value = serde_json::from_str(lines().lines().next().unwrap()).unwrap();
    assert_eq!((&line["op"], &line["lock"]), (&"acquire".into(), &"a-name".into()), "{line}");
    let named = |host| addressed_as(host, &served);
    assert_eq!([named("one.example"), named("two.example"), named("three.example")], [200, 200, 403]);
}

#[test]
fn the_environment_configures_access() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (servers, clients) = (Authority::new(), Authority::new());
    let (ca, client_ca) = (servers.write(at("ca.pem")), clients.write(at("client_ca.pem")));
    let (server_cert, server_key) = servers.sign(directory.path(), "server", "127.0.0.1");
    let (cert, key) = clients.sign(directory.path(), "client", "me");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let secret = ended(leasehold(&["token", "create", "--tokens", &text(&at("tokens"))])).out;
    let (tls_cert, tls_key, tls_client_ca) = (text(&server_cert), text(&server_key), text(&client_ca));
    let environment = [
        ("LEASEHOLD_STORE", "memory:"),
        ("LEASEHOLD_LISTEN", "127.0.0.1:0"),
        ("LEASEHOLD_TOKENS", "tokens"),
        ("LEASEHOLD_TLS_CERT", tls_cert.as_str()),
        ("LEASEHOLD_TLS_KEY", tls_key.as_str()),
        ("LEASEHOLD_TLS_CLIENT_CA", tls_client_ca.as_str()),
        ("LEASEHOLD_LOG", "none"),
    ];
    let served = started(&[], &environment, directory.path());
    assert!(served.url.starts_with("https://"), "{}", served.greeting);
    let (ca, cert, key) = (text(&ca), text(&cert), text(&key));
    let list = |options: &[&str], token: &str| {
        let mut command = leasehold(&[&["list", "--url", &served.url, "--cacert", &ca], options].concat());
        command.env("LEASEHOLD_TOKEN", token);
        ended(command).code()
    };
    let own = ["--cert", &cert, "--key", &key];
    assert_eq!(list(&own, secret.trim()), 0);
    assert_eq!(list(&own, "another"), 77);
    assert_ne!(list(&[], secret.trim()), 0, "without a certificate");
}

#[test]
fn a_flag_comes_before_the_environment_and_that_before_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let config = "store = memory:\nlisten = 0.0.0.0:0\nmax-ttl-ms = 5000\ninsecure-no-auth = true\nlog = none\n\
                  host = of-the-file.example\n";
    std::fs::write(directory.path().join("config"), config).unwrap();
    let file = ("LEASEHOLD_CONFIG", "config");
    let open = |arguments: &[&str], more: &[(&str, &str)]| {
        checked(arguments, &[&[file], more].concat(), directory.path()).code()
    };
    assert_eq!(open(&[], &[]), 0);
    assert_eq!(open(&[], &[("LEASEHOLD_INSECURE_NO_AUTH", "false")]), 64, "the file is not asked");
    assert_eq!(open(&["--insecure-no-auth"], &[("LEASEHOLD_INSECURE_NO_AUTH", "false")]), 0);
    assert_eq!(open(&["--insecure-no-auth=false"], &[("LEASEHOLD_INSECURE_NO_AUTH", "true")]), 64);
    // An unclear word does not switch authentication off.
    for word in ["", "1", "yes", "no"] {
        assert_eq!(open(&[], &[("LEASEHOLD_INSECURE_NO_AUTH", word)]), 64, "{word:?}");
    }
    let environment = [
        file,
        ("LEASEHOLD_LISTEN", "127.0.0.1:0"),
        ("LEASEHOLD_MAX_TTL_MS", "6000"),
        ("LEASEHOLD_HOST", "b.example"),
    ];
    let max_ttl = |served: &Served| Locks::connect(&served.url).unwrap().info().max_ttl.as_millis();
    let served = started(&[], &environment, directory.path());
    assert_eq!(max_ttl(&served), 6000);
    assert_eq!(
        [addressed_as("b.example", &served), addressed_as("of-the-file.example", &served)],
        [200, 403]
    );
    let served = started(&["--max-ttl-ms", "7000", "--host", "c.example"], &environment, directory.path());
    assert_eq!(max_ttl(&served), 7000);
    assert_eq!([addressed_as("c.example", &served), addressed_as("b.example", &served)], [200, 403]);
}

#[test]
fn it_prints_where_its_data_are_but_no_secrets() {
    let server = testkit::postgres::Postgres::start();
    let url = server.url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let (user, place) = rest.split_once('@').unwrap();
    let user = user.split(':').next().unwrap();
    let place = place.split('?').next().unwrap();
    let store = format!("{scheme}://{user}:hush@{place}?application_name=whisper");
    let directory = tempfile::tempdir().unwrap();
    let served = started(
        &["--listen", "127.0.0.1:0", "--log", "none"],
        &[("LEASEHOLD_STORE", &store)],
        directory.path(),
    );
    assert_eq!(served.told("data"), format!("{scheme}://{place}"));
    for secret in ["hush", "whisper"] {
        assert!(!served.greeting.contains(secret), "{}", served.greeting);
    }
}
