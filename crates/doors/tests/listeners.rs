//! Listeners under people who mean no good.

#![allow(clippy::unwrap_used)]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use doors::{Authority, Callers, Door, Io, Issued, KeyFiles, Keys, Who, open};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::{CancellationToken, DropGuard};

const PATIENCE: Duration = Duration::from_secs(30);

async fn listen(
    keys: Option<Keys>,
    callers: Callers,
    max: usize,
) -> (SocketAddr, mpsc::Receiver<Io>, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let door = Door { name: "test", keys, callers, connections_max: max, per_host_max: max };
    (address, open(listener, door, stop.clone()), stop.drop_guard())
}

/// Ends when the other side has closed the connection.
async fn until_closed(stream: &mut TcpStream) {
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_a_place_that_is_left_is_taken() {
    let (address, mut taken, _stop) = listen(None, Callers::Anyone, 2).await;
    let _first = TcpStream::connect(address).await.unwrap();
    let first = taken.recv().await.unwrap();
    let _second = TcpStream::connect(address).await.unwrap();
    let _kept = taken.recv().await.unwrap();
    until_closed(&mut TcpStream::connect(address).await.unwrap()).await;
    drop(first);
    let _third = TcpStream::connect(address).await.unwrap();
    assert!(taken.recv().await.is_some());
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_when_its_handshake_is_over_time() {
    let dir = tempfile::tempdir().unwrap();
    let (_, keys) = cluster(dir.path());
    let (address, _taken, _stop) = listen(Some(keys), Callers::Nodes, 2).await;
    until_closed(&mut TcpStream::connect(address).await.unwrap()).await;
}

fn cluster(dir: &std::path::Path) -> (Authority, Keys) {
    let authority = Authority::init(dir).unwrap();
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    let own = authority.node("n1", &["127.0.0.1".to_owned()], tomorrow).unwrap();
    let files = KeyFiles { ca: authority.certificate(), cert: own.cert, key: own.key };
    (authority, Keys::load(files).unwrap())
}

/// As one would dial who does not care whether anybody will believe the certificate.
async fn shameless(
    address: SocketAddr,
    authority: &Authority,
    shown: Option<&Issued>,
) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.certificate()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match shown {
        Some(shown) => {
            let chain = vec![CertificateDer::from_pem_file(&shown.cert).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&shown.key).unwrap()).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let tcp = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
}

/// What the other side said of the certificate.
async fn refusal(mut stream: TlsStream<TcpStream>) -> String {
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap();
    read.unwrap_err().to_string()
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused_and_so_is_none_where_one_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, keys) = cluster(dir.path());
    let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
    let old = authority.node("n2", &[], yesterday).unwrap();
    for callers in [Callers::Nodes, Callers::Anyone] {
        let (address, _taken, _stop) = listen(Some(keys.clone()), callers, 8).await;
        let said = refusal(shameless(address, &authority, Some(&old)).await).await;
        assert!(said.contains("CertificateExpired"), "{callers:?}: {said}");
    }
    let (address, _taken, _stop) = listen(Some(keys), Callers::Nodes, 8).await;
    let said = refusal(shameless(address, &authority, None).await).await;
    assert!(said.contains("CertificateRequired"), "{said}");
}

#[tokio::test]
async fn whoever_comes_in_is_known_by_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, keys) = cluster(dir.path());
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    let (address, mut taken, _stop) = listen(Some(keys), Callers::Anyone, 8).await;
    let node = authority.node("n2", &[], tomorrow).unwrap();
    let _open = shameless(address, &authority, Some(&node)).await;
    assert_eq!(taken.recv().await.unwrap().peer().who, Some(Who::Node("n2".to_owned())));
    let _open = shameless(address, &authority, None).await;
    assert_eq!(taken.recv().await.unwrap().peer().who, None);
}

