//! What the daemon holds of its edge.

use std::{net::IpAddr, time::Duration};

use model::Millis;
use protocol::{
    edge::ServiceStats,
    message::{Duty, EdgeReport, Sets},
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::shell::{Control, Shell};

/// What an edge has done and is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that hold a socket, in any phase.
    pub open: usize,
    /// How many may: beyond it clients wait in the kernel's queue.
    pub limit: usize,
    /// Since the edge started.
    pub accepted: u64,
    pub refused: u64,
    pub services: Vec<ServiceStats>,
}

/// A running edge. Clones are the same edge; when the last is gone, it closes everything at once.
#[derive(Clone)]
pub struct EdgeHandle {
    control: mpsc::UnboundedSender<Control>,
    report: watch::Receiver<EdgeReport>,
}

impl EdgeHandle {
    /// Starts an edge that listens on this address, on the ports its sets name. Must be called within
    /// a tokio runtime.
    pub fn start(bind_host: IpAddr, withdraw_delay: Millis) -> EdgeHandle {
        let (control, orders) = mpsc::unbounded_channel();
        let (changed, report) = watch::channel(EdgeReport::default());
        tokio::spawn(Shell::new(bind_host, withdraw_delay, changed).run(orders));
        EdgeHandle { control, report }
    }

    /// Puts sets in force; [`EdgeHandle::watch`] tells when they are. What is out of date or leaves a
    /// gap is dropped, as `protocol::edge` says.
    pub fn apply(&self, sets: Sets) {
        self.tell(Control::Apply(sets));
    }

    /// Withdraws it, or lets it serve again; [`EdgeHandle::watch`] tells how far it is.
    pub fn duty(&self, duty: Duty) {
        self.tell(Control::Duty(duty));
    }

    /// What the coordinator is told in the next heartbeat.
    pub fn report(&self) -> EdgeReport {
        self.report.borrow().clone()
    }

    /// Fires when the report changes, so that a confirmation is sent at once.
    pub fn watch(&self) -> watch::Receiver<EdgeReport> {
        self.report.clone()
    }

    pub async fn stats(&self) -> Stats {
        self.ask(Control::Stats).await.unwrap_or_default()
    }

    /// The sets in force, as one full message: what an edge can be started with again.
    pub async fn last_sets(&self) -> Option<Sets> {
        self.ask(Control::LastSets).await.flatten()
    }

    /// Closes the ports and returns when the last connection has ended, at the latest after `grace`.
    /// With a grace of zero connections are closed at once.
    pub async fn shutdown(&self, grace: Duration) {
        self.ask(|done| Control::Shutdown { grace: Millis::from(grace), done }).await;
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Control) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.tell(question(answer));
        answered.await.ok()
    }

    fn tell(&self, control: Control) {
        if self.control.send(control).is_err() {
            tracing::debug!("the edge has been shut down: nothing to tell it");
        }
    }
}
