//! The async shell of a node: processes, checks, volumes, logs, and the agent that connects them to
//! [`protocol::node`].
//!
//! Owns: how an instance is started and kept ([`shim`], [`runtime`], [`cgroup`]), looked after
//! ([`checks`], [`logs`]), given what it needs ([`ports`], [`volumes`]), the tasks of dispatchers and the
//! streams between nodes ([`feeds`]), and the one task that performs what the node decides ([`agent`]).
//!
//! *Invariant:* nothing here decides whether an instance should run. What was found after a restart is
//! told as facts; what to do with it is the node's.

pub mod agent;
pub mod cgroup;
pub mod checks;
pub mod feeds;
pub mod host;
#[cfg(test)]
mod hostile_tests;
pub mod logs;
pub mod ports;
pub mod runtime;
pub mod scratch;
pub mod shim;
pub mod sys;
pub mod volumes;
