//! Tables as a sink: rows and checkpoint change in one transaction, under the lock of the checkpoint's row.

mod apply;
mod checkpoint;
mod table;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::{SinkExt, pin_mut};
use model::{Checkpoint, Code, FeedName, SpanEpoch, SpanName};

use self::apply::Statements;
use self::table::Target;
use super::connect::{Endpoint, Session, Shared, Side, Words, trouble};
use super::{copy_text, names};
use crate::change::{Change, Row, Shape};
use crate::contract::Trouble;
use crate::sink::{Sink, SpanSink, Stand};

/// Of a COPY, what travels in one message.
const COPY_BYTES: usize = 256 * 1024;

/// A session for key look-ups alone: a plan made while a table was small must not read it whole later. What
/// is confirmed to the source must be on the disk. What a dead process left open ends by itself.
const WRITER_SETTINGS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
     SET plan_cache_mode = force_generic_plan; SET idle_in_transaction_session_timeout = '60s'; \
     SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

pub struct Tables {
    feed: FeedName,
    endpoint: Endpoint,
    application: String,
    shared: Shared,
    /// The rows come from tables.
    replica: bool,
}

impl Tables {
    pub fn new(feed: FeedName, endpoint: Endpoint, application: String) -> Tables {
        let shared = Shared::new(endpoint.clone(), application.clone());
        Tables { feed, endpoint, application, shared, replica: true }
    }

    /// For rows that nothing has checked before.
    pub fn with_triggers(self) -> Tables {
        Tables { replica: false, ..self }
    }

    /// The table that a span's rows go to, as it is.
    pub async fn shape_of(&self, span: &SpanName) -> Result<Shape, Trouble> {
        table::shape_of(&*self.shared.get().await?, span).await
    }
}

#[async_trait]
impl Sink for Tables {
    async fn check(&self) -> Result<Option<String>, Trouble> {
        let session = self.shared.get().await?;
        checkpoint::ensure(&session).await?;
        Ok(None)
    }

    async fn prepare(&self, span: &SpanName, shape: &Shape) -> Result<Box<dyn SpanSink>, Trouble> {
        let session = self.endpoint.connect(&self.application).await?;
        session.run("setting up the session", WRITER_SETTINGS).await?;
        // Foreign keys and triggers have had their say in a source of tables. It takes a right that not every
        // user has; without it they have it here, too.
        if self.replica {
            let _refused = session.client.batch_execute("SET session_replication_role = replica").await;
        }
        checkpoint::ensure(&session).await?;
        let target = Target::read(&session, &Arc::new(shape.clone())).await?;
        let place = checkpoint::Place { feed: self.feed.clone(), span: span.clone(), epoch: SpanEpoch(0) };
        let statements = Statements::new(target);
        Ok(Box::new(Writer { session, place, statements, open: false }))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        let session = self.shared.get().await?;
        let mut gone = checkpoint::spans(&session, &self.feed).await?;
        gone.retain(|span| !keep.contains(span));
        checkpoint::forget(&session, &self.feed, &gone).await
    }
}

/// One span's session.
struct Writer {
    session: Session,
    place: checkpoint::Place,
    statements: Statements,
    /// A transaction is open, in which our epoch was found to be the highest.
    open: bool,
}

