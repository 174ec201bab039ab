//! What is bound to leases: office, and the presence of candidates.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::client::{Client, created_at, get, put, read_by, request};
use super::links::{Bounds, CallError, USUAL};
use super::proto::lease_client::LeaseClient;
use super::proto::{self, LeaseKeepAliveRequest};
use super::status;
use crate::contract::{Campaign, Candidate, Office, Presence, encode_candidate};
use crate::error::{KeepAliveError, StoreError};

/// A presence is extended this many times within its lease, so that one lost answer does not end it.
const EXTENSIONS_PER_TTL: u32 = 3;

/// Between tries to announce again.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(500);

/// An extension must leave room for a second try at another member while the lease holds, and say
/// soon that it does not succeed.
fn extension_bounds(ttl: Duration) -> Bounds {
    Bounds {
        attempt: (ttl / 4).clamp(Duration::from_millis(250), Duration::from_secs(2)),
        overall: ttl.min(USUAL.attempt),
    }
}

fn leases(channel: Channel) -> LeaseClient<Channel> {
    LeaseClient::new(channel)
}

impl Client {
    /// The lease, and how long it really holds: etcd raises short ones.
    async fn grant(&self, operation: &'static str, ttl: Duration) -> Result<(i64, Duration), StoreError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let call = |channel| async move {
            let message = proto::LeaseGrantRequest { ttl: seconds as i64, id: 0 };
            leases(channel).lease_grant(request(message)).await
        };
        let answer: Result<proto::LeaseGrantResponse, CallError> =
            self.links.retry(operation, USUAL, call).await;
        let granted = answer.map_err(|error| self.links.rejected(operation, error))?;
        Ok((granted.id, Duration::from_secs(granted.ttl as u64)))
    }

    /// `None` when the lease is over.
    async fn extend(
        &self,
        operation: &'static str,
        lease: i64,
        bounds: Bounds,
    ) -> Result<Option<Duration>, StoreError> {
        let call = |channel| async move {
            let once = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
            let mut answers = leases(channel).lease_keep_alive(request(once)).await?.into_inner();
            let answer = answers.message().await?;
            answer.map(tonic::Response::new).ok_or_else(|| tonic::Status::unavailable("the stream ended"))
        };
        let answer: Result<proto::LeaseKeepAliveResponse, CallError> =
            self.links.retry(operation, bounds, call).await;
        match answer {
            Ok(answer) => Ok((answer.ttl > 0).then(|| Duration::from_secs(answer.ttl as u64))),
            Err(CallError::Final(status)) if status::is_lease_gone(&status) => Ok(None),
            Err(error) => Err(self.links.rejected(operation, error)),
        }
    }

    pub(super) async fn revoke(&self, operation: &'static str, lease: i64) -> Result<(), StoreError> {
        let call = |channel| async move {
            leases(channel).lease_revoke(request(proto::LeaseRevokeRequest { id: lease })).await
        };
        match self.links.retry(operation, USUAL, call).await {
            Ok(_) => Ok(()),
            Err(CallError::Final(status)) if status::is_lease_gone(&status) => Ok(()),
            Err(error) => Err(self.links.rejected(operation, error)),
        }
    }

    pub(super) async fn campaign(
        &self,
        candidate: &Candidate,
        ttl: Duration,
    ) -> Result<Campaign, StoreError> {
        // most tries find somebody in office; they need no lease
        if let (Some(holder), _) = self.holder().await? {
            return Ok(Campaign::HeldBy(holder));
        }
        let (lease, valid_for) = self.grant("taking office", ttl).await?;
        let campaign = self.take_office(candidate, lease, valid_for).await;
        if !matches!(campaign, Ok(Campaign::Elected(_))) {
            // also ends an office that was taken by a transaction whose answer was lost
            if let Err(error) = self.revoke("giving back an unused lease", lease).await {
                tracing::debug!(%error, "the unused lease runs out by itself");
            }
        }
        campaign
    }

    async fn take_office(
        &self,
        candidate: &Candidate,
        lease: i64,
        valid_for: Duration,
    ) -> Result<Campaign, StoreError> {
        let office = &self.keys.office;
        let txn = proto::TxnRequest {
            compare: vec![created_at(office, 0)],
            success: vec![put(office.clone(), encode_candidate(candidate), lease), get(office)],
            failure: vec![get(office)],
        };
        let answer = self.txn("taking office", USUAL, txn).await?;
        let read = read_by(&answer, usize::from(answer.succeeded));
        let kv = read.ok_or_else(|| self.keys.malformed(office, b""))?;
        // a first try that got through without its answer leaves our own lease there
        if kv.lease == lease {
            let term = kv.create_revision as u64;
            return Ok(Campaign::Elected(Office { term, candidate: candidate.clone(), valid_for, lease }));
        }
        Ok(Campaign::HeldBy(self.decode_holder(kv)?))
    }

    pub(super) async fn extend_office(&self, office: &Office) -> Result<Duration, KeepAliveError> {
        let term = office.term;
        let unavailable = |source| KeepAliveError::Unavailable { term, source };
        let bounds = extension_bounds(office.valid_for);
        let valid_for = self.extend("keeping office", office.lease, bounds).await.map_err(unavailable)?;
        let valid_for = valid_for.ok_or(KeepAliveError::Lost { term })?;
        // a lease outlives its key when somebody deletes that by hand
        match self.holder_within(bounds).await.map_err(unavailable)? {
            (Some(holder), _) if holder.term == term => Ok(valid_for),
            _ => Err(KeepAliveError::Lost { term }),
        }
    }

    async fn appear(&self, candidate: &Candidate, ttl: Duration) -> Result<(i64, Duration), StoreError> {
        const OPERATION: &str = "announcing a candidate";
        let (lease, ttl) = self.grant(OPERATION, ttl).await?;
        let write = put(self.keys.candidate(&candidate.id), encode_candidate(candidate), lease);
        let txn = proto::TxnRequest { success: vec![write], ..Default::default() };
        self.txn(OPERATION, USUAL, txn).await?;
        Ok((lease, ttl))
    }

    /// Extends until the lease is lost.
    async fn stay(&self, lease: i64, ttl: Duration) {
        loop {
            sleep(ttl / EXTENSIONS_PER_TTL).await;
            match self.extend("staying announced", lease, extension_bounds(ttl)).await {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => tracing::debug!(%error, "will try again"),
            }
        }
    }
}

