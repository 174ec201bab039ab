//! Following along.

use futures_util::StreamExt;
use store::memory::MemoryStore;

use crate::daemon::{Daemon, eventually, web};

#[derive(Debug, Default)]
pub struct Sse {
    id: u64,
    pub event: String,
    data: serde_json::Value,
}

/// Everything there is at the moment.
pub async fn read(daemon: &Daemon, query: &str, last: Option<u64>) -> Vec<Sse> {
    let client = doors::http().no_proxy().build().unwrap();
    let mut request = client.get(format!("http://{}/v1/events?follow=false{query}", daemon.api));
    if let Some(last) = last {
        request = request.header("last-event-id", last.to_string());
    }
    let text = request.send().await.unwrap().text().await.unwrap();
    let parse = |block: &str| {
        let mut sse = Sse::default();
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => sse.id = id.parse().unwrap(),
                Some(("event", event)) => sse.event = event.to_owned(),
                Some(("data", data)) => sse.data = serde_json::from_str(data).unwrap(),
                _ => {}
            }
        }
        sse
    };
    text.split("\n\n").filter(|block| block.contains("id: ")).map(parse).collect()
}

#[tokio::test]
async fn a_program_that_comes_back_goes_on_where_it_was() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    eventually("the election is told", async || !read(&daemon, "", None).await.is_empty()).await;
    let first = read(&daemon, "", None).await;
    assert_eq!(first[0].event, "coordinator.elected");
    assert_eq!(first[0].data["number"], first[0].id);
    let seen = first.last().unwrap().id;
    daemon.put("/v1/services/web", web(1)).await;
    eventually("the service is told", async || !read(&daemon, "", Some(seen)).await.is_empty()).await;
    let more = read(&daemon, "", Some(seen)).await;
    assert_eq!(more[0].id, seen + 1);
    assert!(
        more.iter().any(|sse| sse.event == "service.applied" && sse.data["unit"] == "service/web"),
        "{more:?}"
    );
    let same = read(&daemon, &format!("&since={seen}"), None).await;
    assert_eq!(same[0].id, seen + 1);
}

#[tokio::test]
async fn what_is_gone_is_said_with_a_reset() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    eventually("the election is told", async || !read(&daemon, "", None).await.is_empty()).await;
    let told = read(&daemon, "&since=1", None).await;
    assert_eq!((told[0].event.as_str(), &told[0].data["asked"]), ("reset", &serde_json::json!(1)));
    assert_eq!(told[1].event, "coordinator.elected");
    let ahead = read(&daemon, "", Some(u64::MAX)).await;
    assert_eq!(ahead[0].event, "reset");
    assert_eq!(read(&daemon, "&since=0", None).await[0].event, "coordinator.elected");
}

#[tokio::test]
async fn a_follower_is_let_go_when_the_office_ends() {
    let daemon = Daemon::acting(&MemoryStore::new()).await;
    let client = doors::http().no_proxy().build().unwrap();
    let url = format!("http://{}/v1/events", daemon.api);
    let mut stream = client.get(url).send().await.unwrap().bytes_stream();
    assert!(stream.next().await.unwrap().is_ok());
    daemon.office.shutdown().await;
    while let Some(part) = stream.next().await {
        part.unwrap();
    }
}
