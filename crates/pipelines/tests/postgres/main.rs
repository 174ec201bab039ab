//! Feeds from PostgreSQL to PostgreSQL, against a real server.

mod changes;
mod fence;
mod other_sink;
mod preflight;
mod rows;
mod support;
mod trouble;
