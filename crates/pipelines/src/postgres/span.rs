//! One span from its start to its stop: take over, copy if need be, then follow the changes.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, pin_mut};
use model::{Checkpoint, Code, SpanEpoch, SpanName};

use super::catalog::{self, Table};
use super::connect::{Session, Side, trouble};
use super::names::{literal, quoted, quoted_table, slot_name};
use super::stream::Stream;
use super::wal::{Fault, Fresh, Wal};
use super::{Source, copy_text, slots};
use crate::change::Shape;
use crate::contract::{Control, Prepared, Trouble};
use crate::sink::{Sink, SpanSink, Stand};

/// Rows and bytes of the first copy that go to the sink in one transaction: enough to make its cost small,
/// little enough to hold in memory for every dispatcher of a node.
const LOAD_ROWS: usize = 20_000;
const LOAD_BYTES: usize = 8 << 20;

/// How often a copy is begun anew because the table was truncated meanwhile.
const COPY_TRIES_MAX: usize = 20;

pub struct Span {
    source: Arc<Source>,
    slot: String,
    table: Table,
    sink: Box<dyn SpanSink>,
    /// Opened ahead of time if there was room for one more sender.
    wal: Option<Wal>,
}

/// How a first copy ended.
enum Copied {
    Whole(Checkpoint),
    Stopped,
}

impl Span {
    pub async fn prepare(source: Arc<Source>, sink: &dyn Sink, span: &SpanName) -> Result<Span, Trouble> {
        let session = source.shared.get().await?;
        let table = catalog::find(&session, &source.publication, span).await?;
        let sink = sink.prepare(span, &table.shape).await?;
        let wal = Wal::connect(&source.endpoint, &super::application(&source.feed)).await.ok();
        Ok(Span { slot: slot_name(&source.feed, span), source, table, sink, wal })
    }

    /// The table as it is since the span was prepared, which may be a while ago.
    async fn refresh(&mut self) -> Result<Arc<Shape>, Trouble> {
        let session = self.source.shared.get().await?;
        self.table = catalog::find(&session, &self.source.publication, &self.table.span()).await?;
        let shape = Arc::new(self.table.shape.clone());
        self.sink.fit(&shape).await?;
        Ok(shape)
    }

    /// Where the slot can go on from, if it can at all.
    async fn resume_at(&mut self, stand: Stand) -> Result<Option<Checkpoint>, Trouble> {
        let Stand::At(at) = stand else { return Ok(None) };
        self.sink.is_ours().await?;
        let session = self.source.shared.get().await?;
        let slot = slots::end_reader(&session, &self.slot).await?;
        Ok(match slot {
            Some(slot) if slot.ours && !slot.lost && slot.confirmed <= at.position => Some(at),
            other => {
                tracing::warn!(slot = self.slot, found = ?other, position = at.position,
                    "the source no longer has what the sink lacks; the span is copied anew");
                None
            }
        })
    }

    /// Copies the table as it was when a slot was made anew.
    async fn copy(&mut self, control: &Control) -> Result<Copied, Trouble> {
        for _ in 0..COPY_TRIES_MAX {
            self.sink.is_ours().await?;
            let shape = self.refresh().await?;
            let session = self.source.shared.get().await?;
            slots::remove(&session, &self.slot).await?;
            let mut wal = self.fresh_wal().await?;
            let (at, _) = slots::moment(&session).await?;
            let before = catalog::storage(&session, &shape).await?;
            let fresh = tokio::select! {
                biased;
                () = control.stop.cancelled() => return Ok(Copied::Stopped),
                fresh = wal.create_slot(&self.slot) => fresh.map_err(|fault| fault.trouble("making the slot"))?,
            };
            let session = self.at_snapshot(&fresh, &shape).await?;
            // The snapshot lives in this session until its next command.
            self.wal = Some(wal);
            // A truncate empties the table under snapshots from before it too, and what happened between the two
            // would be changes to rows that nobody copied.
            if catalog::storage(&session, &shape).await? != before {
                continue;
            }
            self.sink.clear().await?;
            if !self.copy_rows(&session, &shape, control).await? {
                return Ok(Copied::Stopped);
            }
            let at = Checkpoint { position: fresh.position, at };
            self.sink.loaded(at).await?;
            return Ok(Copied::Whole(at));
        }
        let span = self.table.span();
        let message = format!("copying {span}: it was truncated or rewritten each of {COPY_TRIES_MAX} times");
        Err(Trouble::passing(Code::SourceUnreachable, message))
    }

