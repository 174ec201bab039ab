//! A real etcd that asks for certificates.

#![allow(clippy::unwrap_used)]

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use doors::{Authority, KeyFiles, Keys};
use store::{
    Candidate, Store,
    etcd::{EtcdConfig, EtcdStore},
    testing::wait_for,
};

struct Member {
    child: Child,
    url: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn keys(dir: &Path, name: &str, hosts: &[String]) -> KeyFiles {
    let authority = Authority::open(dir).or_else(|_| Authority::init(dir)).unwrap();
    let issued = authority.node(name, hosts, SystemTime::now() + Duration::from_secs(3600)).unwrap();
    KeyFiles { ca: authority.certificate(), cert: issued.cert, key: issued.key }
}

fn start(dir: &Path, files: &KeyFiles) -> Member {
    let url = format!("https://127.0.0.1:{}", free_port());
    let peer = format!("http://127.0.0.1:{}", free_port());
    let mut command = Command::new("etcd");
    command.args(["--name", "e", "--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("e={peer}"), "--client-cert-auth"]);
    command.arg("--data-dir").arg(dir.join("data")).arg("--trusted-ca-file").arg(&files.ca);
    command.arg("--cert-file").arg(&files.cert).arg("--key-file").arg(&files.key);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Member { child: command.spawn().expect("etcd is in PATH"), url }
}

#[tokio::test]
async fn an_etcd_that_asks_for_certificates_takes_ours_and_nobody_elses() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let member = start(dir.path(), &keys(dir.path(), "e", &["127.0.0.1".to_owned()]));
    let config = EtcdConfig { endpoints: vec![member.url.clone()], prefix: "/test".to_owned() };
    let ours = Keys::load_any(keys(dir.path(), "n1", &[])).unwrap();
    let store =
        wait_for("etcd answers", async || EtcdStore::open_with(&config, Some(ours.clone())).await.ok());
    let store = store.await;
    assert_eq!(store.head().await.unwrap(), 0);
    let me = Candidate::new("n1", "");
    assert!(store.office(&me, Duration::from_secs(5)).await.unwrap().elected().is_some());
    assert!(EtcdStore::open(&config).await.is_err(), "https:// needs certificates");
    let theirs = Keys::load_any(keys(other.path(), "n1", &[])).unwrap();
    assert!(EtcdStore::open_with(&config, Some(theirs)).await.is_err());
}
