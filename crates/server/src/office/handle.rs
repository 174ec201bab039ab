//! What the rest of the daemon holds of the office: requests, reads, streams.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use model::Time;
use protocol::coordinator::{Answer, ApiError, Asked, Coordinator};
use store::Store;
use tokio::sync::{mpsc, oneshot, watch};
use wire::{Acceptor, ConnEvent, ConnId};

use super::term::{Inbound, Release};
use super::{Leader, Shared};
use crate::{events::EventLog, metrics::Metrics};

/// The way to the coordinator of one term.
pub(crate) struct Link {
    pub inbound: mpsc::Sender<Inbound>,
    pub streams: mpsc::Sender<(ConnId, ConnEvent)>,
}

/// The coordinator is not here, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this daemon is not the coordinator")]
pub struct NotCoordinator;

/// One part of a long list, and where the next one begins.
pub struct Slice<T, C> {
    pub items: Vec<T>,
    pub next: Option<C>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct OfficeHandle(Arc<Shared>);

impl OfficeHandle {
    pub(super) fn new(shared: Arc<Shared>) -> OfficeHandle {
        OfficeHandle(shared)
    }

    pub fn candidate(&self) -> &str {
        &self.0.config.candidate
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.config.store
    }

    pub fn events(&self) -> &EventLog {
        &self.0.events
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn space_alarm(&self) -> bool {
        self.0.space_alarm.load(Ordering::Relaxed)
    }

    /// Whether the coordinator is in this process.
    pub fn is_acting(&self) -> bool {
        self.0.acting.borrow().is_some()
    }

    /// Who is in office, kept up to date; this candidate itself while it acts.
    pub fn leader(&self) -> watch::Receiver<Option<Leader>> {
        self.0.leader.subscribe()
    }

    fn link(&self) -> Result<Arc<Link>, NotCoordinator> {
        self.0.acting.borrow().clone().ok_or(NotCoordinator)
    }

    /// Carries out a request; returns once what it changed is committed.
    pub async fn ask(&self, asked: Asked) -> Result<Result<Answer, ApiError>, NotCoordinator> {
        let (reply, answer) = oneshot::channel();
        let link = self.link()?;
        link.inbound.send(Inbound::Ask { asked, reply }).await.map_err(|_| NotCoordinator)?;
        answer.await.map_err(|_| NotCoordinator)
    }

    /// Builds a view in the coordinator's own task, and returns it once everything it may show is
    /// committed. Keep `look` short: heartbeats wait for it.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Coordinator, Time) -> T + Send + 'static,
    ) -> Result<T, NotCoordinator> {
        self.view(look, true).await
    }

    /// As [`read`](Self::read), without waiting for the store: for figures that must be there while
    /// the store is not.
    pub async fn peek<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Coordinator, Time) -> T + Send + 'static,
    ) -> Result<T, NotCoordinator> {
        self.view(look, false).await
    }

    async fn view<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Coordinator, Time) -> T + Send + 'static,
        committed: bool,
    ) -> Result<T, NotCoordinator> {
        let (send, seen) = oneshot::channel();
        let look = Box::new(move |coordinator: &Coordinator, now: Time| {
            let value = look(coordinator, now);
            let release: Release = Box::new(move || {
                // a reader that went away needs no answer
                let _gone = send.send(value);
            });
            release
        });
        let link = self.link()?;
        link.inbound.send(Inbound::Look { look, committed }).await.map_err(|_| NotCoordinator)?;
        seen.await.map_err(|_| NotCoordinator)
    }

    /// Reads a long list part by part, so that a million instances hold up no heartbeat. Each part is
    /// of one moment; the whole need not be.
    pub async fn gather<T, C>(
        &self,
        step: impl Fn(&Coordinator, Time, Option<C>) -> Slice<T, C> + Clone + Send + 'static,
    ) -> Result<Vec<T>, NotCoordinator>
    where
        T: Send + 'static,
        C: Send + 'static,
    {
        let (mut items, mut at) = (Vec::new(), None);
        loop {
            let step = step.clone();
            let part = self.read(move |coordinator, now| step(coordinator, now, at)).await?;
            items.extend(part.items);
            match part.next {
                Some(next) => at = Some(next),
                None => return Ok(items),
            }
        }
    }

    /// Gives the office back, if it is held, and stops campaigning.
    pub async fn shutdown(&self) {
        self.0.stop.cancel();
        if let Some(life) = self.0.ended.lock().await.take() {
            // a life that panicked has ended as well
            let _ended = life.await;
        }
    }
}

/// What [`wire::serve`] asks when a daemon dials.
impl Acceptor for OfficeHandle {
    fn accept(&self) -> Result<mpsc::Sender<(ConnId, ConnEvent)>, wire::NotCoordinator> {
        if let Ok(link) = self.link() {
            return Ok(link.streams.clone());
        }
        let leader = self.0.leader.borrow();
        let coordinator = leader.as_ref().map(|leader| leader.rpc.clone()).filter(|rpc| !rpc.is_empty());
        Err(wire::NotCoordinator { coordinator })
    }
}
