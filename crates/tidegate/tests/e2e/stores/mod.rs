//! Store groups on real backends: processes that the daemons started, a Redis Cluster or a command that owns the data.

mod command;
mod redis_cluster;
