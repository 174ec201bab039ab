//! The messages between the daemon and a feed's command: a line of JSON each. docs/feeds-command.md is the
//! page for those who write one.

use model::{Checkpoint, SpanName, Time};
use serde::{Deserialize, Serialize};

/// The version of the protocol. The command answers with the one it speaks.
pub const VERSION: u32 = 1;

/// A longer line is rubbish: nobody can wait for its end.
pub const LINE_BYTES_MAX: usize = 4 << 20;

/// What the command is told.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Told {
    Hello {
        version: u32,
        feed: String,
        node: String,
    },
    Spans {
        id: u64,
    },
    Prepare {
        id: u64,
        span: SpanName,
    },
    /// A prepared span that will not be started after all.
    Release {
        id: u64,
        span: SpanName,
    },
    Start {
        id: u64,
        span: SpanName,
        epoch: u64,
        from: Option<Progress>,
    },
    Stop {
        id: u64,
        span: SpanName,
        epoch: u64,
    },
    Sweep {
        id: u64,
        keep: Vec<SpanName>,
    },
    Ping {
        id: u64,
    },
}

/// What the command says. Unknown fields are passed over.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Said {
    Hello {
        version: u32,
    },
    /// The answer to everything but `spans` and `stop`.
    Done {
        id: u64,
    },
    /// The answer to `spans`.
    Spans {
        id: u64,
        spans: Vec<String>,
        #[serde(default)]
        held_back: Option<u64>,
        #[serde(default)]
        warnings: Vec<String>,
    },
    /// The answer to `stop`: nothing takes effect any more.
    Stopped {
        id: u64,
        #[serde(default)]
        position: u64,
        #[serde(default)]
        at: u64,
    },
    /// The answer to anything that could not be done.
    Error {
        id: u64,
        message: String,
        #[serde(default)]
        lasting: bool,
        #[serde(default)]
        fenced: bool,
    },
    Checkpoint {
        span: String,
        epoch: u64,
        position: u64,
        at: u64,
    },
    /// A dispatcher cannot go on and has stopped.
    Failed {
        span: String,
        epoch: u64,
        message: String,
        #[serde(default)]
        lasting: bool,
        #[serde(default)]
        fenced: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub position: u64,
    pub at: u64,
}

impl From<Checkpoint> for Progress {
    fn from(checkpoint: Checkpoint) -> Progress {
        Progress { position: checkpoint.position, at: checkpoint.at.0 }
    }
}

pub fn checkpoint(position: u64, at: u64) -> Checkpoint {
    Checkpoint { position, at: Time(at) }
}
