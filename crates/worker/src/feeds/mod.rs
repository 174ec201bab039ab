//! Feeds on this machine: the tasks of dispatchers ([`host`]) and the streams to other nodes ([`peers`]).
//!
//! What runs, with which epoch and when it stops is decided by [`protocol::node::Node`]; here it is carried
//! out, and what became of it is said.

pub(crate) mod host;
pub(crate) mod peers;

use model::NodeId;
use tokio::sync::mpsc;
use wire::PeerStream;

/// Streams that other nodes have opened to this daemon, with the names that they gave.
pub type Incoming = mpsc::Receiver<(NodeId, PeerStream)>;
