//! The few messages of PD's gRPC that a store sends and reads, with PD's field numbers. What is not needed is left out.

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// PD's number for "somebody else was first".
pub const ALREADY_BOOTSTRAPPED: i32 = 4;

#[derive(Clone, Copy, PartialEq, Message)]
pub struct RequestHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(message, optional, tag = "2")]
    pub error: Option<Error>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Error {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// What every request that says only whom it is for looks like.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Ask {
    #[prost(message, optional, tag = "1")]
    pub header: Option<RequestHeader>,
}

/// What every answer begins with, and all that is read of most.
#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Of `IsBootstrapped` and `AllocID`, which answer with one number: 0 and 1 are no and yes.
#[derive(Clone, PartialEq, Message)]
pub struct NumberAnswer {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(uint64, tag = "2")]
    pub number: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Label {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Store {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(message, repeated, tag = "4")]
    pub labels: Vec<Label>,
    #[prost(string, tag = "5")]
    pub version: String,
    #[prost(int64, tag = "9")]
    pub start_timestamp: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Epoch {
    #[prost(uint64, tag = "1")]
    pub conf_ver: u64,
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Peer {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub store_id: u64,
    #[prost(enumeration = "Role", tag = "3")]
    pub role: i32,
}

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    prost::Enumeration,
    serde::Serialize,
    serde::Deserialize,
)]
#[repr(i32)]
pub enum Role {
    Voter = 0,
    Learner = 1,
    IncomingVoter = 2,
    DemotingVoter = 3,
}

#[derive(Clone, PartialEq, Message)]
pub struct Region {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub start_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub end_key: Vec<u8>,
    #[prost(message, optional, tag = "4")]
    pub epoch: Option<Epoch>,
    #[prost(message, repeated, tag = "5")]
    pub peers: Vec<Peer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Bootstrap {
    #[prost(message, optional, tag = "1")]
    pub header: Option<RequestHeader>,
    #[prost(message, optional, tag = "2")]
    pub store: Option<Store>,
    #[prost(message, optional, tag = "3")]
    pub region: Option<Region>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutStore {
    #[prost(message, optional, tag = "1")]
    pub header: Option<RequestHeader>,
    #[prost(message, optional, tag = "2")]
    pub store: Option<Store>,
}

/// Seconds since 1970.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Interval {
    #[prost(uint64, tag = "1")]
    pub start: u64,
    #[prost(uint64, tag = "2")]
    pub end: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct StoreStats {
    #[prost(uint64, tag = "1")]
    pub store_id: u64,
    #[prost(uint64, tag = "2")]
    pub capacity: u64,
    #[prost(uint64, tag = "3")]
    pub available: u64,
    #[prost(uint32, tag = "4")]
    pub region_count: u32,
    #[prost(uint32, tag = "7")]
    pub start_time: u32,
    #[prost(uint64, tag = "10")]
    pub used_size: u64,
    #[prost(message, optional, tag = "15")]
    pub interval: Option<Interval>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StoreHeartbeat {
    #[prost(message, optional, tag = "1")]
    pub header: Option<RequestHeader>,
    #[prost(message, optional, tag = "2")]
    pub stats: Option<StoreStats>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegionHeartbeat {
    #[prost(message, optional, tag = "1")]
    pub header: Option<RequestHeader>,
    #[prost(message, optional, tag = "2")]
    pub region: Option<Region>,
    #[prost(message, optional, tag = "3")]
    pub leader: Option<Peer>,
    #[prost(message, repeated, tag = "5")]
    pub pending_peers: Vec<Peer>,
    #[prost(uint64, tag = "10")]
    pub approximate_size: u64,
    #[prost(message, optional, tag = "12")]
    pub interval: Option<Interval>,
    #[prost(uint64, tag = "13")]
    pub approximate_keys: u64,
    #[prost(uint64, tag = "14")]
    pub term: u64,
}

/// What PD wants to be done with a region: one of the four, or nothing.
#[derive(Clone, PartialEq, Message)]
pub struct Wish {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, optional, tag = "2")]
    pub change_peer: Option<ChangePeer>,
    #[prost(message, optional, tag = "3")]
    pub transfer_leader: Option<TransferLeader>,
    #[prost(uint64, tag = "4")]
    pub region_id: u64,
    #[prost(message, optional, tag = "5")]
    pub epoch: Option<Epoch>,
    #[prost(message, optional, tag = "6")]
    pub target_peer: Option<Peer>,
    #[prost(message, optional, tag = "8")]
    pub split: Option<SplitRegion>,
    #[prost(message, optional, tag = "9")]
    pub change_peers: Option<ChangePeers>,
}

/// PD names the keys where it has reasons of its own, such as a rule that begins there.
#[derive(Clone, PartialEq, Message)]
pub struct SplitRegion {
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TransferLeader {
    #[prost(message, optional, tag = "1")]
    pub peer: Option<Peer>,
    #[prost(message, repeated, tag = "2")]
    pub peers: Vec<Peer>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ChangePeer {
    #[prost(message, optional, tag = "1")]
    pub peer: Option<Peer>,
    #[prost(enumeration = "ChangeKind", tag = "2")]
    pub kind: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ChangeKind {
    AddVoter = 0,
    Remove = 1,
    AddLearner = 2,
}

/// None ends a change of several peers at once; one is a change as any other.
#[derive(Clone, PartialEq, Message)]
pub struct ChangePeers {
    #[prost(message, repeated, tag = "1")]
    pub changes: Vec<ChangePeer>,
}

/// One call to PD and its answer.
pub async fn call<M, A>(channel: &Channel, name: &'static str, message: M) -> Result<A, Status>
where
    M: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(name);
    Ok(grpc.unary(Request::new(message), path, ProstCodec::<M, A>::default()).await?.into_inner())
}

/// The reports of regions, and what PD wants. PD answers nothing before it wants something, so this waits for that.
pub async fn report<S>(channel: &Channel, reports: S) -> Result<Streaming<Wish>, Status>
where
    S: futures_util::Stream<Item = RegionHeartbeat> + Send + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/pdpb.PD/RegionHeartbeat");
    let codec = ProstCodec::<RegionHeartbeat, Wish>::default();
    Ok(grpc.streaming(Request::new(reports), path, codec).await?.into_inner())
}
