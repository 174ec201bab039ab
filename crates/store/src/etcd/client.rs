//! Transactions, loading, and what else is asked of etcd once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::EtcdConfig;
use super::keys::{Keys, decode_number, encode_number};
use super::links::{Bounds, CallError, Links, USUAL};
use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::kv_client::KvClient;
use super::proto::maintenance_client::MaintenanceClient;
use super::proto::request_op::Request;
use super::proto::response_op::Response;
use super::proto::{self, KeyValue};
use super::status;
use crate::contract::{
    Batch, Candidate, FORMAT, Holder, KeyRange, Office, Op, Position, Record, Status, decode_candidate,
    effective,
};
use crate::error::{CommitError, LoadError, Refusal, StoreError};

/// An unanswered transaction counts as unknown after this; etcd itself gives up after about 7 s.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(8);

/// Ranges fetched at a time. More only makes etcd's garbage collector work.
const RANGES_AT_ONCE: usize = 4;

/// One range of a load; a single one may hold a whole state that was not sharded.
const LOAD: Bounds = Bounds { attempt: Duration::from_secs(60), overall: Duration::from_secs(120) };

/// Opening says quickly that etcd is down.
const OPEN: Bounds = Bounds { attempt: Duration::from_secs(5), overall: Duration::from_secs(5) };

pub(super) struct Client {
    pub(super) links: Links,
    pub(super) keys: Keys,
}

/// Every request asks that the member has a leader, so that one cut off from the others says so at once
/// instead of waiting.
pub(super) fn request<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
    request
}

pub(super) fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

pub(super) fn created_at(key: &[u8], revision: u64) -> proto::Compare {
    proto::Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: Bytes::copy_from_slice(key),
        target_union: Some(TargetUnion::CreateRevision(revision as i64)),
    }
}

fn value_is(key: &[u8], value: Vec<u8>) -> proto::Compare {
    proto::Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Value as i32,
        key: Bytes::copy_from_slice(key),
        target_union: Some(TargetUnion::Value(value.into())),
    }
}

