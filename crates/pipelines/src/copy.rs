//! The pipeline from any source of rows to any sink of rows.

use std::sync::Arc;

use async_trait::async_trait;
use model::{Checkpoint, SpanEpoch, SpanName};

use crate::rows::{RowSink, RowSource, SpanReader, SpanWriter};
use crate::{Control, Outlook, Pipeline, Prepared, Trouble};

pub struct Copy {
    source: Arc<dyn RowSource>,
    sink: Arc<dyn RowSink>,
}

impl Copy {
    pub fn new(source: Arc<dyn RowSource>, sink: Arc<dyn RowSink>) -> Copy {
        Copy { source, sink }
    }
}

/// Between the marks of source and sink. Marks are hexadecimal numbers, or [`NO_MARK`].
const BETWEEN_MARKS: char = '/';
const NO_MARK: &str = "-";

#[async_trait]
impl Pipeline for Copy {
    async fn look(&self) -> Result<Outlook, Trouble> {
        let sink = self.sink.look().await?;
        let mut outlook = self.source.look().await?;
        if outlook.mark.is_some() || sink.is_some() {
            let word = |mark: Option<String>| mark.unwrap_or_else(|| NO_MARK.to_owned());
            outlook.mark = Some(format!("{}{BETWEEN_MARKS}{}", word(outlook.mark.take()), word(sink)));
        }
        Ok(outlook)
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn Prepared>, Trouble> {
        let writer = self.sink.prepare(span).await?;
        let reader = self.source.prepare(span).await?;
        Ok(Box::new(Ready { reader, writer }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        self.source.sweep(keep).await?;
        self.sink.sweep(keep).await
    }

    fn expect(&self, mark: &str) {
        let Some((source, sink)) = mark.split_once(BETWEEN_MARKS) else { return };
        if source != NO_MARK {
            self.source.expect(source);
        }
        if sink != NO_MARK {
            self.sink.expect(sink);
        }
    }
}

struct Ready {
    reader: Box<dyn SpanReader>,
    writer: Box<dyn SpanWriter>,
}

#[async_trait]
impl Prepared for Ready {
    async fn run(
        mut self: Box<Self>,
        epoch: SpanEpoch,
        from: Option<Checkpoint>,
        control: Control,
    ) -> Result<Checkpoint, Trouble> {
        let mut done = self.writer.begin(epoch, from).await?.unwrap_or_default();
        // What was known of the time holds if the sink has what was known to be in it.
        if let Some(from) = from.filter(|from| from.position <= done.position) {
            done.at = done.at.max(from.at);
        }
        tell(&control, done);
        self.reader.seek(done).await?;
        loop {
            // A batch that was read is committed before anything else is looked at: a stop finds nothing in
            // flight.
            let batch = tokio::select! {
                biased;
                () = control.stop.cancelled() => return Ok(done),
                batch = self.reader.next() => batch?,
            };
            let reached = Checkpoint {
                position: batch.rows.iter().rev().find(|row| !row.more).map_or(0, |row| row.position),
                at: batch.at.unwrap_or_default(),
            };
            self.writer.commit(batch.rows).await?;
            done.raise(reached);
            tell(&control, done);
            self.reader.committed(done).await?;
        }
    }
}

/// Only ever raises.
pub(crate) fn tell(control: &Control, done: Checkpoint) {
    control.progress.send_if_modified(|told| {
        let before = *told;
        told.get_or_insert_default().raise(done);
        *told != before
    });
}
