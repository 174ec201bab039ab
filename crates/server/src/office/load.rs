//! From the store's records to a [`Cluster`].

use bytes::Bytes;
use model::{Cluster, CodecError, decode_record, load_ranges};
use store::{Batch, KeyRange, LoadError, Position, Record, Store};
use tokio::sync::mpsc;

/// Batches between the store and the decoder.
const BATCHES_AHEAD: usize = 16;

/// The state as of one moment.
pub struct Loaded {
    pub cluster: Cluster,
    pub position: Position,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the stored state cannot be read: {0}")]
    Codec(#[from] CodecError),
    #[error("a key of the stored state is not text: {0:?}")]
    Key(Bytes),
    #[error("the decoder stopped: {0}")]
    Decoder(String),
}

/// Loads everything. Records are decoded in a thread of their own while more arrives.
pub async fn load(store: &dyn Store) -> Result<Loaded, StateError> {
    let ranges: Vec<KeyRange> = load_ranges()
        .into_iter()
        .map(|(from, to)| KeyRange { start: from.into_bytes(), end: to.into_bytes() })
        .collect();
    let (sink, batches) = mpsc::channel(BATCHES_AHEAD);
    let decoder = tokio::task::spawn_blocking(move || decode(batches));
    let position = store.load(&ranges, sink).await;
    let cluster = decoder.await.map_err(|error| StateError::Decoder(error.to_string()))?;
    match (cluster, position) {
        (Ok(cluster), Ok(position)) => Ok(Loaded { cluster, position }),
        // A decoder that gave up closed the sink: its reason is the one that matters.
        (Err(error), _) => Err(error),
        (Ok(_), Err(error)) => Err(error.into()),
    }
}

fn decode(mut batches: mpsc::Receiver<Batch>) -> Result<Cluster, StateError> {
    let mut cluster = Cluster::default();
    // Ranges arrive side by side: an instance may come before the node or service it names.
    let mut early: Vec<Record> = Vec::new();
    while let Some(batch) = batches.blocking_recv() {
        for record in batch {
            match apply(&mut cluster, &record.key, Some(&record.value)) {
                Err(StateError::Codec(CodecError::Dangling { .. })) => early.push(record),
                other => other?,
            }
        }
    }
    for record in early {
        apply(&mut cluster, &record.key, Some(&record.value))?;
    }
    Ok(cluster)
}

pub(super) fn apply(cluster: &mut Cluster, key: &[u8], value: Option<&[u8]>) -> Result<(), StateError> {
    let key = std::str::from_utf8(key).map_err(|_| StateError::Key(Bytes::copy_from_slice(key)))?;
    let change = decode_record(cluster, key, value)?;
    cluster.apply(&change);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Change, encode_change};
    use store::{Op, memory::MemoryStore};

