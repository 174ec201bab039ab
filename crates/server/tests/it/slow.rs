//! Clients that take their time on purpose, or say half of something and no more.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use server::ApiState;
use store::memory::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::daemon::{Daemon, call};

/// Longer than any of a door's own limits; only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two bytes of a header.
const DRIP: Duration = Duration::from_millis(100);
const HALVES: usize = 300;

/// The coordinator's API behind its real door.
async fn open() -> (Daemon, SocketAddr, DropGuard) {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), CancellationToken::new());
    let api = listener.local_addr().unwrap();
    let router = server::router(ApiState::candidate(daemon.office.clone()).unwrap());
    tokio::spawn(server::serve(listener, None, router, stop.clone()));
    (daemon, api, stop.drop_guard())
}

async fn said(api: SocketAddr, words: &str) -> TcpStream {
    let mut stream = TcpStream::connect(api).await.unwrap();
    stream.write_all(words.as_bytes()).await.unwrap();
    stream
}

/// All that comes until the other side closes.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let _reset = read.expect("the connection is closed at last");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A header without end, a byte at a time.
async fn dribble(api: SocketAddr) {
    let stream = said(api, "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Long: ").await;
    let (mut reader, mut writer) = stream.into_split();
    let dripping = async {
        while writer.write_all(b"a").await.is_ok() {
            tokio::time::sleep(DRIP).await;
        }
    };
    let closed = async {
        let mut answer = Vec::new();
        let _reset = reader.read_to_end(&mut answer).await;
    };
    let ended = async {
        tokio::select! { () = dripping => (), () = closed => () }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("whoever dribbles is closed at last");
}

#[tokio::test]
async fn whoever_dribbles_or_stops_half_way_is_closed_and_holds_up_nobody() {
    let (_daemon, api, _stop) = open().await;
    let dribbling = tokio::spawn(dribble(api));
    let mut halves = Vec::new();
    for _ in 0..HALVES {
        halves.push(said(api, "GET /v1/nodes HTTP/1.1\r\nHost:").await);
    }
    let head = "POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"service\":";
    let half_a_body = tokio::spawn(until_closed(said(api, head).await));
    for _ in 0..50 {
        let (status, body) = call(api, Method::GET, "/v1/nodes", None).await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
    let answer = half_a_body.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    dribbling.await.unwrap();
    for half in halves {
        until_closed(half).await;
    }
    assert_eq!(call(api, Method::GET, "/v1/nodes", None).await.0, StatusCode::OK);
}
