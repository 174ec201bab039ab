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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const PAGE: &str = include_str!("../../../../docs/feeds-command.md");

    /// The messages in the first column of the table under a heading.
    fn messages(heading: &str) -> Vec<&'static str> {
        let section = PAGE.split(heading).nth(1).expect("the page has it");
        let section = section.split("\n##").next().expect("it has an end");
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
    }

    #[test]
    fn every_message_to_a_command_is_on_the_page_as_it_is_sent() {
        let span = || SpanName::new("a");
        let (epoch, from) = (4294967298, Some(Progress { position: 812, at: 1760000000000 }));
        let told = [
            Told::Hello { version: VERSION, feed: "lines".into(), node: "node-1".into() },
            Told::Spans { id: 1 },
            Told::Prepare { id: 2, span: span() },
            Told::Release { id: 3, span: span() },
            Told::Start { id: 4, span: span(), epoch, from },
            Told::Stop { id: 5, span: span(), epoch },
            Told::Sweep { id: 6, keep: vec![span(), SpanName::new("b")] },
            Told::Ping { id: 7 },
        ];
        let sent: Vec<String> =
            told.iter().map(|told| serde_json::to_string(told).expect("a message")).collect();
        assert_eq!(messages("### What the process is told"), sent);
    }

    #[test]
    fn every_message_that_a_command_may_say_is_on_the_page_and_understood() {
        let said = messages("### What it says");
        let words = |message: &&str| -> Option<String> {
            serde_json::from_str::<Said>(message).expect("understood");
            Some(serde_json::from_str::<Value>(message).ok()?["type"].as_str()?.to_owned())
        };
        let types: Vec<String> = said.iter().filter_map(words).collect();
        assert_eq!(types, ["hello", "done", "spans", "stopped", "error", "checkpoint", "failed"]);
    }
}
