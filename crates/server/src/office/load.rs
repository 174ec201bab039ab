//! From the store's records to a [`Cluster`].

use bytes::Bytes;
use model::{Cluster, CodecError, decode_record, load_ranges};
use store::{Batch, KeyRange, LoadError, Position, Record, Store};
use tokio::sync::mpsc;

/// Batches between the store and the decoder.
const BATCHES_AHEAD: usize = 16;

/// The state as of one moment.
pub(super) struct Loaded {
    pub cluster: Cluster,
    pub position: Position,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
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
pub(super) async fn load(store: &dyn Store) -> Result<Loaded, StateError> {
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
