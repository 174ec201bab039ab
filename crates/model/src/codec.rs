//! Records as the store keeps them: compact and versioned. An unknown version is an error with a
//! clear message, not a guess.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::codec_v1::{DrainV1, MetaV1, NodeV1};
use crate::{
    Actual, AskedMove, AuditEntry, Change, Cluster, Code, Desired, Drain, Exit, Feed, FeedName, Instance,
    InstanceId, Key, Meta, Node, Scratch, Service, ServiceName, Store, StoreGroup, StoreGroupName, StoreId,
    Then, Time, Token, Volume, VolumeId,
};

/// The first byte of every value. Records that have kept their first shape keep this one.
const VERSION: u8 = 1;
/// Records in their second shape: the cluster's own, nodes, drains, instances with scratch data to take or to
/// leave, and feeds with moves that people asked for (only those: a binary that would forget the data or the moves
/// says that it cannot read the record).
const VERSION_2: u8 = 2;
/// Drains after which a daemon waits to be killed, and nodes whose daemon has said goodbye (only those: an
/// older binary has no word for it).
const VERSION_3: u8 = 3;

#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error(
        "record {key} has version {version}; this binary knows up to {VERSION_3}: it was written by a newer tidegate"
    )]
    UnknownVersion { key: String, version: u8 },
    #[error("record {key} cannot be read")]
    Malformed {
        key: String,
        #[source]
        source: postcard::Error,
    },
    #[error("{key} is not a key of tidegate's state")]
    UnknownKey { key: String },
    #[error("record {key} names {what}, which is not there")]
    Dangling { key: String, what: String },
}

/// An instance with names in place of this process's indices.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    service: &'a str,
    #[serde(borrow)]
    node: &'a str,
    release: u32,
    memory: u64,
    cpu: u32,
    slot: Option<u32>,
    desired: Desired,
    actual: Actual,
    order: u32,
    restarts: u32,
    pid: Option<u32>,
    ports: Vec<u16>,
    reason: Option<Code>,
    #[serde(borrow)]
    message: Option<&'a str>,
    exit: Option<Exit>,
    replaces: Option<InstanceId>,
    created_at: Time,
    healthy_since: Option<Time>,
    ended_at: Option<Time>,
}

/// The key under which a record is stored. Instances are spread over 256 prefixes, so that a million
/// of them are loaded as disjoint ranges side by side.
pub fn key_of(key: &Key) -> String {
    match key {
        Key::Meta => "m/meta".to_owned(),
        Key::Node(id) => format!("n/{id}"),
        Key::Service(name) => format!("s/{name}"),
        Key::Instance(id) => format!("i/{:02x}/{:016x}", shard(*id), id.0),
        Key::Volume(id) => format!("v/{id}"),
        Key::Audit(number) => format!("a/{number:016x}"),
        Key::Drain(epoch) => format!("d/{epoch:016x}"),
        Key::Feed(name) => format!("f/{name}"),
        Key::StoreGroup(name) => format!("g/{name}"),
        Key::Store(id) => format!("t/{id}"),
        Key::Token(name) => format!("k/{name}"),
    }
}

fn shard(id: InstanceId) -> u8 {
    // Neighbours land in different shards: ids are handed out in sequence.
    (id.0 & 0xff) as u8
}

/// The disjoint ranges `[from, to)` that hold all records. The first is small and holds everything
/// that instances refer to.
pub fn load_ranges() -> Vec<(String, String)> {
    let mut ranges = vec![
        ("m/".into(), "n0".into()),
        ("s/".into(), "w".into()),
        ("a/".into(), "e".into()),
        ("f/".into(), "h".into()),
        ("k/".into(), "l".into()),
    ];
    ranges.extend((0..=255u32).map(|shard| {
        let to = if shard == 255 { "j".to_owned() } else { format!("i/{:02x}", shard + 1) };
        (format!("i/{shard:02x}"), to)
    }));
    ranges
}

/// A change as key and value; no value deletes.
pub fn encode_change(cluster: &Cluster, change: &Change) -> (String, Option<Vec<u8>>) {
    let value = match change {
        Change::Meta(meta) => Some(encode_2(meta)),
        Change::Node(node) => Some(encode_node(node)),
        Change::Service(service) => Some(encode(service)),
        Change::Instance(instance) => Some(encode_instance(cluster, instance)),
        Change::Volume(volume) => Some(encode(volume)),
        Change::Audit(entry) => Some(encode(entry)),
        Change::Drain(drain) => Some(encode_drain(drain)),
        Change::Feed(feed) => Some(encode_feed(feed)),
        Change::StoreGroup(group) => Some(encode(group)),
        Change::Store(store) => Some(encode(store)),
        Change::Token(token) => Some(encode(token)),
        Change::ServiceGone(_)
        | Change::InstanceGone(_)
        | Change::VolumeGone(_)
        | Change::AuditGone(_)
        | Change::DrainGone(_)
        | Change::FeedGone(_)
        | Change::StoreGroupGone(_)
        | Change::StoreGone(_)
        | Change::TokenGone(_) => None,
    };
    (key_of(&change.key()), value)
}

fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Serialising a plain struct into memory has no way to fail.
    postcard::to_extend(record, vec![VERSION]).unwrap_or_default()
}

fn encode_2<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, vec![VERSION_2]).unwrap_or_default()
}

fn encode_node(node: &Node) -> Vec<u8> {
    let version = if node.goodbye { VERSION_3 } else { VERSION_2 };
    postcard::to_extend(node, vec![version]).unwrap_or_default()
}

fn encode_feed(feed: &Feed) -> Vec<u8> {
    match feed.asked.is_empty() {
        true => encode(feed),
        false => encode_2(&(feed, &feed.asked)),
    }
}

fn encode_drain(drain: &Drain) -> Vec<u8> {
    let waits = drain.nodes.iter().any(|part| part.options.then == Then::AwaitStop);
    let version = if waits { VERSION_3 } else { VERSION_2 };
    postcard::to_extend(drain, vec![version]).unwrap_or_default()
}

fn encode_instance(cluster: &Cluster, instance: &Instance) -> Vec<u8> {
    let service = cluster.service(instance.service).map(|entry| entry.rec.name.clone());
    let stored = Stored {
        service: service.as_ref().map_or("", |name| name.as_str()),
        node: cluster.node(instance.node).rec.id.as_str(),
        release: instance.release,
        memory: instance.memory,
        cpu: instance.cpu,
        slot: instance.slot,
        desired: instance.desired,
        actual: instance.actual,
        order: instance.order,
        restarts: instance.restarts,
        pid: instance.pid,
        ports: instance.ports.to_vec(),
        reason: instance.reason,
        message: instance.message.as_deref(),
        exit: instance.exit,
        replaces: instance.replaces,
        created_at: instance.created_at,
        healthy_since: instance.healthy_since,
        ended_at: instance.ended_at,
    };
    // Behind what earlier binaries wrote and read: they find all of theirs, and we do without it.
    match instance.scratch {
        Scratch::Own => encode(&(stored, instance.desired_since)),
        scratch => encode_2(&(scratch, stored, instance.desired_since)),
    }
}

/// Reads one stored record back as the change that makes it. Nodes and services must have been
/// applied before instances that refer to them; see [`load_ranges`].
pub fn decode_record(cluster: &Cluster, key: &str, value: Option<&[u8]>) -> Result<Change, CodecError> {
    let unknown = || CodecError::UnknownKey { key: key.to_owned() };
    let (class, rest) = key.split_once('/').ok_or_else(unknown)?;
    let Some(value) = value else {
        return match class {
            "s" => Ok(Change::ServiceGone(ServiceName::new(rest))),
            "v" => Ok(Change::VolumeGone(VolumeId::new(rest))),
            "f" => Ok(Change::FeedGone(FeedName::new(rest))),
            "g" => Ok(Change::StoreGroupGone(StoreGroupName::new(rest))),
            "t" => Ok(Change::StoreGone(StoreId::new(rest))),
            "k" => Ok(Change::TokenGone(rest.to_owned())),
            "i" => Ok(Change::InstanceGone(instance_id(rest).ok_or_else(unknown)?)),
            "d" => Ok(Change::DrainGone(u64::from_str_radix(rest, 16).map_err(|_| unknown())?)),
            "a" => Ok(Change::AuditGone(u64::from_str_radix(rest, 16).map_err(|_| unknown())?)),
            _ => Err(unknown()),
        };
    };
    match class {
        "m" => Ok(Change::Meta(decode_either::<Meta, MetaV1>(key, value)?)),
        "n" => match value.split_first() {
            Some((&VERSION_3, body)) => {
                let node: Node = postcard::from_bytes(body).map_err(|source| malformed(key, source))?;
                Ok(Change::Node(Node { goodbye: true, ..node }))
            }
            Some(_) | None => Ok(Change::Node(decode_either::<Node, NodeV1>(key, value)?)),
        },
        "s" => {
            let service = decode::<Service>(key, value)?;
            match service.releases.contains_key(&service.release) {
                true => Ok(Change::Service(service)),
                false => Err(CodecError::Dangling {
                    key: key.to_owned(),
                    what: format!("release {}", service.release),
                }),
            }
        }
        "v" => Ok(Change::Volume(decode::<Volume>(key, value)?)),
        "d" => match value.split_first() {
            Some((&VERSION_3, body)) => {
                Ok(Change::Drain(postcard::from_bytes(body).map_err(|source| malformed(key, source))?))
            }
            Some(_) | None => Ok(Change::Drain(decode_either::<Drain, DrainV1>(key, value)?)),
        },
        "f" => match value.split_first() {
            Some((&VERSION_2, body)) => {
                let (feed, asked): (Feed, Vec<AskedMove>) =
                    postcard::from_bytes(body).map_err(|source| malformed(key, source))?;
                Ok(Change::Feed(Feed { asked, ..feed }))
            }
            Some(_) | None => Ok(Change::Feed(decode::<Feed>(key, value)?)),
        },
        "g" => Ok(Change::StoreGroup(decode::<StoreGroup>(key, value)?)),
        "t" => Ok(Change::Store(decode::<Store>(key, value)?)),
        "k" => Ok(Change::Token(decode::<Token>(key, value)?)),
        "a" => Ok(Change::Audit(decode::<AuditEntry>(key, value)?)),
        "i" => decode_instance(cluster, key, instance_id(rest).ok_or_else(unknown)?, value),
        _ => Err(unknown()),
    }
}

