//! `leasehold serve`: the lock server, configured by flags, environment and a file.

pub(crate) mod addresses;
mod config;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::backends::sqlite::Sqlite;
use leasehold::doctor::{self, Finding, Level};
use leasehold::{Error, ErrorKind, Locks};
use leasehold_server::{
    App, Examiner, Listeners, Log, LogForm, Settings, SoleServer, Tls, Tokens, serve, serve_figures,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;
use crate::report::{self, Failure};
use crate::url::Url;
use crate::warnings;

use addresses::{Addresses, urls};

/// How long the examination of the store's setup may take at start: nobody is served meanwhile.
const LOOK: Duration = Duration::from_secs(5);

/// How long remaining work, such as the lookup of a name, may take when all else has ended.
const PARTING: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  leasehold serve                            In ./leasehold.db, on 127.0.0.1:7420
  leasehold serve --store redis://localhost  Leases in Redis; servers can share it
  leasehold serve --listen 0.0.0.0:7420 --tokens FILE  For other machines, with tokens
  leasehold serve --check                    Check the settings and exit

SIGTERM and SIGINT stop the server within 5 seconds: waiting clients get a
retryable error. SIGHUP makes it read tokens and certificates again; the log says
whether it could.";

/// Run the lock server.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The store that keeps the leases [default: sqlite:leasehold.db]
    #[arg(long, alias = "url", env = "LEASEHOLD_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// Address to listen on; for a host name, all its addresses [default: 127.0.0.1:7420]
    #[arg(long, env = "LEASEHOLD_LISTEN", value_name = "ADDRESS")]
    listen: Option<String>,
    /// Serve /metrics and the dashboard only on this separate address; locks cannot be taken there
    #[arg(long, env = "LEASEHOLD_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Token file, as written by `leasehold token create`
    #[arg(long, env = "LEASEHOLD_TOKENS", value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Accept every client without a token, also from other machines
    #[arg(long, env = "LEASEHOLD_INSECURE_NO_AUTH", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    insecure_no_auth: Option<bool>,
    /// Certificate chain of the server, in PEM
    #[arg(long, env = "LEASEHOLD_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, env = "LEASEHOLD_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate from this authority
    #[arg(long, env = "LEASEHOLD_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Host name under which clients may address a server without tokens; repeat it or separate several with commas
    #[arg(long, env = "LEASEHOLD_HOST", value_name = "NAME", value_delimiter = ',')]
    host: Vec<String>,
    /// Namespace of all names in the store [default: leasehold]
    #[arg(long, env = "LEASEHOLD_NAMESPACE", value_name = "TEXT")]
    namespace: Option<String>,
    /// Longest ttl a client may ask for, in milliseconds [default: 600000]
    #[arg(long, env = "LEASEHOLD_MAX_TTL_MS", value_name = "MS")]
    max_ttl_ms: Option<u64>,
    /// Format of the operations log: text, json or none [default: text]
    #[arg(long, env = "LEASEHOLD_LOG", value_name = "FORM")]
    log: Option<String>,
    /// Show lock names and owners in the log, not only hashes
    #[arg(long, env = "LEASEHOLD_LOG_NAMES", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    log_names: Option<bool>,
    /// Accept risks to safety in the store's setup: do not warn about them, and pass --check
    #[arg(long, env = "LEASEHOLD_ACCEPT_RISKS", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    accept_risks: Option<bool>,
    /// File with any of these options, one `flag = value` per line
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the settings and exit
    #[arg(long)]
    check: bool,
}

/// Runs the server until a signal ends it.
pub(crate) fn run(mut args: Serve) -> Result<Exit, Failure> {
    if let Some(path) = args.config.clone() {
        config::read(&path)?.apply(&mut args)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::system("cannot start the async runtime", error))?;
    let exit = runtime.block_on(start(args));
    runtime.shutdown_timeout(PARTING);
    exit
}

/// A server that is ready to serve.
struct Ready {
    app: Arc<App>,
    tls: Option<Arc<Tls>>,
    listeners: Listeners,
    figures: Option<Listeners>,
    /// The URLs under which clients reach it; the first is the one to try.
    urls: Vec<String>,
    /// The address of its dashboard.
    page: String,
    data: String,
    risks: Vec<String>,
    _sole: Option<SoleServer>,
}

