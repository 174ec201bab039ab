//! How much one message may hold and one connection may queue.
//!
//! A peer that goes beyond is cut off, so they are far above what a working cluster sends.

use std::time::Duration;

/// Instances that one message speaks of. Several times what a machine can run.
pub const UNITS_MAX: usize = 16_384;
/// A host name's length; node ids default to host names.
pub const NAME_BYTES_MAX: usize = 253;
/// `host:port`, the host in brackets if need be.
pub const ADDRESS_BYTES_MAX: usize = NAME_BYTES_MAX + 8;
/// Words for people: messages, causes. Longer ones are cut when sent. Enough for any error worth
/// reading; logs have their own way out.
pub const TEXT_BYTES_MAX: usize = 1024;
pub const LABELS_MAX: usize = 256;
pub const PORTS_MAX: usize = 32;
/// Ports that an edge says it could not listen on. The rest is left out when sent: an edge that fails
/// at so many has one trouble, not many.
pub const LISTEN_FAILURES_MAX: usize = 1024;
/// Services of one message for an edge.
pub const SETS_MAX: usize = 65_536;
pub const BACKENDS_PER_SET_MAX: usize = model::spec::COUNT_MAX as usize;
/// JSON writes one control character as six, and has keys and quotes of its own.
pub const SPEC_JSON_BYTES_MAX: usize = 8 * model::spec::SPEC_BYTES_MAX;

/// Feeds that one message speaks of.
pub const FEEDS_MAX: usize = 16_384;
/// Spans that one message speaks of: more than a feed may have ([`model::spec::IDLE_SPANS_MAX`]).
pub const SPANS_MAX: usize = 131_072;
const _: () = assert!(SPANS_MAX as i64 >= model::spec::IDLE_SPANS_MAX);
/// A span's name: that of a table with its schema, of a file, or what a command calls it.
pub const SPAN_BYTES_MAX: usize = 512;
/// What the names of a feed's spans may come to: a report of all of them has to fit.
pub const SPANS_BYTES_MAX: usize = 8 << 20;
const _: () = assert!(SPANS_BYTES_MAX + 8 * SPANS_MAX <= UP_BYTES_MAX / 2);
/// Spans that a maintainer's report names as in trouble. The rest is left out when sent.
pub const TROUBLES_MAX: usize = 1024;
/// Tells directories apart.
pub const MARK_BYTES_MAX: usize = 1024;

/// A message from a daemon: a status of every instance, each with a message, fits.
pub const UP_BYTES_MAX: usize = 32 << 20;
/// What a status takes beside its message.
const STATUS_BYTES_MAX: usize = 512;
const _: () = assert!(UNITS_MAX * (STATUS_BYTES_MAX + TEXT_BYTES_MAX) <= UP_BYTES_MAX);
const _: () = assert!(LISTEN_FAILURES_MAX * (TEXT_BYTES_MAX + 16) <= UP_BYTES_MAX);

/// A message to a daemon: full backend sets of a million instances fit, and so do several of the
/// largest specifications there are.
pub const DOWN_BYTES_MAX: usize = 64 << 20;
const _: () = assert!(DOWN_BYTES_MAX >= 4 * SPEC_JSON_BYTES_MAX);

/// Messages that wait for one daemon. A daemon that takes none for so long (a minute and more of
/// heartbeat answers) is disconnected, and told everything anew when it is back: waiting for it would
/// hold the coordinator, queueing on would fill its memory.
pub const OUTBOX_CAPACITY: usize = 256;
/// Messages of a daemon that wait for the network. Beyond it the sender waits.
pub const UP_CAPACITY: usize = 64;
/// Messages that wait for the daemon. Beyond it the coordinator's queue fills.
pub const DOWN_CAPACITY: usize = 64;

/// A message from one node to another: everything that a node runs of the largest feed, some of it in
/// trouble.
pub const PEER_BYTES_MAX: usize = 64 << 20;
/// Messages that wait for one node. What comes beyond is dropped: everything that nodes say to each other
/// is said again, and a slow one must not hold the other's memory.
pub const PEER_CAPACITY: usize = 4096;
/// How long a node that dialled may take for its greeting.
pub const PEER_HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// A node that is gone without a word is noticed this soon, so that another life of it is dialled.
pub const PEER_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
pub const PEER_KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// From dialling to the coordinator's yes or no. Shorter than any `fence_after` worth setting, so that
/// one candidate that swallows packets does not cost a node its lease.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Heartbeats notice a dead peer long before this does; it frees what such a peer leaves behind.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(45);
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a side that hangs up waits for its last words to be taken.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
