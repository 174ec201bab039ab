//! What a source and a sink have in common: rows. Any source goes with any sink.

use async_trait::async_trait;
use model::{Checkpoint, SpanEpoch, SpanName, Time};
use serde_json::value::RawValue;

use crate::{Outlook, Trouble};

/// Longer rows are refused: a whole row has to fit into memory, many times over.
pub const ROW_BYTES_MAX: usize = 16 << 20;

/// One row on its way.
#[derive(Clone, Debug)]
pub struct Row {
    /// How far the span is once this row, and every row before it, is in the sink.
    pub position: u64,
    /// What tells it from other rows of its span. A log has none: its lines are only ever added.
    pub key: Option<Box<RawValue>>,
    pub value: Box<RawValue>,
    /// Rows follow that take effect together with this one or not at all. The position that counts for all
    /// of them is the last one's; those before it have the same, or a lower one where it was not known yet.
    pub more: bool,
}

/// What a source gives at once.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub rows: Vec<Row>,
    /// Once the rows are in the sink, everything that happened before this is. `None`: unknown yet.
    pub at: Option<Time>,
}

/// One feed's source on one node.
#[async_trait]
pub trait RowSource: Send + Sync + 'static {
    async fn look(&self) -> Result<Outlook, Trouble>;
    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn SpanReader>, Trouble>;
    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble>;
    fn expect(&self, mark: &str) {
        let _ = mark;
    }
}

#[async_trait]
pub trait SpanReader: Send {
    /// Goes behind what the sink holds. Called once, before the first batch.
    async fn seek(&mut self, to: Checkpoint) -> Result<(), Trouble>;

    /// Waits until there are rows, or time has passed without any. A call that is dropped loses nothing:
    /// the next one gives the same rows.
    async fn next(&mut self) -> Result<Batch, Trouble>;

    /// What the sink has made durable: the source need not keep it.
    async fn committed(&mut self, to: Checkpoint) -> Result<(), Trouble> {
        let _ = to;
        Ok(())
    }
}

/// One feed's sink on one node.
#[async_trait]
pub trait RowSink: Send + Sync + 'static {
    /// Whether it is fit to be written to; its mark, if it is a directory.
    async fn look(&self) -> Result<Option<String>, Trouble>;
    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn SpanWriter>, Trouble>;
    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble>;
    fn expect(&self, mark: &str) {
        let _ = mark;
    }
}

#[async_trait]
pub trait SpanWriter: Send {
    /// Raises the epoch, so that nothing of an earlier one takes effect any more, and says how far the
    /// sink is. Called once, before the first batch.
    async fn begin(
        &mut self,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
    ) -> Result<Option<Checkpoint>, Trouble>;

    /// When it returns well, the rows are durable and this epoch was the highest when they were. Without
    /// rows it says just the latter.
    async fn commit(&mut self, rows: Vec<Row>) -> Result<(), Trouble>;

    /// The span is this far, without a row that says so; what was committed with `more` takes effect.
    async fn advance(&mut self, position: u64) -> Result<(), Trouble>;
}