async fn start(args: Serve) -> Result<Exit, Failure> {
    if args.check {
        return check(&prepare(&args).await?);
    }
    // First of all, so that no signal kills it while it connects. A program that waits for the "listening" line may
    // also send a signal at once.
    let on = |kind| signal(kind).map_err(|error| Failure::system("cannot wait for signals", error));
    let (mut term, mut int) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    let hup = on(SignalKind::hangup())?;
    let mut told_to_end = std::pin::pin!(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    });
    let ready = tokio::select! {
        ready = prepare(&args) => ready?,
        () = told_to_end.as_mut() => return Ok(Exit::Success),
    };
    // From here on; warnings of the library while connecting are among the risks.
    let log = ready.app.log().clone();
    warnings::hear(move |line| log.warning(&line));
    // A server serves whether or not its greeting is read.
    let _ = report::answer(&greeting(&ready, args.tokens.is_some()));
    let Ready { app, tls, listeners, figures, _sole, .. } = ready;
    let beside =
        figures.map(|listeners| tokio::spawn(serve_figures(Arc::clone(&app), listeners, tls.clone())));
    let silent = args.log.as_deref() == Some("none");
    let reloading = tokio::spawn(reload(hup, Arc::clone(&app), tls.clone(), silent));
    serve(app, listeners, tls, told_to_end).await?;
    reloading.abort();
    if let Some(beside) = beside {
        // It ends with the other, and has no more time than that.
        let _ = beside.await;
    }
    Ok(Exit::Success)
}

/// Does everything that can fail, before any client is served.
async fn prepare(args: &Serve) -> Result<Ready, Failure> {
    let store = args.store.as_deref().unwrap_or("sqlite:leasehold.db");
    let addresses = Addresses::of("--listen", args.listen.as_deref().unwrap_or("127.0.0.1:7420")).await?;
    let figures = match &args.metrics_listen {
        Some(text) => Some(Addresses::of("--metrics-listen", text).await?),
        None => None,
    };
    for address in figures.iter().chain([&addresses]).flat_map(|addresses| &addresses.all) {
        if args.tokens.is_none() && !address.ip().is_loopback() && args.insecure_no_auth != Some(true) {
            return Err(Error::invalid(format!(
                "{address} can be reached from other machines, and without tokens every client may do everything; \
                 create a token with `leasehold token create` and pass `--tokens FILE`, or pass `--insecure-no-auth`"
            ))
            .into());
        }
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => {
            Some(Arc::new(Tls::read(cert.clone(), key.clone(), args.tls_client_ca.clone())?))
        }
        (None, None) if args.tls_client_ca.is_none() => None,
        (Some(_), None) => return Err(Failure::Usage("`--tls-cert` also needs `--tls-key`".into())),
        (None, Some(_)) => return Err(Failure::Usage("`--tls-key` also needs `--tls-cert`".into())),
        (None, None) => {
            let message = "`--tls-client-ca` also needs `--tls-cert` and `--tls-key`";
            return Err(Failure::Usage(message.into()));
        }
    };
    let mut settings = settings(args)?;
    settings.examiner = Some(Examiner::new(store));
    let scheme = if tls.is_some() { "https" } else { "http" };
    let shown = Url::new(store, None)?.shown();
    let failed = |error| Failure::Store(shown.clone(), error);
    let database = database(store)?;
    let sole = match database {
        Some(path) => Some(SoleServer::of(path, &addresses.shown(scheme)).map_err(failed)?),
        None => None,
    };
    let listeners = addresses.listen()?;
    let figures = figures.as_ref().map(Addresses::listen).transpose()?;
    // A check creates nothing. Of these stores, only opening them would show what they can do; all suit a server.
    let opening_creates = |scheme: &str| ["sqlite", "quorum", "postgres", "postgresql"].contains(&scheme);
    let only_look = args.check && opening_creates(&Url::new(store, None)?.scheme().to_ascii_lowercase());
    let opened = Locks::connect(if only_look { "memory:" } else { store }).await.map_err(failed)?;
    let app = App::new(opened, settings)?;
    let risks = if only_look {
        let late = |_| Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time");
        let preview = tokio::time::timeout(LOOK, doctor::preview(store)).await;
        let preview = preview.map_err(late).and_then(|preview| preview).map_err(failed)?;
        for what in preview.unchecked {
            report::say(&format!("leasehold: not checked: {what}"));
        }
        if args.accept_risks == Some(true) { Vec::new() } else { lines_of_risk(preview.findings) }
    } else if args.accept_risks == Some(true) {
        Vec::new()
    } else {
        risks(store, &shown, args.check).await?
    };
    for risk in &risks {
        report::say(&format!("leasehold: RISK: {risk}"));
    }
    let urls = urls(scheme, &listeners)?;
    let page = match &figures {
        Some(figures) => self::urls(scheme, figures)?.swap_remove(0),
        None => urls[0].clone(),
    };
    let data = if args.check { String::new() } else { data(store, database)? };
    Ok(Ready { app, tls, listeners, figures, urls, page, data, risks, _sole: sole })
}

/// Reports whether everything is in order.
fn check(ready: &Ready) -> Result<Exit, Failure> {
    let (exit, verdict) = match ready.risks.len() {
        0 => (Exit::Success, "everything is in order: "),
        1 => (
            Exit::Risk,
            "there is a risk to safety (`--accept-risks` accepts it); everything else is in order: ",
        ),
        _ => (
            Exit::Risk,
            "there are risks to safety (`--accept-risks` accepts them); everything else is in order: ",
        ),
    };
    report::answer(&format!("{verdict}{} could be served\n", ready.urls.join(" and ")))?;
    Ok(exit)
}

