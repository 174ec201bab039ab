//! How fast changes are written, and how long taking office takes when a million instances must be
//! loaded first.

use std::{sync::Arc, time::Instant};

use anyhow::Context;
use model::{Change, Cluster, Term, Time, encode_change};
use protocol::{
    Timing,
    coordinator::{Coordinator, Start},
};
use store::{
    Candidate, OPS_PER_TXN_MAX, Op, Store, embedded::EmbeddedStore, etcd::EtcdStore, rates,
    testing::EtcdCluster,
};

use crate::{
    cluster::{place, settle_instances},
    report::{Bar, Report},
};

pub const REDB: &str = "commit_redb";
pub const ETCD: &str = "commit_etcd_3_members";
pub const COLD_OFFICE: &str = "taking_office_cold_1m_etcd";

const SECONDS: u64 = 5;
const NODES: usize = 10_000;
const UNITS: usize = 1_000_000;

pub async fn redb(report: &mut Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let store = EmbeddedStore::open(&dir.path().join("store.redb")).await?;
    let rate = rates::commit_rate(&store, SECONDS).await.map_err(|fault| anyhow::anyhow!("{fault}"))?;
    report.line(REDB, rate, "changes/s", Bar::None);
    Ok(())
}

pub async fn etcd(report: &mut Report) -> anyhow::Result<()> {
    let etcd = EtcdCluster::start(3).await;
    let store = EtcdStore::open(&etcd.config("/bench")).await?;
    let rate = rates::commit_rate(&store, SECONDS).await.map_err(|fault| anyhow::anyhow!("{fault}"))?;
    report.line(ETCD, rate, "changes/s", Bar::AtLeast(20_000.0));
    Ok(())
}

pub async fn cold_office(report: &mut Report) -> anyhow::Result<()> {
    let mut cluster = place(NODES, UNITS).cluster;
    settle_instances(&mut cluster);
    let cluster = &cluster;
    let etcd = EtcdCluster::start(3).await;
    let store: Arc<dyn Store> = Arc::new(EtcdStore::open(&etcd.config("/bench")).await?);
    let begun = Instant::now();
    fill(store.as_ref(), cluster).await.context("filling etcd")?;
    report.line("filling_etcd_with_1m_instances", begun.elapsed().as_secs_f64(), "s", Bar::None);

    let begun = Instant::now();
    let store = EtcdStore::open(&etcd.config("/bench")).await?;
    let loaded = server::load(&store).await?;
    let count = loaded.cluster.instance_count();
    let start = Start {
        cluster: loaded.cluster,
        head: loaded.position.head,
        term: Term(u64::MAX >> 1),
        timing: Timing::default(),
        random: 1,
        candidate: "bench".into(),
        api: "127.0.0.1:7070".into(),
        drain: Default::default(),
        feeds: Default::default(),
    };
    let (coordinator, _) = Coordinator::new(start, Time(10_000));
    let took = begun.elapsed().as_secs_f64();
    anyhow::ensure!(count == cluster.instance_count(), "{count} instances came back");
    drop(coordinator);
    report.line(COLD_OFFICE, took, "s", Bar::AtMost(15.0));
    Ok(())
}

async fn fill(store: &dyn Store, cluster: &Cluster) -> anyhow::Result<()> {
    let candidate = Candidate { id: "bench".into(), addresses: String::new() };
    let campaign = store.office(&candidate, std::time::Duration::from_secs(600)).await?;
    let office = campaign.elected().context("somebody else is in office")?;
    let nodes = cluster.nodes().map(|(_, node)| Change::Node(node.rec.clone()));
    let services = cluster.services().map(|(_, entry)| Change::Service(entry.rec.clone()));
    let instances = cluster.instances().map(|instance| Change::Instance(instance.clone()));
    let changes = std::iter::once(Change::Meta(cluster.meta().clone())).chain(nodes).chain(services);
    let mut ops = Vec::with_capacity(OPS_PER_TXN_MAX);
    let mut head = store.head().await?;
    for change in changes.chain(instances) {
        let (key, value) = encode_change(cluster, &change);
        ops.push(Op { key: key.into_bytes(), value });
        if ops.len() == OPS_PER_TXN_MAX {
            head += 1;
            store.commit(&office, head, &ops).await?;
            ops.clear();
        }
    }
    if !ops.is_empty() {
        store.commit(&office, head + 1, &ops).await?;
    }
    store.resign(&office).await?;
    Ok(())
}
