//! Copies over real connections, with old nodes that are honest, gone, silent or cut off.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use model::{InstanceId, Millis, ServiceName, spec::ServiceFile};
use protocol::{
    message::{DiskFrom, Run},
    node::{Copied, Ending, Note, Wanted},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

const OLD: InstanceId = InstanceId(3);
/// Never full.
const ROOM: f64 = 2.0;

fn plain() -> Http {
    Http::new(None, SILENCE_MAX).unwrap()
}

fn run(api: &str) -> Run {
    let file = ServiceFile {
        name: "cache".into(),
        kind: "service".into(),
        count: None,
        command: vec!["true".into()],
        env: BTreeMap::new(),
        memory: "64MiB".into(),
        cpu: 100,
        ports: vec![],
        check: None,
        edge: None,
        stop: Default::default(),
        migrate: Default::default(),
        update: Default::default(),
        volume: None,
        disk: Default::default(),
        rerun: true,
        constraints: BTreeMap::new(),
    };
    let spec = Arc::new(file.check().unwrap().2);
    assert!(spec.migrate.healthy_deadline > Millis::ZERO);
    let disk_from = Some(DiskFrom { instance: OLD, api: api.into() });
    Run { service: ServiceName::new("cache"), release: 1, slot: None, volume: None, disk_from, spec }
}

/// An old node whose instance left a file, over or not; and a new one with an empty directory.
struct Nodes {
    dir: TempDir,
    api: SocketAddr,
    _serving: tokio::task::JoinHandle<()>,
}

impl Nodes {
    async fn whose_instance_is(over: Option<Ending>) -> Nodes {
        let dir = tempfile::tempdir().unwrap();
        let nodes = Nodes::at(dir, TcpListener::bind("127.0.0.1:0").await.unwrap());
        let source = nodes.source();
        std::fs::create_dir_all(source.join(DISK)).unwrap();
        std::fs::create_dir(nodes.target()).unwrap();
        std::fs::write(source.join(DISK).join("file"), "the last word").unwrap();
        let note = Note { order: 3, wanted: Wanted::Stop, ready: false, over, copied: Copied::Done };
        disk::save_order(&source, &disk::order_line(OLD, note, &run(""), &[], Some(1))).unwrap();
        nodes
    }

    fn at(dir: TempDir, listener: TcpListener) -> Nodes {
        let api = listener.local_addr().unwrap();
        let router = crate::agent::local_router(dir.path().to_owned(), crate::agent::LocalCallers::Anyone);
        let _serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Nodes { dir, api, _serving }
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join(OLD.named(&ServiceName::new("cache")))
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("the-new-one")
    }

    async fn fetch(&self) -> CopyEnd {
        fetch(&run(&self.api.to_string()), &self.target(), ROOM, CancellationToken::new(), &plain()).await
    }
}

/// Answers one request with these bytes, then closes; or, `silent`, keeps the connection.
async fn forger(answer: &'static [u8], silent: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        stream.write_all(answer).await.unwrap();
        if silent {
            std::future::pending::<()>().await;
        }
    });
    api
}

#[tokio::test]
async fn what_one_that_is_over_left_comes_whole_and_half_of_an_earlier_try_is_thrown_away() {
    let nodes = Nodes::whose_instance_is(Some(Ending::Stopped)).await;
    std::fs::create_dir(nodes.target().join(HALF)).unwrap();
    std::fs::write(nodes.target().join(HALF).join("stale"), "half").unwrap();
    assert_eq!(nodes.fetch().await, CopyEnd::Done);
    let names = std::fs::read_dir(nodes.target().join(DISK)).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["file"]);
    assert_eq!(std::fs::read_to_string(nodes.target().join(DISK).join("file")).unwrap(), "the last word");
    assert!(!nodes.target().join(HALF).exists());
}

#[tokio::test]
async fn what_came_whole_is_not_asked_for_again() {
    let nodes = Nodes::whose_instance_is(None).await;
    std::fs::create_dir(nodes.target().join(DISK)).unwrap();
    assert_eq!(nodes.fetch().await, CopyEnd::Done);
}

#[tokio::test]
async fn one_that_is_not_over_gives_nothing() {
    let nodes = Nodes::whose_instance_is(None).await;
    let end = nodes.fetch().await;
    assert!(matches!(&end, CopyEnd::Impossible { message } if message.contains("is not over")), "{end:?}");
    assert!(!nodes.target().join(DISK).exists());
}

#[tokio::test]
async fn a_directory_that_is_gone_is_said_at_once() {
    let nodes = Nodes::whose_instance_is(Some(Ending::Stopped)).await;
    std::fs::remove_dir_all(nodes.source().join(DISK)).unwrap();
    let end = nodes.fetch().await;
    assert!(
        matches!(&end, CopyEnd::Impossible { message } if message.contains("no scratch data")),
        "{end:?}"
    );
    std::fs::remove_dir_all(nodes.source()).unwrap();
    assert!(matches!(nodes.fetch().await, CopyEnd::Impossible { .. }));
}

#[tokio::test]
async fn a_link_in_place_of_the_directory_is_not_followed() {
    let nodes = Nodes::whose_instance_is(Some(Ending::Stopped)).await;
    std::fs::rename(nodes.source().join(DISK), nodes.dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(nodes.dir.path().join("elsewhere"), nodes.source().join(DISK)).unwrap();
    assert!(matches!(nodes.fetch().await, CopyEnd::Impossible { .. }));
}

#[tokio::test]
async fn a_node_that_does_not_answer_was_not_heard() {
    let nodes = Nodes::whose_instance_is(None).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let end =
        fetch(&run(&closed.to_string()), &nodes.target(), ROOM, CancellationToken::new(), &plain()).await;
    assert!(matches!(end, CopyEnd::Broken { heard: false, .. }), "{end:?}");
    let end = fetch(&run(""), &nodes.target(), ROOM, CancellationToken::new(), &plain()).await;
    assert!(matches!(end, CopyEnd::Impossible { .. }), "{end:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_middle_leaves_nothing_behind() {
    let nodes = Nodes::whose_instance_is(None).await;
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndisk/\r\n";
    // Also one that ends well by itself, with half an archive in it.
    let ended = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\ndisk/";
    for answer in [chunked.as_slice(), ended] {
        let api = forger(answer, false).await;
        let end = fetch(&run(&api), &nodes.target(), ROOM, CancellationToken::new(), &plain()).await;
        assert!(matches!(end, CopyEnd::Broken { heard: true, .. }), "{end:?}");
        assert_eq!(std::fs::read_dir(nodes.target()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn a_copy_that_is_given_up_ends_and_leaves_nothing_behind() {
    let nodes = Nodes::whose_instance_is(None).await;
    let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndisk/\r\n";
    let api = forger(answer, true).await;
    let cancel = CancellationToken::new();
    let (order, dir, stop) = (run(&api), nodes.target(), cancel.clone());
    let copying = tokio::spawn(async move { fetch(&order, &dir, ROOM, stop, &plain()).await });
    cancel.cancel();
    assert!(matches!(copying.await.unwrap(), CopyEnd::Broken { .. }));
    assert_eq!(std::fs::read_dir(nodes.target()).unwrap().count(), 0);
}
