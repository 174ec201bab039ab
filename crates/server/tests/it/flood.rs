//! One node that reports without end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::ProcessEpoch;
use protocol::message::{DownBody, Heartbeat, Up, UpBody};
use reqwest::{Method, StatusCode};
use store::memory::MemoryStore;
use wire::Connection;

use crate::daemon::{Daemon, call};
use crate::node;

const PATIENCE: Duration = Duration::from_secs(60);
/// At the rate of one stream it would take minutes.
const FLOOD: u64 = 100_000;

fn heartbeat(seq: u64, epoch: ProcessEpoch) -> Up {
    Up { seq, body: UpBody::Heartbeat(Heartbeat { epoch, ..Heartbeat::default() }) }
}

async fn next(stream: &mut Connection) -> DownBody {
    tokio::time::timeout(PATIENCE, stream.receiver.recv()).await.unwrap().unwrap().body
}

/// A stream that the coordinator has welcomed.
async fn joined(rpc: SocketAddr, id: &str) -> (Connection, ProcessEpoch) {
    let mut stream = wire::connect(&rpc.to_string()).await.unwrap();
    let hello = UpBody::Hello(node::hello(id, "127.0.0.1:1", Vec::new()));
    stream.sender.send(Up { seq: 1, body: hello }).await.unwrap();
    loop {
        if let DownBody::Welcome(welcome) = next(&mut stream).await {
            return (stream, welcome.epoch);
        }
    }
}

#[tokio::test]
async fn a_node_that_reports_without_end_keeps_no_other_from_being_acknowledged() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let (mut loud, loud_epoch) = joined(daemon.rpc, "loud").await;
    let (mut quiet, epoch) = joined(daemon.rpc, "quiet").await;
    let (sender, acknowledged) = (loud.sender.clone(), Arc::new(AtomicU64::new(0)));
    let flood = tokio::spawn(async move {
        for seq in 2..FLOOD {
            if sender.send(heartbeat(seq, loud_epoch)).await.is_err() {
                return;
            }
        }
    });
    let counted = acknowledged.clone();
    let heard = tokio::spawn(async move {
        while let Some(down) = loud.receiver.recv().await {
            counted.fetch_add(u64::from(matches!(down.body, DownBody::Answer(_))), Ordering::Relaxed);
        }
    });
    let burst = u64::from(doors::limits::STREAM_BURST);
    crate::daemon::eventually("the burst is over and the flood is slowed down", async || {
        acknowledged.load(Ordering::Relaxed) >= burst / 2
    })
    .await;
    for seq in 2..52 {
        quiet.sender.send(heartbeat(seq, epoch)).await.unwrap();
        loop {
            if let DownBody::Answer(answer) = next(&mut quiet).await {
                assert_eq!(answer.heartbeat, seq, "in order, none left out");
                break;
            }
        }
    }
    let (status, body) = call(daemon.api, Method::GET, "/v1/nodes", None).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let (done, flooding) = (acknowledged.load(Ordering::Relaxed), !flood.is_finished());
    assert!(flooding && done < FLOOD / 2, "the flood was through ({done}) before fifty reports of another");
    flood.abort();
    heard.abort();
}
