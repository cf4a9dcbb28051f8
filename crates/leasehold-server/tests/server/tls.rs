//! Certificates: the server's, with reloading, and the clients'.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use leasehold::Locks;
use leasehold::backends::http::{Http, Options};
use leasehold_server::{App, Settings, Tls, serve};
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn write(&self, path: &Path) {
        let certificate: &Certificate = self.0.as_ref();
        std::fs::write(path, certificate.pem()).unwrap();
    }

    /// Makes a certificate for loopback and its key, in files of this name.
    fn sign(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let paths = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        std::fs::write(&paths.0, certificate.pem()).unwrap();
        std::fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }
}

async fn start(tls: Arc<Tls>) -> String {
    let app = App::new(Locks::connect("memory:").await.unwrap(), Settings::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(serve(app, listener, Some(tls), std::future::pending()));
    url
}

fn options(url: &str, ca: &Path) -> Options {
    let mut options = Options::parse(url).unwrap();
    options.ca = Some(ca.to_owned());
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_trusts_its_authority_across_certificate_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let (old_ca, new_ca) = (directory.path().join("old"), directory.path().join("new"));
    old.write(&old_ca);
    new.write(&new_ca);
    let (cert, key) = old.sign(directory.path(), "server");
    let tls = Arc::new(Tls::read(cert, key, None).unwrap());
    let url = start(Arc::clone(&tls)).await;
    let locks = Locks::connect(&format!("{url}?ca={}", old_ca.display())).await.unwrap();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let error = Http::open(options(&url, &new_ca)).await.unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Unavailable);
    new.sign(directory.path(), "server");
    tls.reload().unwrap();
    Http::open(options(&url, &new_ca)).await.unwrap();
    std::fs::write(directory.path().join("server.pem"), "nonsense").unwrap();
    assert!(tls.reload().is_err());
    Http::open(options(&url, &new_ca)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_certificate_get_in_where_one_is_demanded() {
    let directory = tempfile::tempdir().unwrap();
    let (servers, clients) = (Authority::new(), Authority::new());
    let (ca, client_ca) = (directory.path().join("ca"), directory.path().join("client_ca"));
    servers.write(&ca);
    clients.write(&client_ca);
    let (cert, key) = servers.sign(directory.path(), "server");
    let url = start(Arc::new(Tls::read(cert, key, Some(client_ca)).unwrap())).await;
    assert!(Http::open(options(&url, &ca)).await.is_err());
    let mut stranger = options(&url, &ca);
    stranger.identity = Some(servers.sign(directory.path(), "stranger"));
    assert!(Http::open(stranger).await.is_err());
    let mut known = options(&url, &ca);
    known.identity = Some(clients.sign(directory.path(), "known"));
    Http::open(known).await.unwrap();
}
