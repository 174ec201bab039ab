//! A store that can stop answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store::memory::MemoryStore;
use store::{
    Batch, Campaign, Candidate, CommitError, Follow, Holder, KeepAliveError, KeyRange, LoadError, Office, Op,
    Position, Presence, Status, Store, StoreError,
};
use tokio::sync::{mpsc, watch};

#[derive(Clone)]
pub struct Silent {
    store: MemoryStore,
    silent: Arc<AtomicBool>,
}

impl Silent {
    pub fn new(store: MemoryStore) -> Silent {
        Silent { store, silent: Arc::default() }
    }

    pub fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.silent.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable {
                operation: "asking",
                place: "the store".to_owned(),
                source: "silent".into(),
            }),
            false => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Store for Silent {
    async fn office(&self, candidate: &Candidate, ttl: Duration) -> Result<Campaign, StoreError> {
        self.check()?;
        self.store.office(candidate, ttl).await
    }
    async fn keep_alive(&self, office: &Office) -> Result<Duration, KeepAliveError> {
        if let Err(source) = self.check() {
            return Err(KeepAliveError::Unavailable { term: office.term, source });
        }
        self.store.keep_alive(office).await
    }
    async fn resign(&self, office: &Office) -> Result<(), StoreError> {
        self.check()?;
        self.store.resign(office).await
    }
    async fn holder(&self) -> Result<Option<Holder>, StoreError> {
        self.check()?;
        self.store.holder().await
    }
    async fn watch_holder(&self) -> Result<watch::Receiver<Option<Holder>>, StoreError> {
        self.store.watch_holder().await
    }
    async fn commit(&self, office: &Office, head: u64, ops: &[Op]) -> Result<(), CommitError> {
        self.store.commit(office, head, ops).await
    }
    async fn head(&self) -> Result<u64, StoreError> {
        self.check()?;
        self.store.head().await
    }
    async fn load(&self, ranges: &[KeyRange], sink: mpsc::Sender<Batch>) -> Result<Position, LoadError> {
        self.check()?;
        self.store.load(ranges, sink).await
    }
    async fn watch(&self, after: Position) -> Result<Follow, StoreError> {
        self.store.watch(after).await
    }
    async fn announce(&self, candidate: &Candidate, ttl: Duration) -> Result<Presence, StoreError> {
        self.store.announce(candidate, ttl).await
    }
    async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        self.store.candidates().await
    }
    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }
    async fn status(&self) -> Result<Status, StoreError> {
        self.store.status().await
    }
}
