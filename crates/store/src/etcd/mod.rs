//! The store of every real cluster: etcd, spoken to through the few calls of `proto/etcd.proto`.
//!
//! *Invariant:* a transaction is sent once. Everything else here may be sent twice without harm, and is,
//! until some member answers or its time is up.

mod client;
mod follow;
mod keys;
mod lease;
mod links;
mod status;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};

use client::Client;

use crate::contract::{
    Batch, Campaign, Candidate, FOLLOW_BUFFER, Follow, Holder, KeyRange, Office, Op, Position, Presence,
    Status, Store, check_transaction,
};
use crate::error::{CommitError, KeepAliveError, LoadError, StoreError};

/// Generated from `proto/etcd.proto`.
#[allow(clippy::all, missing_docs)]
pub(crate) mod proto {
    tonic::include_proto!("etcdserverpb");
}

/// How to reach the cluster, and where in it the state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Like `https://10.0.0.1:2379`; all members of one cluster.
    pub endpoints: Vec<String>,
    /// Like `/tidegate/prod`.
    pub prefix: String,
}

/// Clones share one connection.
#[derive(Clone)]
pub struct EtcdStore(Arc<Client>);

impl EtcdStore {
    /// Connects, compares the members' cluster ids, and reads the format, or writes it where the prefix
    /// is empty. Takes at most a few seconds when no member answers.
    pub async fn open(config: &EtcdConfig) -> Result<EtcdStore, StoreError> {
        EtcdStore::open_with(config, None).await
    }

    /// As [`open`](Self::open); members at `https://` are shown this certificate, and show one of the same
    /// authority.
    pub async fn open_with(config: &EtcdConfig, keys: Option<doors::Keys>) -> Result<EtcdStore, StoreError> {
        let client = Client::new(config, keys)?;
        client.open().await?;
        Ok(EtcdStore(Arc::new(client)))
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn office(&self, candidate: &Candidate, ttl: Duration) -> Result<Campaign, StoreError> {
        self.0.campaign(candidate, ttl).await
    }

    async fn keep_alive(&self, office: &Office) -> Result<Duration, KeepAliveError> {
        self.0.extend_office(office).await
    }

    async fn resign(&self, office: &Office) -> Result<(), StoreError> {
        self.0.revoke("resigning", office.lease).await
    }

    async fn holder(&self) -> Result<Option<Holder>, StoreError> {
        Ok(self.0.holder().await?.0)
    }

    async fn watch_holder(&self) -> Result<watch::Receiver<Option<Holder>>, StoreError> {
        let (holder, revision) = self.0.holder().await?;
        let sender = watch::Sender::new(holder);
        let receiver = sender.subscribe();
        tokio::spawn(follow::holder(Arc::clone(&self.0), revision, sender));
        Ok(receiver)
    }

    async fn commit(&self, office: &Office, head: u64, ops: &[Op]) -> Result<(), CommitError> {
        check_transaction(head, ops)?;
        self.0.commit(office, head, ops).await
    }

    async fn head(&self) -> Result<u64, StoreError> {
        Ok(self.0.position("reading the head").await?.head)
    }

    async fn load(&self, ranges: &[KeyRange], sink: mpsc::Sender<Batch>) -> Result<Position, LoadError> {
        client::load(&self.0, ranges, sink).await
    }

    async fn watch(&self, after: Position) -> Result<Follow, StoreError> {
        let (send, received) = mpsc::channel(FOLLOW_BUFFER);
        let task = tokio::spawn(follow::transactions(Arc::clone(&self.0), after, send));
        Ok(Follow::new(received, task))
    }

    async fn announce(&self, candidate: &Candidate, ttl: Duration) -> Result<Presence, StoreError> {
        lease::announce(&self.0, candidate, ttl).await
    }

    async fn candidates(&self) -> Result<Vec<Candidate>, StoreError> {
        self.0.candidates().await
    }

    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.0.compact(revision).await
    }

    async fn status(&self) -> Result<Status, StoreError> {
        self.0.status().await
    }
}
