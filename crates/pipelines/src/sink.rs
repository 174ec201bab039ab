//! Where rows go: what a source asks of a sink. One fence for all sinks is in these words.

use std::sync::Arc;

use async_trait::async_trait;
use model::{Checkpoint, SpanEpoch, SpanName};

use crate::change::{Change, Row, Shape};
use crate::contract::Trouble;

/// One feed's sink on one node.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Whether it can be written at all; the preflight of its half. Its mark, if it is a directory.
    async fn check(&self) -> Result<Option<String>, Trouble>;

    fn expect(&self, mark: &str) {
        let _ = mark;
    }

    /// Opens what a span needs and looks whether `shape` fits. Takes nothing over.
    async fn prepare(&self, span: &SpanName, shape: &Shape) -> Result<Box<dyn SpanSink>, Trouble>;

    /// Forgets the checkpoints of all spans but these. The rows stay.
    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble>;
}

/// How far a span is in its sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// Nothing, or a first copy that did not come to its end.
    Empty,
    /// The first copy is whole, and so is everything up to here.
    At(Checkpoint),
}

/// One span's place in the sink. Every call but `fit` fails with [`Trouble::fenced`] and writes nothing once
/// a higher epoch has taken over.
#[async_trait]
pub trait SpanSink: Send {
    /// Raises the epoch, ends what an older epoch has in flight, and says where to start.
    async fn take_over(&mut self, epoch: SpanEpoch) -> Result<Stand, Trouble>;

    /// Whether rows of this shape fit; the calls that follow are of this shape.
    async fn fit(&mut self, shape: &Arc<Shape>) -> Result<(), Trouble>;

    /// Whether the epoch is still the highest. For steps outside the sink that must not be a zombie's.
    async fn is_ours(&mut self) -> Result<(), Trouble>;

    /// Removes the span's rows and notes that its first copy has begun.
    async fn clear(&mut self) -> Result<(), Trouble>;

    /// Part of the first copy; it takes effect at once.
    async fn load(&mut self, rows: Vec<Row>) -> Result<(), Trouble>;

    /// The first copy is whole.
    async fn loaded(&mut self, at: Checkpoint) -> Result<(), Trouble>;

    /// Applies changes in their order. They take effect with `commit`.
    async fn write(&mut self, changes: Vec<Change>) -> Result<(), Trouble>;

    /// Makes everything written since the last commit take effect, together with the checkpoint.
    async fn commit(&mut self, at: Checkpoint) -> Result<(), Trouble>;

    /// Undoes what was written since the last commit.
    async fn roll_back(&mut self) -> Result<(), Trouble>;
}
