//! One write to the state.

use crate::{
    AuditEntry, Drain, Feed, FeedName, Instance, InstanceId, Meta, Node, NodeId, Service, ServiceName, Store,
    StoreGroup, StoreGroupName, StoreId, Token, Volume, VolumeId,
};

/// What [`crate::Cluster::apply`] takes and the store keeps. Whole records: what is stored never
/// depends on what was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Meta(Meta),
    Node(Node),
    Service(Service),
    ServiceGone(ServiceName),
    Instance(Instance),
    InstanceGone(InstanceId),
    Volume(Volume),
    VolumeGone(VolumeId),
    Audit(AuditEntry),
    AuditGone(u64),
    Drain(Drain),
    DrainGone(u64),
    Feed(Feed),
    FeedGone(FeedName),
    StoreGroup(StoreGroup),
    StoreGroupGone(StoreGroupName),
    Store(Store),
    StoreGone(StoreId),
    Token(Token),
    /// By name.
    TokenGone(String),
}

/// Which record a change writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Meta,
    Node(NodeId),
    Service(ServiceName),
    Instance(InstanceId),
    Volume(VolumeId),
    Audit(u64),
    Drain(u64),
    Feed(FeedName),
    StoreGroup(StoreGroupName),
    Store(StoreId),
    Token(String),
}

impl Change {
    pub fn key(&self) -> Key {
        match self {
            Change::Meta(_) => Key::Meta,
            Change::Node(node) => Key::Node(node.id.clone()),
            Change::Service(service) => Key::Service(service.name.clone()),
            Change::ServiceGone(name) => Key::Service(name.clone()),
            Change::Instance(instance) => Key::Instance(instance.id),
            Change::InstanceGone(id) => Key::Instance(*id),
            Change::Volume(volume) => Key::Volume(volume.id.clone()),
            Change::VolumeGone(id) => Key::Volume(id.clone()),
            Change::Audit(entry) => Key::Audit(entry.number),
            Change::AuditGone(number) => Key::Audit(*number),
            Change::Drain(drain) => Key::Drain(drain.epoch),
            Change::DrainGone(epoch) => Key::Drain(*epoch),
            Change::Feed(feed) => Key::Feed(feed.name.clone()),
            Change::FeedGone(name) => Key::Feed(name.clone()),
            Change::StoreGroup(group) => Key::StoreGroup(group.name.clone()),
            Change::StoreGroupGone(name) => Key::StoreGroup(name.clone()),
            Change::Store(store) => Key::Store(store.id.clone()),
            Change::StoreGone(id) => Key::Store(id.clone()),
            Change::Token(token) => Key::Token(token.name.clone()),
            Change::TokenGone(name) => Key::Token(name.clone()),
        }
    }
}
