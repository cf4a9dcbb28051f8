//! A server in a separate process, a client that uses its locks, and a browser on its page.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

use leasehold::{LeaseId, Locks};
use leasehold_server::{App, Settings, Tokens, serve as serve_on, serve_figures};
use serde_json::{Value, json};
use testkit::browser::Browser;
use testkit::process::{Child, hear, say};

/// The test whose other role is the server.
const HOST: &str = "the_page_loads_without_errors_and_contacts_only_its_server";

/// In the child process: serves until the parent is gone.
pub(crate) fn serve(role: &str) {
    let role: Value = serde_json::from_str(role).unwrap();
    std::thread::spawn(|| {
        loop {
            hear();
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut settings = Settings::default();
        settings.tokens = role["tokens"].as_str().map(|path| Tokens::read(path).unwrap());
        settings.figures_elsewhere = role["elsewhere"] == true;
        let elsewhere = settings.figures_elsewhere;
        let app = App::new(Locks::connect("memory:").await.unwrap(), settings).unwrap();
        let port = u16::try_from(role["port"].as_u64().unwrap()).unwrap();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        say(&listener.local_addr().unwrap().port().to_string());
        if elsewhere {
            let figures = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            say(&figures.local_addr().unwrap().port().to_string());
            tokio::spawn(serve_figures(app.clone(), figures, None));
        }
        serve_on(app, listener, None, std::future::pending()).await.unwrap();
    });
}

/// A server in a separate process; stopped on drop.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) port: u16,
    /// The address of its page.
    pub(crate) url: String,
    /// Its user's token.
    pub(crate) token: Option<String>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Server::on(0, None)
    }

    pub(crate) fn on(port: u16, tokens: Option<&Path>) -> Self {
        let process = Child::spawn(HOST, &json!({ "port": port, "tokens": tokens }).to_string());
        let port = process.line().parse().unwrap();
        Server { process, port, url: format!("http://127.0.0.1:{port}/"), token: None }
    }

    /// A server whose page has its own address.
    pub(crate) fn with_page_elsewhere() -> Self {
        let process = Child::spawn(HOST, &json!({ "port": 0, "elsewhere": true }).to_string());
        let port = process.line().parse().unwrap();
        let url = format!("http://127.0.0.1:{}/", process.line());
        Server { process, port, url, token: None }
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n\
             {}content-length: {}\r\n\r\n{body}",
            token.unwrap_or_default(),
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(testkit::until::PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    pub(crate) fn verb(&self, name: &str, verb: &str, body: Value) -> Value {
        self.call("POST", &format!("/v1/locks/{}/{verb}", leasehold::wire::segment(name)), &body)
    }

    pub(crate) fn lock(&self, name: &str) -> Value {
        self.call("GET", &format!("/v1/locks/{}", leasehold::wire::segment(name)), &Value::Null)
    }

    /// Takes a free lock; returns its lease id.
    pub(crate) fn take(&self, name: &str, owner: &str, ttl_ms: u64) -> String {
        let answer = self.verb(name, "acquire", json!({ "owner_id": owner, "ttl_ms": ttl_ms }));
        assert_eq!(answer["acquired"], true, "{answer}");
        answer["lease_id"].as_str().unwrap().to_owned()
    }

    /// Queues for a lock for a while; returns the body that repeats the request.
    pub(crate) fn queue(&self, name: &str, owner: &str) -> Value {
        let id = LeaseId::random();
        let place = json!({ "owner_id": owner, "ttl_ms": 30_000, "lease_id": id.expose(), "queue": 50_000 });
        assert_eq!(self.verb(name, "acquire", place.clone())["acquired"], false);
        place
    }

    pub(crate) fn release(&self, name: &str, lease: &str) {
        assert_eq!(self.verb(name, "release", json!({ "lease_id": lease }))["released"], true);
    }
}

/// The dashboard of a server, in a browser.
pub(crate) struct Page(Browser);

impl Page {
    pub(crate) fn open(server: &Server) -> Self {
        let mut page = Page::at(server);
        page.until("document.getElementById('status').dataset.state === 'live'");
        page
    }

    /// Opens the page without waiting for it.
    pub(crate) fn at(server: &Server) -> Self {
        let mut browser = Browser::start();
        browser.go(&server.url);
        Page(browser)
    }

    /// A JavaScript expression for the row of a lock.
    pub(crate) fn row(name: &str) -> String {
        format!(
            "[...document.querySelectorAll('#locks tr')].find((row) => row.dataset.name === {})",
            json!(name)
        )
    }

    #[track_caller]
    pub(crate) fn sees(&mut self, name: &str) -> Duration {
        self.until(&Page::row(name))
    }

    #[track_caller]
    pub(crate) fn sees_no(&mut self, name: &str) -> Duration {
        self.until(&format!("!{}", Page::row(name)))
    }

    pub(crate) fn count(&mut self, selector: &str) -> u64 {
        self.eval(&format!("document.querySelectorAll({}).length", json!(selector))).as_u64().unwrap()
    }

    pub(crate) fn said(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)));
        text.as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn says(&mut self, selector: &str, text: &str) {
        self.until(&format!(
            "document.querySelector({})?.innerText.includes({})",
            json!(selector),
            json!(text)
        ));
    }

    pub(crate) fn open_detail(&mut self, name: &str) {
        self.click(&format!("#locks tr[data-name={}] button", json!(name)));
        self.until("document.getElementById('detail').open && document.querySelector('#detail-body h3')");
    }

    /// Clicks revoke in the detail view; the confirmation is then open.
    pub(crate) fn begin_to_revoke(&mut self) {
        self.until("!document.getElementById('revoke').disabled");
        self.click("#revoke");
        self.until("document.getElementById('confirm').open");
    }

    pub(crate) fn search(&mut self, text: &str) {
        self.click("#search");
        self.eval("document.getElementById('search').select()");
        self.text(text);
    }
}

impl Deref for Page {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.0
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut Browser {
        &mut self.0
    }
}
