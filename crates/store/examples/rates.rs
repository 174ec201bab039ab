//! The rates of the stores on this machine: `cargo run --release -p tidegate-store --example rates`.

use std::sync::Arc;
use std::time::Instant;

use store::Store;
use store::embedded::EmbeddedStore;
use store::etcd::EtcdStore;
use store::rates::{commit_rate, fill_and_load, load};
use store::testing::EtcdCluster;

const SECONDS: u64 = 10;
const RECORDS: u64 = 1_000_000;

#[tokio::main]
async fn main() -> Result<(), store::Cause> {
    let cluster = EtcdCluster::start_with(3, &["--quota-backend-bytes", "8589934592"]).await;
    let store: Arc<dyn Store> = Arc::new(EtcdStore::open(&cluster.config("/commits")).await?);
    println!("etcd, three members: {:.0} changes/s", commit_rate(&*store, SECONDS).await?);
    let store: Arc<dyn Store> = Arc::new(EtcdStore::open(&cluster.config("/records")).await?);
    println!("etcd, three members: {:?}", fill_and_load(Arc::clone(&store), RECORDS).await?);
    let begun = Instant::now();
    load(store).await?;
    println!("etcd, once more: loaded in {:?}", begun.elapsed());
    drop(cluster);

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("state.redb");
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&path).await?);
    println!("embedded: {:.0} changes/s", commit_rate(&*store, SECONDS).await?);
    drop(store);
    std::fs::remove_file(&path)?;
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&path).await?);
    println!("embedded: {:?}", fill_and_load(store, RECORDS).await?);
    let begun = Instant::now();
    EmbeddedStore::open(&path).await?;
    println!("embedded: opened and verified in {:?}", begun.elapsed());
    Ok(())
}
