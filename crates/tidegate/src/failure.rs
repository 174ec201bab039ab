//! How a command ends when it does not end well: one line for people, one code for programs.

use std::io;

/// 1 error, 2 usage, 3 ended otherwise than asked, 4 refused.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// `None`: there is nobody left to tell (the reader of a pipe has gone).
    pub message: Option<String>,
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn error(message: impl Into<String>) -> Failure {
        Failure { code: 1, message: Some(message.into()) }
    }
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { code: 2, message: Some(message.into()) }
    }
    pub fn otherwise(message: impl Into<String>) -> Failure {
        Failure { code: 3, message: Some(message.into()) }
    }
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { code: 4, message: Some(message.into()) }
    }

    /// `| head` has read enough: that is how it should end, not an error.
    pub fn of_output(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure { code: 0, message: None },
            _ => Failure::error(format!("cannot write the output: {error}")),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::error(format!("{error:#}"))
    }
}
