//! What strangers can make a daemon hold, and for how long: every limit of its doors, in one place.
//!
//! How large one message between daemons may be, and how much waits for a slow one: `wire::limits`, which
//! speaks in units of the protocol.

use std::time::Duration;

/// Open connections to the API of one daemon. Each costs two descriptors and some 20 KiB; a daemon raises
/// its descriptors to the hard limit.
pub const API_CONNECTIONS_MAX: usize = 16_384;
/// Of these, from one address: one machine gone wild leaves room for the others.
pub const API_CONNECTIONS_PER_HOST_MAX: usize = 12_288;
const _: () = assert!(API_CONNECTIONS_PER_HOST_MAX < API_CONNECTIONS_MAX);

/// Open connections of other daemons: one per node to the coordinator, one per pair for feeds. Not limited
/// by address, since daemons may share one.
pub const RPC_CONNECTIONS_MAX: usize = 32_768;
/// Streams on one such connection. A daemon opens one.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 8;

/// From a connection's first byte to the end of its handshake.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes under way at a time: they are what costs a processor most.
pub const HANDSHAKES_MAX: usize = 1024;

/// For all headers of a request, counted from when the connection is idle: an idle one is closed after it.
pub const HEADER_MAX: Duration = Duration::from_secs(30);
/// A client of ours lets go of an idle connection before the other side does, so that no request meets a
/// connection that is being closed.
pub const IDLE_MAX: Duration = Duration::from_secs(15);
const _: () = assert!(IDLE_MAX.as_secs() < HEADER_MAX.as_secs());
/// A request's headers in all, and their number.
pub const HEADER_BYTES_MAX: usize = 64 << 10;
pub const HEADERS_MAX: usize = 64;
/// A request's body. Several of the largest specifications fit.
pub const BODY_BYTES_MAX: usize = 8 << 20;
const _: () = assert!(BODY_BYTES_MAX >= 4 * model::spec::SPEC_BYTES_MAX);

/// What is read of the body of a request that was refused, and for how long, so that whoever is still sending it hears
/// the answer: a connection that is closed before takes the answer along.
pub const REFUSED_BODY_BYTES_MAX: usize = 64 << 10;
pub const REFUSED_BODY_MAX: Duration = Duration::from_secs(5);

/// Messages a second that a daemon's stream may bring, for longer. Heartbeats come once a second, and at
/// once when something happened; beyond it the stream is read more slowly, which holds up that daemon alone.
pub const STREAM_MESSAGES_PER_SECOND: u32 = 200;
/// What it may bring at once after a quiet time: every instance of a full node may have changed.
pub const STREAM_BURST: u32 = 2_000;

/// Letters of a token's name, and of a person's or a node's in a certificate.
pub const NAME_BYTES_MAX: usize = 63;
/// Bytes of a token as it is sent. Longer ones are not looked at.
pub const TOKEN_BYTES_MAX: usize = 128;

/// How often certificates' files are looked at.
pub const CERTIFICATE_LOOK: Duration = Duration::from_secs(10);
/// A certificate with less to live is said in the log, once a day.
pub const CERTIFICATE_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);