    /// Small enough for any machine; `TIDEGATE_LOAD` makes it a measurement.
    fn instances() -> u64 {
        std::env::var("TIDEGATE_LOAD").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000)
    }

    fn sample(count: u64) -> Cluster {
        let mut cluster = Cluster::default();
        let file = r#"{"name": "web", "command": ["./web"], "memory": "1MiB"}"#;
        let file: model::spec::ServiceFile = serde_json::from_str(file).unwrap();
        let (name, _, spec) = file.check().unwrap();
        let spec = std::sync::Arc::new(spec);
        for n in 0..(count / 100).max(1) {
            cluster.apply(&Change::Node(model::Node {
                id: model::NodeId::new(&format!("node-{n}")),
                roles: model::Roles::WORKER,
                intent: model::Intent::Active,
                health: model::Health::Up,
                health_since: model::Time(0),
                labels: Default::default(),
                capacity: model::Resources { memory: 1 << 40, cpu: 1 << 20 },
                process_epoch: model::ProcessEpoch(1),
                life: model::Life(1),
                host: "10.0.0.1".to_owned(),
                api: "10.0.0.1:7070".to_owned(),
                memory_caps: model::MemoryCaps::CgroupV2,
                foreign: false,
                registered_at: model::Time(0),
                lingers: None,
                goodbye: false,
            }));
        }
        cluster.apply(&Change::Service(model::Service {
            name,
            count: count as u32,
            release: 1,
            healthy: None,
            releases: [(1, std::sync::Arc::clone(&spec))].into(),
            rollout: model::Rollout {
                state: model::RolloutState::Complete,
                progress_at: model::Time(0),
                ready_max: 0,
            },
            removed: false,
            created_at: model::Time(0),
        }));
        let nodes = cluster.nodes().count() as u64;
        for n in 0..count {
            let (id, on) = (model::InstanceId(1 + n), model::NodeIx((n % nodes) as u32));
            let mut instance = model::Instance::new(id, model::ServiceIx(0), on, 1, &spec, model::Time(5));
            instance.actual = model::Actual::Ready;
            instance.ports = Box::new([20_000]);
            cluster.apply(&Change::Instance(instance));
        }
        cluster
    }

    async fn stored(cluster: &Cluster) -> MemoryStore {
        let store = MemoryStore::new();
        let me = store::Candidate::new("a", "");
        let office = store.office(&me, std::time::Duration::from_secs(600)).await.unwrap().elected().unwrap();
        let mut changes: Vec<Change> = cluster.instances().cloned().map(Change::Instance).collect();
        changes.extend(cluster.nodes().map(|(_, node)| Change::Node(node.rec.clone())));
        changes.extend(cluster.services().map(|(_, entry)| Change::Service(entry.rec.clone())));
        for (n, group) in changes.chunks(store::OPS_PER_TXN_MAX).enumerate() {
            let ops: Vec<Op> = group
                .iter()
                .map(|change| encode_change(cluster, change))
                .map(|(key, value)| Op { key: key.into_bytes(), value })
                .collect();
            store.commit(&office, n as u64 + 1, &ops).await.unwrap();
        }
        store
    }

    #[test]
    fn instances_that_come_before_their_node_and_service_are_not_lost() {
        let before = sample(300);
        let record = |change: &Change| {
            let (key, value) = encode_change(&before, change);
            Record { key: key.into(), value: value.unwrap().into() }
        };
        let instances = before.instances().map(|instance| record(&Change::Instance(instance.clone())));
        let nodes = before.nodes().map(|(_, node)| record(&Change::Node(node.rec.clone())));
        let services = before.services().map(|(_, entry)| record(&Change::Service(entry.rec.clone())));
        let (send, batches) = mpsc::channel(3);
        send.try_send(instances.collect()).unwrap();
        send.try_send(nodes.collect()).unwrap();
        send.try_send(services.collect()).unwrap();
        drop(send);
        assert_eq!(decode(batches).unwrap().instance_count(), 300);
    }

    #[test]
    fn an_instance_of_a_service_that_is_nowhere_is_an_error() {
        let before = sample(1);
        let (key, value) =
            encode_change(&before, &Change::Instance(before.instances().next().unwrap().clone()));
        let (send, batches) = mpsc::channel(1);
        send.try_send(vec![Record { key: key.into(), value: value.unwrap().into() }]).unwrap();
        drop(send);
        let error = decode(batches).err().unwrap().to_string();
        assert!(error.contains("names service web, which is not there"), "{error}");
    }

    #[tokio::test]
    async fn what_was_stored_is_loaded() {
        let before = sample(instances());
        let store = stored(&before).await;
        let begun = std::time::Instant::now();
        let loaded = load(&store).await.unwrap();
        println!("{} instances loaded in {:?}", loaded.cluster.instance_count(), begun.elapsed());
        assert_eq!(loaded.cluster.instance_count(), before.instance_count());
        assert_eq!(loaded.position.head, store.head().await.unwrap());
        for (ix, node) in before.nodes() {
            assert_eq!(loaded.cluster.node_by_id(node.rec.id.as_str()).unwrap().used, before.node(ix).used);
        }
    }

    #[tokio::test]
    async fn a_record_of_a_newer_version_is_an_error_that_says_so() {
        let store = MemoryStore::new();
        let me = store::Candidate::new("a", "");
        let office = store.office(&me, std::time::Duration::from_secs(600)).await.unwrap().elected().unwrap();
        store.commit(&office, 1, &[Op::put("n/node-1", vec![9, 9])]).await.unwrap();
        let error = load(&store).await.err().unwrap().to_string();
        assert!(error.contains("written by a newer tidegate"), "{error}");
    }
}