pub(super) async fn announce(
    client: &Arc<Client>,
    candidate: &Candidate,
    ttl: Duration,
) -> Result<Presence, StoreError> {
    let (mut lease, mut granted) = client.appear(candidate, ttl).await?;
    let (withdraw, withdrawn) = oneshot::channel();
    let (client, candidate) = (Arc::clone(client), candidate.clone());
    let task = tokio::spawn(async move {
        let withdrawn = withdrawn.shared();
        loop {
            tokio::select! {
                asked = withdrawn.clone() => {
                    if asked.is_ok() && let Err(error) = client.revoke("withdrawing a candidate", lease).await {
                        tracing::debug!(%error, "the lease runs out by itself");
                    }
                    return;
                }
                () = client.stay(lease, granted) => {}
            }
            // lost, for instance after etcd was away for long: appear again
            (lease, granted) = tokio::select! {
                _ = withdrawn.clone() => return,
                again = reappear(&client, &candidate, ttl) => again,
            };
        }
    });
    Ok(Presence::new(withdraw, task))
}

async fn reappear(client: &Client, candidate: &Candidate, ttl: Duration) -> (i64, Duration) {
    loop {
        match client.appear(candidate, ttl).await {
            Ok(lease) => return lease,
            Err(error) => tracing::debug!(%error, "will try again"),
        }
        sleep(ANNOUNCE_PAUSE).await;
    }
}
