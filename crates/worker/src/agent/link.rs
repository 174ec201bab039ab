//! The stream to the coordinator: any candidate redirects, a broken stream is dialled again.

use std::time::Duration;

use doors::Keys;
use protocol::message::{Down, Up};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use wire::{ConnectError, Connection};

use super::task::Event;

/// Between two tries: short enough that a fail-over is hardly noticed, long enough not to be a load.
const DIAL_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause, while nobody answers.
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(2);

/// A daemon that is refused waits for somebody to act: for another certificate, as a rule.
const REFUSED_PAUSE: Duration = Duration::from_secs(2);

/// An open stream, seen from the agent.
pub(super) struct Link {
    pub up: mpsc::Sender<Up>,
    stop: CancellationToken,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Link {
    /// Hands the open connection's messages on to the agent until it ends or the link is dropped.
    pub fn open(connection: Connection, number: u64, events: mpsc::UnboundedSender<Event>) -> Link {
        let stop = CancellationToken::new();
        let (stopped, up) = (stop.clone(), connection.sender.clone());
        tokio::spawn(async move {
            let Connection { sender, mut receiver, ended } = connection;
            loop {
                let down: Option<Down> = tokio::select! {
                    down = receiver.recv() => down,
                    () = stopped.cancelled() => None,
                };
                let Some(down) = down else { break };
                let _ = events.send(Event::Down { link: number, down });
            }
            drop((sender, receiver));
            match ended.await {
                Ok(end) if end.is_refusal() => {
                    tracing::warn!("the coordinator refuses this daemon: {}", super::launch::chain(&end));
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
                Ok(end) => tracing::debug!("stream ended: {end}"),
                Err(_) => {}
            }
            let _ = events.send(Event::LinkEnded { link: number });
        });
        Link { up, stop }
    }
}

/// Dials until somebody who is the coordinator answers.
pub(super) async fn dial(candidates: Vec<String>, first: Option<String>, keys: Option<Keys>) -> Connection {
    let mut pause = DIAL_PAUSE;
    let mut said = String::new();
    let mut next = first;
    for turn in 0.. {
        let address = match next.take() {
            Some(address) => address,
            None => candidates[turn % candidates.len()].clone(),
        };
        match wire::connect_with(&address, keys.as_ref()).await {
            Ok(connection) => return connection,
            Err(ConnectError::NotCoordinator { coordinator }) => {
                tracing::debug!("{address} is not the coordinator; it names {coordinator:?}");
                next = coordinator;
            }
            Err(fault) if fault.is_refusal() => {
                // Once: it is tried again every other second.
                let saying = super::launch::chain(&fault);
                if said != saying {
                    tracing::warn!("no stream to {address}: {saying}");
                    said = saying;
                }
            }
            Err(fault) => tracing::debug!("cannot reach {address}: {}", super::launch::chain(&fault)),
        }
        let whole_round = (turn + 1) % candidates.len() == 0;
        if next.is_none() && whole_round {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(DIAL_PAUSE_MAX);
        } else if next.is_some() {
            // Two candidates that name each other must not make a busy loop.
            tokio::time::sleep(DIAL_PAUSE / 4).await;
        }
    }
    unreachable!("an endless loop ends only by returning")
}
