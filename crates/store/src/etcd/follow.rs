//! Watches that outlive their streams.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::client::{Client, request};
use super::keys::decode_number;
use super::links::Link;
use super::proto::event::EventType;
use super::proto::watch_client::WatchClient;
use super::proto::watch_request::RequestUnion;
use super::proto::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use crate::contract::{Committed, Holder, KeyRange, Op, Position};
use crate::error::{StoreError, WatchError};

/// Between a broken stream and the next.
const RESUME_PAUSE: Duration = Duration::from_millis(200);

/// Until a watch must be confirmed.
const CREATE_TIMEOUT: Duration = Duration::from_secs(5);

struct Stream {
    link: Link,
    answers: tonic::Streaming<WatchResponse>,
}

enum Interruption {
    /// Open another stream and go on from the last revision seen.
    Resume(String),
    Compacted,
    Over(StoreError),
}

impl Client {
    /// Watches from `revision` on.
    async fn open_watch(&self, key: &[u8], end: &[u8], revision: u64) -> Result<Stream, Interruption> {
        let link = self.links.get("following").await.map_err(|error| match error {
            StoreError::Unavailable { .. } => Interruption::Resume(error.to_string()),
            error => Interruption::Over(error),
        })?;
        let create = WatchCreateRequest {
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(end),
            start_revision: revision as i64,
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // the watch lives as long as the requests' side of the stream is open
        let requests = tokio_stream::once(create).chain(tokio_stream::pending());
        let mut client = WatchClient::new(link.channel.clone()).max_decoding_message_size(usize::MAX);
        let opened = timeout(CREATE_TIMEOUT, client.watch(request(requests))).await;
        match opened {
            Ok(Ok(answers)) => Ok(Stream { link, answers: answers.into_inner() }),
            Ok(Err(status)) => Err(self.broken(&link, status.to_string()).await),
            Err(_elapsed) => Err(self.broken(&link, "not confirmed in time".to_owned()).await),
        }
    }

    async fn broken(&self, link: &Link, why: String) -> Interruption {
        self.links.failed(link).await;
        Interruption::Resume(why)
    }

    /// The next events, not empty.
    async fn events(&self, stream: &mut Stream) -> Result<Vec<Event>, Interruption> {
        loop {
            let answer = match stream.answers.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(self.broken(&stream.link, "the stream ended".to_owned()).await),
                Err(status) => return Err(self.broken(&stream.link, status.to_string()).await),
            };
            self.links.check_link(&stream.link, &answer).map_err(Interruption::Over)?;
            if answer.compact_revision > 0 {
                return Err(Interruption::Compacted);
            }
            if answer.canceled {
                return Err(self.broken(&stream.link, answer.cancel_reason).await);
            }
            if !answer.events.is_empty() {
                return Ok(answer.events);
            }
        }
    }

    /// Whole transactions out of events. etcd never splits one over two answers unless it is asked to.
    fn transactions(
        &self,
        events: Vec<Event>,
        position: &mut Position,
    ) -> Result<Vec<Committed>, WatchError> {
        let mut found: Vec<(Committed, Option<u64>)> = Vec::new();
        for event in events {
            let deleted = event.r#type == EventType::Delete as i32;
            let Some(kv) = event.kv else { continue };
            let revision = kv.mod_revision as u64;
            if found.last().is_none_or(|(last, _)| last.revision != revision) {
                found.push((Committed { head: 0, revision, ops: Vec::new() }, None));
            }
            let Some((current, head)) = found.last_mut() else { continue };
            if kv.key == self.keys.head {
                *head = decode_number(&kv.value);
            } else if let Some(key) = kv.key.strip_prefix(self.keys.records.as_slice()) {
                current.ops.push(Op { key: key.to_vec(), value: (!deleted).then(|| kv.value.to_vec()) });
            }
        }
        let mut whole = Vec::with_capacity(found.len());
        for (mut committed, head) in found {
            let expected = position.head + 1;
            committed.head =
                head.filter(|head| *head == expected).ok_or(WatchError::Gap { expected, found: head })?;
            *position = Position { head: expected, revision: committed.revision };
            whole.push(committed);
        }
        Ok(whole)
    }
}