fn instance_id(rest: &str) -> Option<InstanceId> {
    let (_, number) = rest.split_once('/')?;
    u64::from_str_radix(number, 16).ok().map(InstanceId)
}

fn decode_instance(cluster: &Cluster, key: &str, id: InstanceId, value: &[u8]) -> Result<Change, CodecError> {
    let (scratch, stored, desired_since): (Scratch, Stored<'_>, Time) = match value.split_first() {
        Some((&VERSION_2, body)) => postcard::from_bytes(body).map_err(|source| malformed(key, source))?,
        _ => {
            let (stored, rest): (Stored<'_>, &[u8]) =
                postcard::take_from_bytes(body(key, value)?).map_err(|source| malformed(key, source))?;
            let since = match rest.is_empty() {
                true => stored.created_at,
                false => postcard::from_bytes(rest).map_err(|source| malformed(key, source))?,
            };
            (Scratch::Own, stored, since)
        }
    };
    let dangling = |what: String| CodecError::Dangling { key: key.to_owned(), what };
    let service =
        cluster.service_ix(stored.service).ok_or_else(|| dangling(format!("service {}", stored.service)))?;
    let node = cluster.node_ix(stored.node).ok_or_else(|| dangling(format!("node {}", stored.node)))?;
    Ok(Change::Instance(Instance {
        id,
        service,
        node,
        release: stored.release,
        memory: stored.memory,
        cpu: stored.cpu,
        slot: stored.slot,
        desired: stored.desired,
        actual: stored.actual,
        order: stored.order,
        restarts: stored.restarts,
        pid: stored.pid,
        ports: stored.ports.into_boxed_slice(),
        reason: stored.reason,
        message: stored.message.map(Into::into),
        exit: stored.exit,
        replaces: stored.replaces,
        scratch,
        created_at: stored.created_at,
        healthy_since: stored.healthy_since,
        ended_at: stored.ended_at,
        desired_since,
    }))
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, CodecError> {
    postcard::from_bytes(body(key, value)?).map_err(|source| malformed(key, source))
}

/// A record that had another shape in version 1.
fn decode_either<T: DeserializeOwned, V1: DeserializeOwned + Into<T>>(
    key: &str,
    value: &[u8],
) -> Result<T, CodecError> {
    match value.split_first() {
        Some((&VERSION_2, body)) => postcard::from_bytes(body).map_err(|source| malformed(key, source)),
        Some(_) | None => Ok(decode::<V1>(key, value)?.into()),
    }
}

fn body<'a>(key: &str, value: &'a [u8]) -> Result<&'a [u8], CodecError> {
    match value.split_first() {
        Some((&VERSION, body)) => Ok(body),
        Some((&version, _)) => Err(CodecError::UnknownVersion { key: key.to_owned(), version }),
        None => Err(malformed(key, postcard::Error::DeserializeUnexpectedEnd)),
    }
}

fn malformed(key: &str, source: postcard::Error) -> CodecError {
    CodecError::Malformed { key: key.to_owned(), source }
}
