//! Store groups on real backends: processes that the daemons started, a Redis Cluster, a PD or a command that owns the data.

mod command;
mod pd;
mod redis_cluster;