fn settings(args: &Serve) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    if let Some(namespace) = &args.namespace {
        settings.namespace.clone_from(namespace);
    }
    if args.max_ttl_ms == Some(0) {
        return Err(Failure::Usage("`--max-ttl-ms` must be above zero".into()));
    }
    if let Some(ms) = args.max_ttl_ms {
        settings.max_ttl = Duration::from_millis(ms);
    }
    settings.figures_elsewhere = args.metrics_listen.is_some();
    settings.hosts = hosts(&args.host)?;
    settings.tokens = args.tokens.as_ref().map(Tokens::read).transpose()?;
    settings.log_names = args.log_names == Some(true);
    settings.log = match args.log.as_deref() {
        None | Some("text") => log(LogForm::Text)?,
        Some("json") => log(LogForm::Json)?,
        Some("none") => Log::none(),
        Some(_) => return Err(Error::invalid("`--log` must be text, json or none").into()),
    };
    settings.max_connections = room_for_connections();
    Ok(settings)
}

fn log(form: LogForm) -> Result<Log, Failure> {
    Log::to(io::stderr(), form).map_err(|error| Failure::system("cannot start the log", error))
}

/// The names of `--host`. A variable set to the empty string names none.
fn hosts(given: &[String]) -> Result<Vec<String>, Failure> {
    let names: Vec<String> =
        given.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let is_name = |name: &str| {
        name.parse::<IpAddr>().is_ok()
            || !name.contains(|c: char| c.is_whitespace() || matches!(c, ':' | '/'))
    };
    match names.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(Failure::Usage(format!(
            "`--host` takes names without port, scheme or spaces, for example locks.internal; it is {wrong:?}"
        ))),
        None => Ok(names),
    }
}

/// The risks in the store's setup, one line each. If the store opens but cannot be examined, that is reported and does
/// not stop the server; only a check fails.
async fn risks(store: &str, shown: &str, is_check: bool) -> Result<Vec<String>, Failure> {
    let late = |_| Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time");
    let looked = tokio::time::timeout(LOOK, doctor::examine(store)).await;
    match looked.map_err(late).and_then(|findings| findings) {
        Ok(findings) => Ok(lines_of_risk(findings)),
        Err(error) => {
            let line = format!("{shown}: its setup could not be examined: {}", report::whole(&error));
            if is_check {
                return Err(Failure::Ended(error.kind().into(), line));
            }
            report::say(&format!(
                "leasehold: {line}; the server starts all the same, and `leasehold doctor` looks again"
            ));
            Ok(Vec::new())
        }
    }
}

/// The risks among these findings about the server's store.
fn lines_of_risk(findings: Vec<Finding>) -> Vec<String> {
    let behind = findings.into_iter().filter_map(Finding::behind_a_server);
    let risks = behind.filter(|finding| finding.level == Level::Risk);
    risks.map(|finding| finding.to_string()).collect()
}

/// As many connections as there are file descriptors, less some for everything else.
fn room_for_connections() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(files).unwrap_or(1024).saturating_sub(64).clamp(16, 1 << 20)
}

/// The file of a SQLite store.
fn database(store: &str) -> Result<Option<&Path>, Error> {
    match store.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("sqlite") => {
            Ok(Some(Path::new(Sqlite::path_of_url(rest)?)))
        }
        _ => Ok(None),
    }
}

/// Where the data is, without secrets.
fn data(store: &str, database: Option<&Path>) -> Result<String, Failure> {
    if let Some(path) = database {
        let real = path.canonicalize();
        let real = real.map_err(|error| Failure::system("the database cannot be found", error))?;
        return Ok(real.display().to_string());
    }
    let store = Url::new(store, None)?;
    Ok(match store.scheme().to_ascii_lowercase().as_str() {
        "memory" => "in memory only: gone when this process ends".into(),
        _ => store.shown(),
    })
}

fn greeting(ready: &Ready, tokens: bool) -> String {
    let token = if tokens { " -H \"authorization: Bearer $LEASEHOLD_TOKEN\"" } else { "" };
    let Ready { urls, page, data, .. } = ready;
    format!(
        "leasehold {version} listens on {all}\n\
         data       {data}\n\
         dashboard  {page}/\n\
         try        curl {url}/v1/locks/demo/acquire{token} -H 'content-type: application/json' \
         -d '{{\"owner_id\":\"me\",\"ttl_ms\":30000}}'\n\
         export LEASEHOLD_URL={url}\n",
        version = env!("CARGO_PKG_VERSION"),
        all = urls.join(" and "),
        url = urls[0],
    )
}

/// Reads tokens and certificates again on SIGHUP. A file that cannot be read changes nothing. The log says how it
/// went; without a log, stderr says what went wrong.
async fn reload(mut hup: Signal, app: Arc<App>, tls: Option<Arc<Tls>>, silent: bool) {
    while hup.recv().await.is_some() {
        let failures = app.reload(tls.as_deref()).err().unwrap_or_default();
        for failure in failures.iter().filter(|_| silent) {
            report::say(&format!("leasehold: reload failed: {failure}"));
        }
    }
}
