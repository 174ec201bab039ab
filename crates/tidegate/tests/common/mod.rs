//! Runs the binary.

#![allow(dead_code, clippy::unwrap_used)]

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Nobody listens there: port 1 is a system port that nothing uses any more.
pub const NOBODY: &str = "http://127.0.0.1:1";

pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    pub fn write(&self, name: &str, text: &[u8]) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }
}

pub fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).current_dir(dir).env_clear().env("TIDEGATE_ADDR", NOBODY);
    command
}

pub fn tidegate(dir: &Path, args: &[&str]) -> Done {
    tidegate_with_input(dir, args, b"")
}

pub fn tidegate_with_input(dir: &Path, args: &[&str], input: &[u8]) -> Done {
    let mut command = command(dir, args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
