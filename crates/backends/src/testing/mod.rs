//! The real things on loopback, for the tests and benches of any crate.

mod cluster;

pub use cluster::{PATIENCE, RedisNodes, wait_for};