pub(super) fn put(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> proto::RequestOp {
    let put = proto::PutRequest { key: key.into(), value: value.into(), lease };
    proto::RequestOp { request: Some(Request::RequestPut(put)) }
}

fn delete(key: Vec<u8>) -> proto::RequestOp {
    let delete = proto::DeleteRangeRequest { key: key.into(), range_end: Bytes::new() };
    proto::RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

pub(super) fn get(key: &[u8]) -> proto::RequestOp {
    proto::RequestOp { request: Some(Request::RequestRange(range(key, &[]))) }
}

fn range(key: &[u8], end: &[u8]) -> proto::RangeRequest {
    let (key, range_end) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(end));
    proto::RangeRequest { key, range_end, ..Default::default() }
}

/// The key that the n-th operation of a transaction read, if it was there.
pub(super) fn read_by(answer: &proto::TxnResponse, n: usize) -> Option<&KeyValue> {
    match answer.responses.get(n)?.response.as_ref()? {
        Response::ResponseRange(range) => range.kvs.first(),
        Response::ResponsePut(_) | Response::ResponseDeleteRange(_) => None,
    }
}

fn revision(header: &Option<proto::ResponseHeader>) -> u64 {
    header.as_ref().map_or(0, |header| header.revision as u64)
}

impl Client {
    pub(super) fn new(config: &EtcdConfig, tls: Option<doors::Keys>) -> Result<Client, StoreError> {
        Ok(Client { links: Links::new(&config.endpoints, tls)?, keys: Keys::new(&config.prefix)? })
    }

    /// Writes format and head where there is nothing at all, else reads the format.
    pub(super) async fn open(&self) -> Result<(), StoreError> {
        self.links.survey().await?;
        let keys = &self.keys;
        let txn = proto::TxnRequest {
            compare: vec![created_at(&keys.format, 0), created_at(&keys.head, 0)],
            success: vec![
                put(keys.format.clone(), encode_number(FORMAT.into()), 0),
                put(keys.head.clone(), encode_number(0), 0),
            ],
            failure: vec![get(&keys.format), get(&keys.head)],
        };
        let answer = self.txn("opening", OPEN, txn).await?;
        if answer.succeeded {
            return Ok(());
        }
        let found = read_by(&answer, 0).map(|kv| &kv.value[..]).unwrap_or_default();
        if decode_number(found) != Some(FORMAT.into()) {
            let found = match found {
                [] => "(none)".to_owned(),
                found => String::from_utf8_lossy(&found[..found.len().min(20)]).into_owned(),
            };
            return Err(StoreError::Format { place: keys.place(), found, known: FORMAT });
        }
        self.decode_head(read_by(&answer, 1)).map(|_| ())
    }

    /// A transaction that may be sent twice.
    pub(super) async fn txn(
        &self,
        operation: &'static str,
        bounds: Bounds,
        txn: proto::TxnRequest,
    ) -> Result<proto::TxnResponse, StoreError> {
        let call = |channel| {
            let txn = txn.clone();
            async move { kv(channel).txn(request(txn)).await }
        };
        let answer = self.links.retry(operation, bounds, call).await;
        answer.map_err(|error| self.links.rejected(operation, error))
    }

    async fn range(
        &self,
        operation: &'static str,
        bounds: Bounds,
        range: proto::RangeRequest,
    ) -> Result<proto::RangeResponse, CallError> {
        let call = |channel| {
            let range = range.clone();
            async move { kv(channel).range(request(range)).await }
        };
        self.links.retry(operation, bounds, call).await
    }

    async fn read(
        &self,
        operation: &'static str,
        bounds: Bounds,
        range: proto::RangeRequest,
    ) -> Result<proto::RangeResponse, StoreError> {
        let answer = self.range(operation, bounds, range).await;
        answer.map_err(|error| self.links.rejected(operation, error))
    }

    fn decode_head(&self, kv: Option<&KeyValue>) -> Result<u64, StoreError> {
        let value = kv.map(|kv| &kv.value[..]).unwrap_or_default();
        decode_number(value).ok_or_else(|| self.keys.malformed(&self.keys.head, value))
    }

    pub(super) fn decode_holder(&self, kv: &KeyValue) -> Result<Holder, StoreError> {
        let candidate = decode_candidate(&kv.value);
        let candidate = candidate.ok_or_else(|| self.keys.malformed(&self.keys.office, &kv.value))?;
        Ok(Holder { candidate, term: kv.create_revision as u64 })
    }

    /// Head and revision as of now, in the order of all writes.
    pub(super) async fn position(&self, operation: &'static str) -> Result<Position, StoreError> {
        let answer = self.read(operation, USUAL, range(&self.keys.head, &[])).await?;
        Ok(Position { head: self.decode_head(answer.kvs.first())?, revision: revision(&answer.header) })
    }

    pub(super) async fn holder(&self) -> Result<(Option<Holder>, u64), StoreError> {
        self.holder_within(USUAL).await
    }

    pub(super) async fn holder_within(&self, bounds: Bounds) -> Result<(Option<Holder>, u64), StoreError> {
        let answer = self.read("asking who is in office", bounds, range(&self.keys.office, &[])).await?;
        let holder = answer.kvs.first().map(|kv| self.decode_holder(kv)).transpose()?;
        Ok((holder, revision(&answer.header)))
    }

    pub(super) async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        let KeyRange { start, end } = KeyRange::prefix(self.keys.candidates.clone());
        let answer = self.read("listing candidates", USUAL, range(&start, &end)).await?;
        let decode = |kv: &KeyValue| {
            decode_candidate(&kv.value).ok_or_else(|| self.keys.malformed(&kv.key, &kv.value))
        };
        answer.kvs.iter().map(decode).collect()
    }

    pub(super) async fn commit(&self, office: &Office, head: u64, ops: &[Op]) -> Result<(), CommitError> {
        let keys = &self.keys;
        let mut success: Vec<proto::RequestOp> = effective(ops)
            .into_iter()
            .map(|op| match &op.value {
                Some(value) => put(keys.record(&op.key), Bytes::copy_from_slice(value), 0),
                None => delete(keys.record(&op.key)),
            })
            .collect();
        success.push(put(keys.head.clone(), encode_number(head), 0));
        let txn = proto::TxnRequest {
            compare: vec![
                created_at(&keys.office, office.term),
                value_is(&keys.head, encode_number(head - 1)),
            ],
            success,
            failure: vec![get(&keys.office), get(&keys.head)],
        };
        let bytes = prost::Message::encoded_len(&txn);
        let link = self.links.get("committing").await.map_err(|error| match error {
            error @ StoreError::Unavailable { .. } => CommitError::Unavailable { head, source: error.into() },
            source => CommitError::Broken { head, source },
        })?;
        let mut client = kv(link.channel.clone());
        let answer = match self.links.once(&link, COMMIT_TIMEOUT, client.txn(request(txn))).await {
            Ok(answer) => answer.map_err(|source| CommitError::Broken { head, source })?,
            Err(status) => return Err(status::of_commit(head, bytes, self.links.place(), status)),
        };
        match answer.succeeded {
            true => Ok(()),
            false => Err(self.refusal(office, head, &answer)),
        }
    }

    fn refusal(&self, office: &Office, head: u64, answer: &proto::TxnResponse) -> CommitError {
        let in_office = read_by(answer, 0);
        if in_office.is_none_or(|kv| kv.create_revision as u64 != office.term) {
            return match in_office.map(|kv| self.decode_holder(kv)).transpose() {
                Ok(holder) => {
                    CommitError::Refused { head, why: Refusal::OfficeLost { term: office.term, holder } }
                }
                Err(source) => CommitError::Broken { head, source },
            };
        }
        let found = read_by(answer, 1).and_then(|kv| decode_number(&kv.value));
        CommitError::Refused { head, why: Refusal::HeadIsOther { expected: head - 1, found } }
    }

    /// One range as of `position`, without its prefix.
    async fn load_range(&self, position: Position, wanted: &KeyRange) -> Result<Batch, LoadError> {
        let (start, end) = self.keys.records(wanted);
        let mut wanted = range(&start, &end);
        wanted.revision = position.revision as i64;
        let answer = self.range("loading", LOAD, wanted).await.map_err(|error| match error {
            CallError::Final(status) if status::is_compacted(&status) => {
                LoadError::Compacted { revision: position.revision }
            }
            error => self.links.rejected("loading", error).into(),
        })?;
        let prefix = self.keys.records.len();
        let records = answer.kvs.into_iter();
        Ok(records.map(|kv| Record { key: kv.key.slice(prefix..), value: kv.value }).collect())
    }

    pub(super) async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        let call = |channel| async move {
            let message = proto::CompactionRequest { revision: revision as i64, physical: false };
            kv(channel).compact(request(message)).await
        };
        match self.links.retry("compacting", USUAL, call).await {
            Ok(_) => Ok(()),
            // somebody was faster
            Err(CallError::Final(status)) if status::is_compacted(&status) => Ok(()),
            Err(error) => Err(self.links.rejected("compacting", error)),
        }
    }

    pub(super) async fn status(&self) -> Result<Status, StoreError> {
        const OPERATION: &str = "asking for the status";
        let ask =
            |channel| async move { MaintenanceClient::new(channel).status(proto::StatusRequest {}).await };
        let answer = self.links.retry(OPERATION, USUAL, ask).await;
        let member = answer.map_err(|error| self.links.rejected(OPERATION, error))?;
        let ask = |channel| async move {
            MaintenanceClient::new(channel).alarm(proto::AlarmRequest::default()).await
        };
        let answer = self.links.retry(OPERATION, USUAL, ask).await;
        let alarms = answer.map_err(|error| self.links.rejected(OPERATION, error))?.alarms;
        Ok(Status {
            description: format!("etcd {}, {}", member.version, self.keys.prefix),
            revision: revision(&member.header),
            disk_bytes: member.db_size as u64,
            used_bytes: member.db_size_in_use as u64,
            space_alarm: alarms.iter().any(|alarm| alarm.alarm == proto::AlarmType::Nospace as i32),
        })
    }
}

/// Fetches all ranges at the revision of one read of the head. Tasks of their own, so that decoding one
/// answer overlaps with waiting for the next.
pub(super) async fn load(
    client: &Arc<Client>,
    ranges: &[KeyRange],
    sink: mpsc::Sender<Batch>,
) -> Result<Position, LoadError> {
    let position = client.position("loading").await?;
    let ranges: Arc<[KeyRange]> = ranges.into();
    let next = Arc::new(AtomicUsize::new(0));
    let mut fetchers = JoinSet::new();
    for _ in 0..RANGES_AT_ONCE.min(ranges.len()) {
        let (client, ranges, next, sink) =
            (Arc::clone(client), Arc::clone(&ranges), Arc::clone(&next), sink.clone());
        fetchers.spawn(async move {
            while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
                let batch = client.load_range(position, range).await?;
                if !batch.is_empty() {
                    sink.send(batch).await.map_err(|_| LoadError::SinkClosed)?;
                }
            }
            Ok::<(), LoadError>(())
        });
    }
    while let Some(fetched) = fetchers.join_next().await {
        fetched.map_err(|error| client.links.unavailable("loading", error.to_string()))??;
    }
    Ok(position)
}
