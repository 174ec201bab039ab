//! Records in the shape of version 1, for those that have another one today.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    ClusterId, Code, Drain, DrainNode, DrainOptions, DrainState, Health, Intent, Life, MemoryCaps, Meta,
    Node, NodeId, ProcessEpoch, Resources, Roles, Time,
};

#[derive(Serialize, Deserialize)]
pub(crate) struct MetaV1 {
    cluster: ClusterId,
    instance_ids_reserved: u64,
    audit_next: u64,
    drain_epoch: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct NodeV1 {
    id: NodeId,
    roles: Roles,
    intent: Intent,
    health: Health,
    health_since: Time,
    labels: BTreeMap<String, String>,
    capacity: Resources,
    process_epoch: ProcessEpoch,
    life: Life,
    host: String,
    api: String,
    memory_caps: MemoryCaps,
    foreign: bool,
    registered_at: Time,
}

impl From<NodeV1> for Node {
    fn from(old: NodeV1) -> Node {
        Node {
            id: old.id,
            roles: old.roles,
            intent: old.intent,
            health: old.health,
            health_since: old.health_since,
            labels: old.labels,
            capacity: old.capacity,
            process_epoch: old.process_epoch,
            life: old.life,
            host: old.host,
            api: old.api,
            memory_caps: old.memory_caps,
            foreign: old.foreign,
            registered_at: old.registered_at,
            lingers: None,
            goodbye: false,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct DrainV1 {
    epoch: u64,
    by: String,
    from: String,
    message: String,
    meta: BTreeMap<String, String>,
    created_at: Time,
    nodes: Vec<DrainNodeV1>,
}

#[derive(Serialize, Deserialize)]
struct DrainNodeV1 {
    node: NodeId,
    options: DrainOptions,
    state: DrainState,
    started_at: Option<Time>,
    deadline: Option<Time>,
    deadline_reached: bool,
    ended_at: Option<Time>,
    total: u32,
    progress_at: Option<Time>,
    done: u32,
    blocked: bool,
    stalled: bool,
    left: Vec<(String, Code)>,
}

impl From<MetaV1> for Meta {
    fn from(old: MetaV1) -> Meta {
        Meta {
            cluster: old.cluster,
            instance_ids_reserved: old.instance_ids_reserved,
            audit_next: old.audit_next,
            drain_epoch: old.drain_epoch,
            maintainer_epoch: 0,
        }
    }
}

impl From<DrainV1> for Drain {
    fn from(old: DrainV1) -> Drain {
        Drain {
            epoch: old.epoch,
            by: old.by,
            from: old.from,
            message: old.message,
            meta: old.meta,
            created_at: old.created_at,
            nodes: old.nodes.into_iter().map(DrainNode::from).collect(),
        }
    }
}

impl From<DrainNodeV1> for DrainNode {
    fn from(old: DrainNodeV1) -> DrainNode {
        DrainNode {
            node: old.node,
            options: old.options,
            state: old.state,
            started_at: old.started_at,
            deadline: old.deadline,
            deadline_reached: old.deadline_reached,
            ended_at: old.ended_at,
            total: old.total,
            progress_at: old.progress_at,
            done: old.done,
            blocked: old.blocked,
            stalled: old.stalled,
            left: old.left,
            withdrawing_since: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, Cluster, decode_record};

    fn node_of_version_1() -> NodeV1 {
        NodeV1 {
            id: NodeId::new("node-1"),
            roles: Roles::ALL,
            intent: Intent::Drained,
            health: Health::Degraded(Code::DiskFull),
            health_since: Time(3),
            labels: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]),
            capacity: Resources { memory: 5, cpu: 6 },
            process_epoch: ProcessEpoch(7),
            life: Life(8),
            host: "h".to_owned(),
            api: "h:1".to_owned(),
            memory_caps: MemoryCaps::CgroupV1,
            foreign: true,
            registered_at: Time(9),
        }
    }

    #[test]
    fn a_node_of_version_1_is_read_with_what_it_had() {
        let old = node_of_version_1();
        let bytes = postcard::to_extend(&old, vec![1]).expect("it is written");
        let change = decode_record(&Cluster::default(), "n/node-1", Some(&bytes));
        let Ok(Change::Node(node)) = change else { panic!("{change:?}") };
        assert_eq!((node.intent, node.process_epoch, node.life), (Intent::Drained, ProcessEpoch(7), Life(8)));
        assert_eq!((node.foreign, node.registered_at, node.lingers), (true, Time(9), None));
    }

    #[test]
    fn the_clusters_own_record_of_version_1_is_read_with_what_it_had() {
        let old = MetaV1 { cluster: ClusterId(3), instance_ids_reserved: 4, audit_next: 5, drain_epoch: 6 };
        let bytes = postcard::to_extend(&old, vec![1]).expect("it is written");
        let change = decode_record(&Cluster::default(), "m/meta", Some(&bytes));
        let Ok(Change::Meta(meta)) = change else { panic!("{change:?}") };
        assert_eq!((meta.cluster, meta.instance_ids_reserved), (ClusterId(3), 4));
        assert_eq!((meta.audit_next, meta.drain_epoch, meta.maintainer_epoch), (5, 6, 0));
    }

    #[test]
    fn a_drain_of_version_1_is_read_with_what_it_had() {
        let part = DrainNodeV1 {
            node: NodeId::new("node-1"),
            options: DrainOptions::default(),
            state: DrainState::Draining,
            started_at: Some(Time(5)),
            deadline: None,
            deadline_reached: false,
            ended_at: None,
            total: 4,
            progress_at: Some(Time(6)),
            done: 3,
            blocked: false,
            stalled: true,
            left: vec![("instance/db-1".to_owned(), Code::VolumeLocal)],
        };
        let old = DrainV1 {
            epoch: 7,
            by: "anonymous".to_owned(),
            from: String::new(),
            message: "kernel".to_owned(),
            meta: BTreeMap::from([("ticket".to_owned(), "OPS-1".to_owned())]),
            created_at: Time(4),
            nodes: vec![part],
        };
        let bytes = postcard::to_extend(&old, vec![1]).expect("it is written");
        let change = decode_record(&Cluster::default(), "d/0000000000000007", Some(&bytes));
        let Ok(Change::Drain(drain)) = change else { panic!("{change:?}") };
        assert_eq!((drain.epoch, drain.nodes.len()), (7, 1));
        assert_eq!((drain.nodes[0].total, drain.nodes[0].done), (4, 3));
        assert_eq!(drain.nodes[0].withdrawing_since, None);
        assert_eq!(drain.nodes[0].left.len(), 1);
    }

    #[test]
    fn a_node_that_said_goodbye_is_told_from_what_older_binaries_can_read() {
        let mut node = Node::from(node_of_version_1());
        let cluster = Cluster::default();
        let version = |node: &Node| {
            let (key, value) = crate::encode_change(&cluster, &Change::Node(node.clone()));
            let read = decode_record(&cluster, &key, value.as_deref()).expect("it is read back");
            assert_eq!(read, Change::Node(node.clone()));
            value.and_then(|value| value.first().copied())
        };
        assert_eq!(version(&node), Some(2));
        node.goodbye = true;
        assert_eq!(version(&node), Some(3));
    }

    #[test]
    fn a_drain_after_which_a_daemon_waits_is_told_from_what_older_binaries_can_read() {
        let mut drain = Drain {
            epoch: 7,
            by: "anonymous".to_owned(),
            from: String::new(),
            message: String::new(),
            meta: BTreeMap::new(),
            created_at: Time(4),
            nodes: vec![DrainNode::queued(NodeId::new("node-1"), DrainOptions::default())],
        };
        let cluster = Cluster::default();
        let version = |drain: &Drain| {
            let (key, value) = crate::encode_change(&cluster, &Change::Drain(drain.clone()));
            let read = decode_record(&cluster, &key, value.as_deref()).expect("it is read back");
            assert_eq!(read, Change::Drain(drain.clone()));
            value.and_then(|value| value.first().copied())
        };
        assert_eq!(version(&drain), Some(2));
        drain.nodes[0].options.then = crate::Then::AwaitStop;
        assert_eq!(version(&drain), Some(3));
    }

    #[test]
    fn a_feed_with_moves_that_were_asked_for_is_told_from_what_older_binaries_can_read() {
        let spec = crate::FeedSpec {
            pipeline: crate::PipelineSpec::Idle { spans: 1 },
            constraints: BTreeMap::new(),
        };
        let mut feed = crate::Feed {
            name: crate::FeedName::new("orders"),
            spec: std::sync::Arc::new(spec),
            state: crate::FeedState::Running,
            spans: crate::SpanSet { generation: 1, names: [crate::SpanName::new("t0")].into() },
            maintainer: None,
            epoch: crate::MaintainerEpoch(3),
            checkpoint: Some(crate::Checkpoint { position: 7, at: Time(8) }),
            created_at: Time(4),
            asked: Vec::new(),
        };
        let cluster = Cluster::default();
        let version = |feed: &crate::Feed| {
            let (key, value) = crate::encode_change(&cluster, &Change::Feed(feed.clone()));
            let read = decode_record(&cluster, &key, value.as_deref()).expect("it is read back");
            assert_eq!(read, Change::Feed(feed.clone()));
            value.and_then(|value| value.first().copied())
        };
        assert_eq!(version(&feed), Some(1));
        let (span, to) = (crate::SpanName::new("t0"), NodeId::new("node-2"));
        feed.asked.push(crate::AskedMove { number: 9, span, to });
        assert_eq!(version(&feed), Some(2));
    }
}
