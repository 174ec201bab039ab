//! The real things on loopback, for the tests and benches of any crate.

mod cluster;
pub mod keys;
mod pd;
mod process;
pub mod tikv;

pub use cluster::RedisNodes;
pub use pd::PdServer;
pub use process::{PATIENCE, wait_for};
