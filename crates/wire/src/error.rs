//! What can be wrong with a message from outside.

use model::spec::SpecError;
use protocol::TimingError;

/// A message that cannot be taken, and the field that it fails at.
#[derive(Debug, thiserror::Error)]
#[error("cannot take {field}")]
pub struct WireError {
    /// As in `tidegate.proto`, with its message: `status.actual`.
    pub field: &'static str,
    #[source]
    pub fault: Fault,
}

#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("is missing")]
    Missing,
    #[error("{0} is not a value of this enum")]
    UnknownValue(i32),
    #[error("{bytes} bytes are more than {max}")]
    TooLong { bytes: usize, max: usize },
    #[error("{count} entries are more than {max}")]
    TooMany { count: usize, max: usize },
    #[error("{0} is not a port")]
    NotAPort(u32),
    #[error("{0:?} is not a name")]
    NotAName(String),
    #[error("is not an absolute path")]
    NotAPath,
    #[error("there is no specification number {0} in this message")]
    NoSuchSpec(u32),
    #[error("is not a service file")]
    NotAServiceFile(#[source] serde_json::Error),
    #[error("is not a feed file")]
    NotAFeedFile(#[source] serde_json::Error),
    #[error("is not a valid specification")]
    Spec(#[source] SpecError),
    #[error("is not a valid timing")]
    Timing(#[source] TimingError),
}

impl Fault {
    pub(crate) fn at(self, field: &'static str) -> WireError {
        WireError { field, fault: self }
    }
}

/// The error and its causes in one line, as it is logged and sent to the peer.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
