//! Tables as a sink of rows that are JSON objects: each is upserted into the table that is named as its span.
//!
//! A column that an object does not name is left alone where the row is there, and has its default where it is
//! not. A name that is no column is refused.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use model::{Checkpoint, Code, FeedName, SpanEpoch, SpanName, Time};
use serde_json::value::RawValue;

use super::connect::Endpoint;
use super::sink::Tables;
use crate::change::{Cell, Change, Shape};
use crate::contract::Trouble;
use crate::rows::{Row, RowSink, SpanWriter};
use crate::sink::{Sink, SpanSink, Stand};

/// Of what a row says, how much is repeated when it is refused.
const SHOWN_CHARS: usize = 80;

pub struct Objects {
    tables: Tables,
}

impl Objects {
    pub fn new(feed: &FeedName, endpoint: Endpoint, application: String) -> Objects {
        Objects { tables: Tables::new(feed.clone(), endpoint, application).with_triggers() }
    }
}

#[async_trait]
impl RowSink for Objects {
    async fn look(&self) -> Result<Option<String>, Trouble> {
        self.tables.check().await
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn SpanWriter>, Trouble> {
        let shape = self.tables.shape_of(span).await?;
        let sink = self.tables.prepare(span, &shape).await?;
        Ok(Box::new(Writer { span: span.clone(), shape, sink, at: Time(0) }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        self.tables.sweep(keep).await
    }
}

struct Writer {
    span: SpanName,
    shape: Shape,
    sink: Box<dyn SpanSink>,
    /// As of the start.
    at: Time,
}

#[async_trait]
impl SpanWriter for Writer {
    async fn begin(
        &mut self,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
    ) -> Result<Option<Checkpoint>, Trouble> {
        match self.sink.take_over(epoch).await? {
            Stand::Empty => Ok(None),
            Stand::At(mut held) => {
                if let Some(from) = from.filter(|from| from.position <= held.position) {
                    held.at = held.at.max(from.at);
                }
                self.at = held.at;
                Ok(Some(held))
            }
        }
    }

    async fn commit(&mut self, rows: Vec<Row>) -> Result<(), Trouble> {
        let Some(reached) = rows.last().map(|row| (row.position, row.more)) else {
            return self.sink.is_ours().await;
        };
        let mut changes = Vec::with_capacity(rows.len());
        for row in &rows {
            let cells = cells(&self.shape, &row.value).map_err(|why| {
                Trouble::lasting(
                    Code::RowRefused,
                    format!("the row of {} that ends at {}: {why}", self.span, row.position),
                )
            })?;
            // Later rows of the same key change what earlier ones left, also within one batch.
            changes.push(Change::Merge { row: cells });
        }
        self.sink.write(changes).await?;
        match reached {
            (position, false) => self.advance(position).await,
            (_, true) => Ok(()),
        }
    }

    async fn advance(&mut self, position: u64) -> Result<(), Trouble> {
        self.sink.commit(Checkpoint { position, at: self.at }).await
    }
}

/// One cell per column of the shape, or why there are none.
fn cells(shape: &Shape, value: &RawValue) -> Result<Vec<Cell>, String> {
    let table = || format!("table {}.{}", shape.schema, shape.table);
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).map_err(|_| {
        let shown: String = value.get().chars().take(SHOWN_CHARS).collect();
        format!("{shown} is no JSON object, and {} takes nothing else", table())
    })?;
    if let Some(name) = object.keys().find(|name| !shape.columns.iter().any(|column| column.name == **name)) {
        return Err(format!("it has {name:?}, and {} has no such column", table()));
    }
    let cell = |column: &crate::change::Column| match object.get(&column.name).map(|value| cell(value)) {
        None | Some(Cell::Null) if column.key => {
            Err(format!("it has no {:?}, which is of the primary key of {}", column.name, table()))
        }
        None => Ok(Cell::Unchanged),
        Some(cell) => Ok(cell),
    };
    shape.columns.iter().map(cell).collect()
}

/// Strings as what they say, everything else as it is written.
fn cell(value: &RawValue) -> Cell {
    let text = value.get();
    match serde_json::from_str::<String>(text) {
        Ok(text) => Cell::Text(Bytes::from(text)),
        Err(_) if text == "null" => Cell::Null,
        Err(_) => Cell::Text(Bytes::copy_from_slice(text.as_bytes())),
    }
}
