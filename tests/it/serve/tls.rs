//! TLS: the same answers, to whoever knows the certificate.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Ask, Place, Reply, Server};

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/data/tls")).join(name)
}

fn serve(place: &Place, mode: u32) -> std::process::Command {
    let key = place.dir.path().join("key.pem");
    fs::copy(file("key.pem"), &key).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
    let mut command = place.command();
    command.args(["--tls-certificate", file("chain.pem").to_str().unwrap()]);
    command.args(["--tls-key", key.to_str().unwrap()]);
    command
}

#[test]
fn a_client_that_knows_the_certificate_is_answered_and_one_that_speaks_plain_is_not() {
    let place = Place::new();
    let mut server = Server::start(serve(&place, 0o600));
    assert_eq!(server.told()["did"], "ready");
    assert_eq!(ask(&server, "chain.pem").unwrap().status, 200);
    let mut plain = server.connect();
    std::io::Write::write_all(&mut plain, &Ask::get("/v1/jobs").bytes()).unwrap();
    let mut answer = Vec::new();
    drop(std::io::Read::read_to_end(&mut plain, &mut answer));
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1 200"));
}

/// Asks as a client that trusts one certificate.
fn ask(server: &Server, trusts: &str) -> std::io::Result<Reply> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file(trusts)).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let text = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(name, stream).await?;
        stream.write_all(&Ask::get("/v1/jobs").bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        std::io::Result::Ok(text)
    });
    text.map(|text| Reply::of(&text))
}

#[test]
fn a_renewed_certificate_is_shown_behind_a_hang_up_and_a_broken_one_changes_nothing() {
    let place = Place::new();
    let (chain, key) = (place.dir.path().join("chain.pem"), place.dir.path().join("key.pem"));
    let set = |of: &str| {
        fs::copy(file(&format!("{of}chain.pem")), &chain).unwrap();
        fs::copy(file(&format!("{of}key.pem")), &key).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    };
    set("");
    let mut command = place.command();
    command.args(["--tls-certificate", chain.to_str().unwrap()]);
    command.args(["--tls-key", key.to_str().unwrap()]);
    let mut server = Server::start(command);
    assert_eq!(server.told()["did"], "ready");
    assert!(ask(&server, "chain.pem").is_ok() && ask(&server, "renewed-chain.pem").is_err());
    set("renewed-");
    server.signal(Signal::HUP);
    assert_eq!(server.told()["did"], "refreshed");
    assert!(ask(&server, "chain.pem").is_err() && ask(&server, "renewed-chain.pem").is_ok());
    // The key of another one.
    fs::copy(file("chain.pem"), &chain).unwrap();
    server.signal(Signal::HUP);
    let refused = server.told();
    assert_eq!(refused["did"], "refused");
    assert!(refused["reason"].as_str().unwrap().contains("the certificate stays"), "{refused}");
    assert!(ask(&server, "renewed-chain.pem").is_ok());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let place = Place::new();
    let output = serve(&place, 0o644).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("others can"));
}
