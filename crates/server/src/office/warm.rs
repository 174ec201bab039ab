//! A candidate's copy of the state while another is in office, so that taking office is quick.

use std::sync::Arc;
use std::time::Duration;

use store::{Committed, Follow, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::load::{self, Loaded, StateError};

/// After trouble, before the state is loaded again.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);

struct HandOver {
    /// Everything up to this transaction must be in it.
    head: u64,
    to: oneshot::Sender<Loaded>,
}

/// Follows the state in a task of its own until it is handed over or dropped.
pub(super) struct Warm {
    ask: mpsc::Sender<HandOver>,
    closed: watch::Receiver<Vec<String>>,
    task: JoinHandle<()>,
}

impl Warm {
    pub fn start(store: Arc<dyn Store>) -> Warm {
        let (ask, asked) = mpsc::channel(1);
        let (closed, closed_seen) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            let mut asked = asked;
            while let Err(error) = follow(&*store, &mut asked, &closed).await {
                tracing::warn!(%error, "the copy of the state is behind; loading it again");
                tokio::time::sleep(RELOAD_PAUSE).await;
            }
        });
        Warm { ask, closed: closed_seen, task }
    }

    /// The nodes that are closed, as far as the copy knows.
    pub fn closed_nodes(&self) -> Vec<String> {
        self.closed.borrow().clone()
    }

    /// The copy, once it contains the transaction `head`.
    pub async fn take(self, head: u64, within: Duration) -> Option<Loaded> {
        let (to, handed) = oneshot::channel();
        self.ask.send(HandOver { head, to }).await.ok()?;
        tokio::time::timeout(within, handed).await.ok()?.ok()
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends well once the copy is handed over.
async fn follow(
    store: &dyn Store,
    asked: &mut mpsc::Receiver<HandOver>,
    closed: &watch::Sender<Vec<String>>,
) -> Result<(), StateError> {
    let mut loaded = load::load(store).await?;
    tell_closed(&loaded, closed);
    let mut follow: Follow =
        store.watch(loaded.position).await.map_err(|error| StateError::Load(error.into()))?;
    let mut wanted: Option<HandOver> = None;
    loop {
        match wanted.take() {
            Some(hand_over) if hand_over.head <= loaded.position.head => {
                // one that waited too long loads for itself
                let _gone = hand_over.to.send(loaded);
                return Ok(());
            }
            other => wanted = other,
        }
        tokio::select! {
            next = follow.next() => {
                let committed = next.map_err(|error| StateError::Decoder(error.to_string()))?;
                apply(&mut loaded, &committed)?;
                if committed.ops.iter().any(|op| op.key.starts_with(b"n/")) {
                    tell_closed(&loaded, closed);
                }
            }
            Some(hand_over) = asked.recv() => wanted = Some(hand_over),
        }
    }
}

fn apply(loaded: &mut Loaded, committed: &Committed) -> Result<(), StateError> {
    for op in &committed.ops {
        load::apply(&mut loaded.cluster, &op.key, op.value.as_deref())?;
    }
    loaded.position.head = committed.head;
    loaded.position.revision = committed.revision;
    Ok(())
}

fn tell_closed(loaded: &Loaded, closed: &watch::Sender<Vec<String>>) {
    let nodes = loaded.cluster.nodes().filter(|(_, node)| node.is_closed());
    closed.send_replace(nodes.map(|(_, node)| node.rec.id.to_string()).collect());
}