impl Writer {
    async fn begin(&mut self) -> Result<(), Trouble> {
        if !self.open {
            self.session.run("beginning a transaction", "BEGIN").await?;
            self.open = true;
            self.place.lock(&self.session).await?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), Trouble> {
        self.session.run("committing", "COMMIT").await?;
        self.open = false;
        Ok(())
    }

    /// What was begun and went wrong is undone, so that nothing of it stays open while the host thinks.
    async fn undone<T>(&mut self, done: Result<T, Trouble>) -> Result<T, Trouble> {
        if done.is_err() && self.open {
            let _lost_with_it = self.session.client.batch_execute("ROLLBACK").await;
            self.open = false;
        }
        done
    }

    async fn try_clear(&mut self) -> Result<(), Trouble> {
        self.begin().await?;
        let target = &self.statements.target;
        apply::empty(&self.session, target)
            .await
            .map_err(|error| trouble(Side::Sink, &format!("clearing {}", target.name()), &error))?;
        self.place.move_to(&self.session, Stand::Empty).await?;
        self.end().await
    }

    async fn try_load(&mut self, rows: Vec<Row>) -> Result<(), Trouble> {
        self.begin().await?;
        let target = &self.statements.target;
        copy_in(&self.session, target, &rows).await.map_err(|error| {
            let doing = format!("copying into {}", target.name());
            match error.as_db_error().map(Words::from) {
                Some(words) if words.is_about_a_row() => {
                    let column = words.column.clone().or_else(|| apply::column_in(&words));
                    let column = column.map(|column| format!(", column {column}")).unwrap_or_default();
                    Trouble::lasting(Code::RowRefused, format!("table {}{column}: {words}", target.name()))
                }
                Some(_) | None => trouble(Side::Sink, &doing, &error),
            }
        })?;
        self.end().await
    }

    async fn try_move(&mut self, stand: Stand) -> Result<(), Trouble> {
        self.begin().await?;
        self.place.move_to(&self.session, stand).await?;
        self.end().await
    }

    async fn try_write(&mut self, changes: Vec<Change>) -> Result<(), Trouble> {
        self.begin().await?;
        self.statements.apply(&self.session, changes).await
    }
}

async fn copy_in(session: &Session, target: &Target, rows: &[Row]) -> Result<(), tokio_postgres::Error> {
    let columns: Vec<String> =
        target.shape.columns.iter().map(|column| names::quoted(&column.name)).collect();
    let sql = format!("COPY {} ({}) FROM STDIN", target.name(), columns.join(", "));
    let lines = session.client.copy_in(&sql).await?;
    pin_mut!(lines);
    let mut buffer = BytesMut::with_capacity(COPY_BYTES + 4096);
    for row in rows {
        copy_text::write(row, &mut buffer);
        if buffer.len() >= COPY_BYTES {
            lines.feed(buffer.split().freeze()).await?;
        }
    }
    if !buffer.is_empty() {
        lines.feed(buffer.freeze()).await?;
    }
    lines.finish().await?;
    Ok(())
}

#[async_trait]
impl SpanSink for Writer {
    async fn take_over(&mut self, epoch: SpanEpoch) -> Result<Stand, Trouble> {
        self.place.epoch = epoch;
        self.place.take_over(&self.session).await
    }

    async fn fit(&mut self, shape: &Arc<Shape>) -> Result<(), Trouble> {
        if *self.statements.target.shape != **shape {
            self.statements = Statements::new(Target::read(&self.session, shape).await?);
        }
        Ok(())
    }

    async fn is_ours(&mut self) -> Result<(), Trouble> {
        self.place.is_ours(&self.session).await
    }

    async fn clear(&mut self) -> Result<(), Trouble> {
        let done = self.try_clear().await;
        self.undone(done).await
    }

    async fn load(&mut self, rows: Vec<Row>) -> Result<(), Trouble> {
        let done = self.try_load(rows).await;
        self.undone(done).await
    }

    async fn loaded(&mut self, at: Checkpoint) -> Result<(), Trouble> {
        let done = self.try_move(Stand::At(at)).await;
        self.undone(done).await
    }

    async fn write(&mut self, changes: Vec<Change>) -> Result<(), Trouble> {
        let done = self.try_write(changes).await;
        self.undone(done).await
    }

    async fn commit(&mut self, at: Checkpoint) -> Result<(), Trouble> {
        let done = self.try_move(Stand::At(at)).await;
        self.undone(done).await
    }

    async fn roll_back(&mut self) -> Result<(), Trouble> {
        if self.open {
            self.session.run("rolling back", "ROLLBACK").await?;
            self.open = false;
        }
        Ok(())
    }
}
