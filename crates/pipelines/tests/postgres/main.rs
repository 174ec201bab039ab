//! Feeds from PostgreSQL to PostgreSQL, against a real server.

mod changes;
mod fence;
mod from_logs;
mod other_sink;
mod preflight;
mod rows;
mod support;
mod to_files;
mod trouble;
