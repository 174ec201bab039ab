//! The async shell of a node: processes, checks, volumes, pipelines.

pub mod agent;
pub mod cgroup;
pub mod checks;
pub mod host;
pub mod logs;
pub mod ports;
pub mod runtime;
pub mod shim;
pub mod sys;
pub mod volumes;
