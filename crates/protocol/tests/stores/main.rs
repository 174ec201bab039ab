//! Stores by name: what the coordinator does with its nodes and with a backend, one case at a time. The simulator runs
//! the same machine under random faults.

#![allow(clippy::unwrap_used)]

mod backend;
mod bench;
mod crashes;
mod drains;
mod lessons;
#[path = "../office/mod.rs"]
mod office;
mod restarts;
mod scaling;
mod trouble;
