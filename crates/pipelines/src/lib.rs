//! What dispatchers do: pipelines from a source to a sink, as tasks of a worker.
//!
//! Owns the reading of sources, the writing of sinks and the fence in them. Which span runs where,
//! with which epoch and from which checkpoint is decided in `protocol`; a pipeline is told.
//!
//! *Invariant:* nothing here starts, stops or moves a span by itself. A row whose span epoch is not
//! the highest that its sink has seen takes no effect.

mod change;
mod change_lines;
pub mod command;
mod contract;
mod copy;
pub mod file;
mod idle;
mod log;
pub mod postgres;
#[cfg(feature = "testing")]
pub mod rates;
pub mod rows;
mod sink;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;

use std::ffi::OsString;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use model::{FeedName, FeedSpec, PipelineSpec, Time, spec};
use tokio::sync::Semaphore;

use command::{CommandPipeline, Limits};

pub use change::{Cell, Change, Column, Row, Shape};
pub use change_lines::ChangeLines;
pub use contract::{Control, Outlook, Pipeline, Prepared, Trouble};
pub use copy::Copy;
pub use idle::Idle;
pub use log::LogSource;

/// What a pipeline has to know of the node that it runs on.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub node: String,
    /// The program that guards commands, with its first arguments: one that calls
    /// [`command::guard::guard_main`] with those that follow.
    pub guard: Vec<OsString>,
}

/// The pipeline of a feed on this node. Nothing is touched before it is asked something.
pub fn open(feed: &FeedName, spec: &FeedSpec, host: &Host) -> Result<Arc<dyn Pipeline>, Trouble> {
    match &spec.pipeline {
        PipelineSpec::Copy { source, sink } => copy_of(feed, source, sink),
        PipelineSpec::Command { command, env } => {
            Ok(Arc::new(CommandPipeline::new(feed, host, command, env, Limits::default())))
        }
        PipelineSpec::Idle { spans } => Ok(Arc::new(Idle::new(*spans))),
    }
}

fn copy_of(feed: &FeedName, source: &spec::Source, sink: &spec::Sink) -> Result<Arc<dyn Pipeline>, Trouble> {
    match (source, sink) {
        (spec::Source::Log { path: from }, spec::Sink::File { path: to }) => {
            let (source, sink) = (LogSource::new(feed, from), file::FileSink::new(feed, to));
            Ok(Arc::new(Copy::new(Arc::new(source), Arc::new(sink))))
        }
        (spec::Source::Postgres { url, publication }, spec::Sink::Postgres { url: to }) => {
            Ok(Arc::from(postgres::open(feed, url, publication, postgres::sink(feed, to)?)?))
        }
        (spec::Source::Postgres { url, publication }, spec::Sink::File { path }) => {
            let sink = ChangeLines::new(Arc::new(file::FileSink::new(feed, path)));
            Ok(Arc::from(postgres::open(feed, url, publication, Arc::new(sink))?))
        }
        (spec::Source::Log { path }, spec::Sink::Postgres { url }) => {
            let source = LogSource::new(feed, path);
            Ok(Arc::new(Copy::new(Arc::new(source), postgres::row_sink(feed, url)?)))
        }
    }
}

/// Runs what blocks where it may, and no more of it at once than `slots` allow. Should the future be
/// dropped, what was begun runs to its end.
pub(crate) async fn blocking<T: Send + 'static>(
    slots: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    // Never closed; should it be, doing the work without a slot is right too.
    let slot = slots.clone().acquire_owned().await;
    let work = move || {
        let _slot = slot;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime goes down and took it off the queue: nobody will ask for the outcome.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Milliseconds since 1970.
pub(crate) fn wall_clock() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Time(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}
pub use sink::{Sink, SpanSink, Stand};
