//! Changes of tables into a sink of rows: a change is a row, with its key beside it.
//!
//! What a sink of tables does with a transaction, this does with `more`: rows of a transaction, or of a first
//! copy, whose last one is missing are not there. Where a span that has rows is copied anew, a row with
//! `truncate` comes before the copy.

use std::sync::Arc;

use async_trait::async_trait;
use model::{Checkpoint, Code, SpanEpoch, SpanName};
use serde_json::value::{RawValue, to_raw_value};

use crate::change::{self, Change, Shape};
use crate::contract::Trouble;
use crate::rows::{Row, RowSink, SpanWriter};
use crate::sink::{Sink, SpanSink, Stand};

/// Held back until it is known where the transaction ends. What is beyond goes to the sink as `more`.
const HELD_BYTES: usize = 1 << 20;

/// A sink of rows, as a sink of changes.
pub struct ChangeLines {
    rows: Arc<dyn RowSink>,
}

impl ChangeLines {
    pub fn new(rows: Arc<dyn RowSink>) -> ChangeLines {
        ChangeLines { rows }
    }
}

#[async_trait]
impl Sink for ChangeLines {
    async fn check(&self) -> Result<Option<String>, Trouble> {
        self.rows.look().await
    }

    fn expect(&self, mark: &str) {
        self.rows.expect(mark);
    }

    async fn prepare(&self, span: &SpanName, shape: &Shape) -> Result<Box<dyn SpanSink>, Trouble> {
        Ok(Box::new(Lines {
            span: span.clone(),
            writer: self.rows.prepare(span).await?,
            shape: Arc::new(shape.clone()),
            held: Vec::new(),
            held_bytes: 0,
            stand: None,
            spilt: false,
        }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        self.rows.sweep(keep).await
    }
}

struct Lines {
    span: SpanName,
    writer: Box<dyn SpanWriter>,
    shape: Arc<Shape>,
    held: Vec<Row>,
    held_bytes: usize,
    /// How far the sink is; `None` if it has nothing.
    stand: Option<Checkpoint>,
    /// The sink has rows that wait for their last one.
    spilt: bool,
}

impl Lines {
    async fn push(&mut self, change: &Change) -> Result<(), Trouble> {
        let row = self.row(change).map_err(|e| {
            Trouble::lasting(
                Code::RowRefused,
                format!("a change of {} cannot be written as JSON: {e}", self.span),
            )
        })?;
        self.held_bytes += row.value.get().len() + row.key.as_ref().map_or(0, |key| key.get().len());
        self.held.push(row);
        if self.held_bytes < HELD_BYTES {
            return Ok(());
        }
        self.spilt = true;
        self.held_bytes = 0;
        self.writer.commit(std::mem::take(&mut self.held)).await
    }

    fn row(&self, change: &Change) -> Result<Row, serde_json::Error> {
        let key: Option<Box<RawValue>> =
            change.key_json(&self.shape).map(|key| to_raw_value(&key)).transpose()?;
        let mut value = change.to_json(&self.shape);
        if let Some(value) = value.as_object_mut() {
            value.remove("key");
        }
        let position = self.stand.unwrap_or_default().position;
        Ok(Row { position, key, value: to_raw_value(&value)?, more: true })
    }
}

#[async_trait]
impl SpanSink for Lines {
    async fn take_over(&mut self, epoch: SpanEpoch) -> Result<Stand, Trouble> {
        self.stand = self.writer.begin(epoch, None).await?;
        Ok(self.stand.map_or(Stand::Empty, Stand::At))
    }

    async fn fit(&mut self, shape: &Arc<Shape>) -> Result<(), Trouble> {
        self.shape = Arc::clone(shape);
        Ok(())
    }

    async fn is_ours(&mut self) -> Result<(), Trouble> {
        self.writer.commit(Vec::new()).await
    }

    async fn clear(&mut self) -> Result<(), Trouble> {
        if self.stand.is_some() {
            self.push(&Change::Truncate).await?;
        }
        self.is_ours().await
    }

    async fn load(&mut self, rows: Vec<change::Row>) -> Result<(), Trouble> {
        for row in rows {
            self.push(&Change::Insert { row }).await?;
        }
        Ok(())
    }

    async fn loaded(&mut self, at: Checkpoint) -> Result<(), Trouble> {
        self.commit(at).await
    }

    async fn write(&mut self, changes: Vec<Change>) -> Result<(), Trouble> {
        for change in &changes {
            self.push(change).await?;
        }
        Ok(())
    }

    async fn commit(&mut self, at: Checkpoint) -> Result<(), Trouble> {
        let before = self.stand.unwrap_or_default().position;
        if at.position < before {
            let span = &self.span;
            return Err(Trouble::lasting(
                Code::SourceUnfit,
                format!(
                    "span {span}: the source is at {}, the rows in the sink at {before}: it is another source; \
                     remove the feed, which sets them aside, and apply it again",
                    at.position
                ),
            ));
        }
        let mut rows = std::mem::take(&mut self.held);
        rows.iter_mut().for_each(|row| row.position = at.position);
        match rows.last_mut() {
            Some(last) => {
                last.more = false;
                self.writer.commit(rows).await?;
            }
            None if self.spilt || self.stand.is_none() || at.position > before => {
                self.writer.advance(at.position).await?;
            }
            None => self.writer.commit(rows).await?,
        }
        (self.held_bytes, self.spilt, self.stand) = (0, false, Some(at));
        Ok(())
    }

    /// What was spilt is left as it is: nothing closes it, for this is how a span ends, and the next epoch goes
    /// over it.
    async fn roll_back(&mut self) -> Result<(), Trouble> {
        (self.held, self.held_bytes) = (Vec::new(), 0);
        Ok(())
    }
}
