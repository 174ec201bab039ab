//! Who may come in: certificates and what they say, listeners that ask for them, tokens, and the limits of
//! both.
//!
//! Owns: making certificates ([`Authority`]), a daemon's own ([`Keys`], which follow their files), the
//! listeners of all daemons ([`open`]), dialling with a certificate ([`Keys::dial`], [`Http`]), the making
//! and hashing of tokens ([`token`]), and every limit on what strangers can make a daemon hold ([`limits`]).
//!
//! *Invariant:* nothing here knows what is asked through a door, and nothing here is stored.

mod accept;
mod dial;
mod issue;
mod keys;
pub mod limits;
pub mod token;
mod who;

pub use accept::{Callers, Door, Io, Peer, open};
pub use dial::{Http, Trust, http};
pub use issue::{Authority, IssueError, Issued};
pub use keys::{Certificate, KeyFiles, Keys, KeysError};
pub use who::Who;
