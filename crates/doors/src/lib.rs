//! Who may come in: certificates and what they say, listeners that ask for them, tokens, and the limits of
//! both.
//!
//! Owns: making and revoking certificates ([`Authority`]), a daemon's own ([`Keys`], which follow their files), the
//! listeners of all daemons ([`open`]), dialling with a certificate ([`Keys::dial`], [`Http`]), the making
//! and hashing of tokens ([`token`]), and every limit on what strangers can make a daemon hold ([`limits`]).
//!
//! *Invariant:* nothing here knows what is asked through a door, and nothing here is stored.

#![forbid(unsafe_code)]

mod accept;
mod dial;
#[cfg(test)]
mod hostile_tests;
mod issue;
mod keys;
pub mod limits;
mod revoked;
pub mod token;
mod watched;
mod who;

pub use accept::{Callers, Door, Io, Peer, open};
pub use dial::{Http, Trust, http};
pub use issue::{Authority, IssueError, Issued};
pub use keys::{Certificate, KeyFiles, Keys, KeysError};
pub use who::Who;