#[tokio::test]
async fn a_certificate_that_is_revoked_is_refused_and_what_it_had_opened_ends() {
    use tokio::io::AsyncWriteExt;
    let dir = tempfile::tempdir().unwrap();
    let (authority, keys) = cluster(dir.path());
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    let lost = authority.node("n2", &["127.0.0.1".to_owned()], tomorrow).unwrap();
    let kept = authority.node("n3", &[], tomorrow).unwrap();
    let (address, mut taken, _stop) = listen(Some(keys.clone()), Callers::Nodes, 8).await;
    let mut of_lost = shameless(address, &authority, Some(&lost)).await;
    let mut from_lost = taken.recv().await.unwrap();
    let mut of_kept = shameless(address, &authority, Some(&kept)).await;
    let mut from_kept = taken.recv().await.unwrap();
    of_lost.write_all(b"a").await.unwrap();
    assert_eq!(from_lost.read(&mut [0; 16]).await.unwrap(), 1, "it is believed so far");

    assert!(authority.revoke("n2").unwrap().is_some());
    assert_eq!(authority.revoke("n2").unwrap(), None, "once is enough");
    assert!(keys.look(true).unwrap());
    of_lost.write_all(b"b").await.unwrap();
    let said = from_lost.read(&mut [0; 16]).await.unwrap_err();
    assert!(said.to_string().contains("revoked"), "{said}");
    assert!(from_lost.write(b"secret").await.is_err(), "and nothing is told to it");
    of_kept.write_all(b"c").await.unwrap();
    assert_eq!(from_kept.read(&mut [0; 16]).await.unwrap(), 1);
    let said = refusal(shameless(address, &authority, Some(&lost)).await).await;
    assert!(said.contains("CertificateRevoked"), "{said}");
    let _open = shameless(address, &authority, Some(&kept)).await;
    assert_eq!(taken.recv().await.unwrap().peer().who, Some(Who::Node("n3".to_owned())));

    let files = KeyFiles { ca: authority.certificate(), cert: lost.cert, key: lost.key };
    let said = Keys::load(files).err().unwrap().to_string();
    assert!(said.contains("n2.pem was revoked"), "{said}");
    let next = authority.node("n2", &["127.0.0.1".to_owned()], tomorrow).unwrap();
    let _open = shameless(address, &authority, Some(&next)).await;
    assert_eq!(taken.recv().await.unwrap().peer().who, Some(Who::Node("n2".to_owned())));
}

#[tokio::test]
async fn a_daemon_does_not_dial_one_whose_certificate_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, keys) = cluster(dir.path());
    let (address, _taken, _stop) = listen(Some(keys), Callers::Nodes, 8).await;
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 3600);
    let own = authority.node("n2", &["127.0.0.1".to_owned()], tomorrow).unwrap();
    let files = KeyFiles { ca: authority.certificate(), cert: own.cert, key: own.key };
    let other = Keys::load(files).unwrap();
    let endpoint = || tonic::transport::Endpoint::from_shared(format!("https://{address}")).unwrap();
    assert!(other.dial(endpoint(), Some("n1")).await.is_ok());
    authority.revoke("n1").unwrap();
    assert!(other.look(true).unwrap());
    let error = other.dial(endpoint(), Some("n1")).await.unwrap_err();
    assert!(format!("{error:?}").contains("Revoked"), "{error:?}");
}

#[test]
fn a_list_that_cannot_be_read_is_an_error_and_what_was_believed_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (_, keys) = cluster(dir.path());
    std::fs::write(dir.path().join("revoked.txt"), "# ours\nn2\n").unwrap();
    let said = keys.look(true).unwrap_err().to_string();
    assert!(said.contains("revoked.txt: line 2 is no fingerprint"), "{said}");
    assert!(!keys.look(false).unwrap(), "it is said once");
}

/// Connections that both sides of hold in this process, as far as its descriptors go.
fn idle_max() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _as_before = setrlimit(Resource::Nofile, limit);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    10_000.min(usize::try_from(descriptors.saturating_sub(500) / 2).unwrap_or(10_000))
}

#[tokio::test]
async fn ten_thousand_idle_connections_are_held_one_more_is_closed_and_a_place_is_given_on() {
    let max = idle_max();
    let (address, mut taken, _stop) = listen(None, Callers::Anyone, max).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while ours.len() < max {
        // As many at a time as are taken up without a pause.
        let count = 64.min(max - ours.len());
        for _ in 0..count {
            ours.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in 0..count {
            theirs.push(tokio::time::timeout(PATIENCE, taken.recv()).await.unwrap().unwrap());
        }
    }
    until_closed(&mut TcpStream::connect(address).await.unwrap()).await;
    theirs.pop();
    let _next = TcpStream::connect(address).await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, taken.recv()).await.unwrap().is_some());
    assert_eq!(ours.len(), max);
}
