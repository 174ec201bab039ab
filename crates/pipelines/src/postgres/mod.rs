//! PostgreSQL as a source, through logical replication, and as a sink of tables.
//!
//! *Source*: every table of the publication is a span with a slot of its own. A span begins with a copy of
//! its table in the snapshot in which the slot was made; what the slot then gives follows that snapshot.
//!
//! *Sink*: one row per span in `public.tidegate_checkpoint` is fence and authority. Every transaction
//! locks it, compares the epoch, and moves it together with the rows.

mod catalog;
mod connect;
mod copy_text;
#[cfg(test)]
mod hostile_tests;
mod names;
mod objects;
mod pgoutput;
mod sink;
mod slots;
mod span;
mod stream;
mod wal;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::{FeedName, SpanName, Time};
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::connect::{Endpoint, Shared, Side};
pub use self::names::slot_name;
use self::span::Span;
use crate::contract::{Outlook, Pipeline, Prepared, Trouble};
use crate::rows::RowSink;
use crate::sink::Sink;

/// How old the source's clock may be when it is told: all dispatchers of a feed on a node share one look.
const MOMENT_FRESH: Duration = Duration::from_millis(900);

/// A feed from the tables of a publication to any sink of rows.
pub fn open(
    feed: &FeedName,
    url: &str,
    publication: &str,
    sink: Arc<dyn Sink>,
) -> Result<Box<dyn Pipeline>, Trouble> {
    let endpoint = Endpoint::parse(Side::Source, url)?;
    let shared = Shared::new(endpoint.clone(), application(feed));
    let source = Source {
        feed: feed.clone(),
        endpoint,
        publication: publication.to_owned(),
        shared,
        moment: Mutex::new(None),
    };
    Ok(Box::new(PostgresPipeline { source: Arc::new(source), sink }))
}

/// Tables as a sink.
pub fn sink(feed: &FeedName, url: &str) -> Result<Arc<dyn Sink>, Trouble> {
    let endpoint = Endpoint::parse(Side::Sink, url)?;
    Ok(Arc::new(sink::Tables::new(feed.clone(), endpoint, application(feed))))
}

/// Tables as a sink of rows that are JSON objects.
pub fn row_sink(feed: &FeedName, url: &str) -> Result<Arc<dyn RowSink>, Trouble> {
    let endpoint = Endpoint::parse(Side::Sink, url)?;
    Ok(Arc::new(objects::Objects::new(feed, endpoint, application(feed))))
}

/// What a session is called in `pg_stat_activity`.
fn application(feed: &FeedName) -> String {
    format!("tidegate {feed}")
}

/// What all dispatchers of a feed on a node have in common.
struct Source {
    feed: FeedName,
    endpoint: Endpoint,
    publication: String,
    /// For looks at the catalogue and the slots; the rows travel elsewhere.
    shared: Shared,
    moment: Mutex<Option<(Instant, Time, u64)>>,
}

impl Source {
    /// A moment of the source's clock with the end of its log at that moment.
    async fn moment(&self) -> Result<(Time, u64), Trouble> {
        let mut held = self.moment.lock().await;
        match *held {
            Some((read, at, position)) if read.elapsed() < MOMENT_FRESH => Ok((at, position)),
            Some(_) | None => {
                let read = Instant::now();
                let (at, position) = slots::moment(&*self.shared.get().await?).await?;
                *held = Some((read, at, position));
                Ok((at, position))
            }
        }
    }
}

struct PostgresPipeline {
    source: Arc<Source>,
    sink: Arc<dyn Sink>,
}

#[async_trait]
impl Pipeline for PostgresPipeline {
    async fn look(&self) -> Result<Outlook, Trouble> {
        let session = self.source.shared.get().await?;
        let mut outlook = catalog::look(&session, &self.source.feed, &self.source.publication).await?;
        outlook.mark = self.sink.check().await?;
        Ok(outlook)
    }

    async fn prepare(&self, span: &SpanName) -> Result<Box<dyn Prepared>, Trouble> {
        Ok(Box::new(Span::prepare(Arc::clone(&self.source), &*self.sink, span).await?))
    }

    async fn sweep(&self, keep: &[SpanName]) -> Result<(), Trouble> {
        let session = self.source.shared.get().await?;
        slots::sweep(&session, &self.source.feed, keep).await?;
        self.sink.sweep(keep).await
    }

    fn expect(&self, mark: &str) {
        self.sink.expect(mark);
    }
}
