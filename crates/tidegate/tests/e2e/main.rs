//! The real binary, real processes, a real etcd: what a person who tries it relies on.
//!
//! Every test waits for conditions and never for time. Each has ports and directories of its own, and
//! leaves nothing behind: daemons and instances are ended by pid, also when the test fails.

#![allow(clippy::unwrap_used)]

mod api_document;
mod bad_input;
mod chaos;
mod coordinator_kill;
mod crash;
mod daemon_kill;
mod doors_closed;
mod drains;
mod empty_store;
mod feeds;
mod feeds_command;
mod feeds_postgres;
mod fence;
mod first_run;
mod full_disk;
mod harness;
mod idle;
mod leaving;
mod lessons;
mod logs_and_events;
mod memory;
mod node_kill;
mod placing;
mod rollout;
mod scratch_data;
mod services;
mod stores;
mod storm;
mod upgrade;