    /// A session that sees the table as it was when the slot was made, and that nobody truncates it under.
    async fn at_snapshot(&mut self, fresh: &Fresh, shape: &Shape) -> Result<Session, Trouble> {
        let session = self.source.endpoint.connect(&super::application(&self.source.feed)).await?;
        let sql = format!(
            "SET idle_in_transaction_session_timeout = 0; \
             BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}; \
             LOCK TABLE {} IN ACCESS SHARE MODE",
            literal(&fresh.snapshot),
            rows_of(&self.table, shape)
        );
        session.run(&format!("copying {}", self.table.span()), &sql).await?;
        Ok(session)
    }

    async fn fresh_wal(&mut self) -> Result<Wal, Trouble> {
        match self.wal.take() {
            Some(wal) => Ok(wal),
            None => Wal::connect(&self.source.endpoint, &super::application(&self.source.feed)).await,
        }
    }

    /// `false`: stopped before the end.
    async fn copy_rows(
        &mut self,
        session: &Session,
        shape: &Shape,
        control: &Control,
    ) -> Result<bool, Trouble> {
        let doing = format!("copying {}", self.table.span());
        let lost = |error: tokio_postgres::Error| trouble(Side::Source, &doing, &error);
        let lines = session.client.copy_out(&copy_sql(&self.table, shape)).await.map_err(lost)?;
        pin_mut!(lines);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            let line: Option<Result<Bytes, _>> = tokio::select! {
                biased;
                () = control.stop.cancelled() => return Ok(false),
                line = lines.next() => line,
            };
            let Some(line) = line else { break };
            let line = line.map_err(lost)?;
            bytes += line.len();
            rows.push(copy_text::read(&line));
            if rows.len() >= LOAD_ROWS || bytes >= LOAD_BYTES {
                bytes = 0;
                self.sink.load(std::mem::take(&mut rows)).await?;
            }
        }
        if !rows.is_empty() {
            self.sink.load(rows).await?;
        }
        Ok(true)
    }

    /// Begins to read. `None`: the slot is not the one that the position belongs to.
    async fn start(&mut self, at: Checkpoint) -> Result<Option<Wal>, Trouble> {
        let doing = "starting to read the slot";
        let mut again = true;
        loop {
            let mut wal = self.fresh_wal().await?;
            let session = self.source.shared.get().await?;
            match wal.start(&self.slot, at.position, &self.source.publication).await {
                // While it is being read nobody can drop it, so this look is the one that counts: a zombie
                // may have made the slot anew since the last one.
                Ok(()) => {
                    let slot = slots::find(&session, &self.slot).await?;
                    let whole = slot.is_some_and(|slot| slot.ours && slot.confirmed <= at.position);
                    return Ok(whole.then_some(wal));
                }
                // A session that was opened ahead of time may have been ended since.
                Err(Fault::Lost(_)) if again => again = false,
                Err(fault) if fault.is("55006") && again => {
                    again = false;
                    self.sink.is_ours().await?;
                    slots::end_reader(&session, &self.slot).await?;
                }
                Err(fault) if fault.is("42704") => return Ok(None),
                Err(fault) => return Err(fault.trouble(doing)),
            }
        }
    }
}

fn copy_sql(table: &Table, shape: &Shape) -> String {
    let columns: Vec<String> = shape.columns.iter().map(|column| quoted(&column.name)).collect();
    let filter = table.filter.as_ref().map(|filter| format!(" WHERE ({filter})")).unwrap_or_default();
    format!("COPY (SELECT {} FROM {}{filter}) TO STDOUT", columns.join(", "), rows_of(table, shape))
}

/// The table without those that inherit from it; a partitioned one with its partitions.
fn rows_of(table: &Table, shape: &Shape) -> String {
    let only = if table.kind == "r" { "ONLY " } else { "" };
    format!("{only}{}", quoted_table(&shape.schema, &shape.table))
}

#[async_trait]
impl Prepared for Span {
    async fn run(
        mut self: Box<Self>,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
        control: Control,
    ) -> Result<Checkpoint, Trouble> {
        let mut stand = self.sink.take_over(epoch).await?;
        loop {
            let at = match self.resume_at(stand).await? {
                Some(at) => at,
                None => match self.copy(&control).await? {
                    Copied::Stopped => return Ok(from.unwrap_or_default()),
                    Copied::Whole(at) => at,
                },
            };
            let shape = self.refresh().await?;
            let Some(wal) = self.start(at).await? else {
                stand = Stand::Empty;
                continue;
            };
            let stream = Stream::new(&self.source, wal, &mut *self.sink, &self.table, shape, at, &control);
            return stream.follow().await;
        }
    }
}
