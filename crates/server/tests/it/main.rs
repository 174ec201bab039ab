//! The shell as a whole: a daemon's API and streams on loopback, over the store in memory.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

mod api;
mod captures;
mod daemon;
mod doors_closed;
mod drain_errors;
mod drain_metrics;
mod drains;
mod errors;
mod events;
mod flood;
mod forward;
mod node;
mod office;
mod openapi;
mod silent;
mod slow;