/// Sends what is committed after `position` until the receiver is gone.
pub(super) async fn transactions(
    client: Arc<Client>,
    mut position: Position,
    send: mpsc::Sender<Result<Committed, WatchError>>,
) {
    let error = loop {
        match follow_stream(&client, &mut position, &send).await {
            Ok(()) => return,
            Err(Follower::Failed(error)) => break error,
            Err(Follower::Interrupted(Interruption::Compacted)) => {
                break WatchError::Compacted { after: position.revision };
            }
            Err(Follower::Interrupted(Interruption::Over(error))) => break error.into(),
            Err(Follower::Interrupted(Interruption::Resume(why))) => {
                tracing::debug!(%why, revision = position.revision, "the watch broke; resuming");
                sleep(RESUME_PAUSE).await;
            }
        }
    };
    // the receiver being gone means that nobody wants to know
    let _nobody = send.send(Err(error)).await;
}

enum Follower {
    Interrupted(Interruption),
    Failed(WatchError),
}

/// One stream, until it breaks or the receiver goes.
async fn follow_stream(
    client: &Client,
    position: &mut Position,
    send: &mpsc::Sender<Result<Committed, WatchError>>,
) -> Result<(), Follower> {
    let KeyRange { start, end } = KeyRange::prefix(client.keys.state.clone());
    let opened = client.open_watch(&start, &end, position.revision + 1).await;
    let mut stream = opened.map_err(Follower::Interrupted)?;
    loop {
        let events = client.events(&mut stream).await.map_err(Follower::Interrupted)?;
        let mut at = *position;
        for committed in client.transactions(events, &mut at).map_err(Follower::Failed)? {
            let seen = Position { head: committed.head, revision: committed.revision };
            if send.send(Ok(committed)).await.is_err() {
                return Ok(());
            }
            *position = seen;
        }
    }
}

/// Keeps `sender` at who is in office, until nobody looks any more. `revision` is that of its value.
pub(super) async fn holder(client: Arc<Client>, revision: u64, sender: watch::Sender<Option<Holder>>) {
    let mut revision = revision;
    loop {
        let broken = tokio::select! {
            () = sender.closed() => return,
            broken = follow_office(&client, revision, &sender) => broken,
        };
        match broken {
            Interruption::Resume(why) => tracing::debug!(%why, "the watch of the office broke; resuming"),
            Interruption::Compacted => {}
            Interruption::Over(error) => tracing::warn!(%error, "the watch of the office failed"),
        }
        // what happened in between does not matter, only who is in office now
        revision = loop {
            tokio::select! {
                () = sender.closed() => return,
                () = sleep(RESUME_PAUSE) => {}
            }
            match client.holder().await {
                Ok((now, revision)) => {
                    publish(&sender, now);
                    break revision;
                }
                Err(error) => tracing::debug!(%error, "will ask again who is in office"),
            }
        };
    }
}

async fn follow_office(
    client: &Client,
    revision: u64,
    sender: &watch::Sender<Option<Holder>>,
) -> Interruption {
    let mut stream = match client.open_watch(&client.keys.office, &[], revision + 1).await {
        Ok(stream) => stream,
        Err(interruption) => return interruption,
    };
    loop {
        let events = match client.events(&mut stream).await {
            Ok(events) => events,
            Err(interruption) => return interruption,
        };
        for event in events {
            let put = event.r#type == EventType::Put as i32;
            match event.kv.filter(|_| put).map(|kv| client.decode_holder(&kv)).transpose() {
                Ok(now) => publish(sender, now),
                Err(error) => return Interruption::Over(error),
            }
        }
    }
}

fn publish(sender: &watch::Sender<Option<Holder>>, now: Option<Holder>) {
    sender.send_if_modified(|known| {
        let differs = *known != now;
        *known = now;
        differs
    });
}
