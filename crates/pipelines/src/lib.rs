//! What dispatchers do: pipelines from a source to a sink, as tasks of a worker.
//!
//! Owns the reading of sources, the writing of sinks and the fence in them. Which span runs where,
//! with which epoch and from which checkpoint is decided in `protocol`; a pipeline is told.
//!
//! *Invariant:* nothing here starts, stops or moves a span by itself. A row whose span epoch is not
//! the highest that its sink has seen takes no effect.

mod change;
mod contract;
pub mod postgres;
#[cfg(feature = "testing")]
pub mod rates;
mod sink;
#[cfg(feature = "testing")]
pub mod testing;

pub use change::{Cell, Change, Column, Row, Shape};
pub use contract::{Control, Outlook, Pipeline, Prepared, Trouble};
pub use sink::{Sink, SpanSink, Stand};
