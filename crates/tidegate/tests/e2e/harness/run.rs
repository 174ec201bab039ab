//! The binary as a person runs it, and the service files they would write.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdout, Command},
};

use super::within;

pub const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

fn command(dir: &Path, addr: &str, args: &[&str]) -> Command {
    let mut command = Command::new(TIDEGATE);
    command.args(args).current_dir(dir).env("TIDEGATE_ADDR", addr).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a command to its end.
pub async fn tidegate(dir: &Path, addr: &str, args: &[&str]) -> Done {
    let output = within(&format!("{args:?} to end"), command(dir, addr, args).output()).await;
    let output = output.expect("the binary under test");
    Done {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A command that goes on, read line by line.
pub struct Talk {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Option<ChildStderr>,
    pub heard: Vec<String>,
}

impl Talk {
    pub fn start(dir: &Path, addr: &str, args: &[&str]) -> Talk {
        let mut child = command(dir, addr, args).process_group(0).spawn().expect("the binary under test");
        let stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
        let stderr = child.stderr.take();
        Talk { child, stdout, stderr, heard: Vec::new() }
    }

    /// Reads up to a line that holds `text`, and returns that line.
    pub async fn until(&mut self, text: &str) -> String {
        within(&format!("a line with {text:?}; heard so far: {:?}", self.heard), async {
            while let Some(line) = self.stdout.next_line().await.expect("a pipe") {
                self.heard.push(line.clone());
                if line.contains(text) {
                    return line;
                }
            }
            let mut said = String::new();
            if let Some(mut stderr) = self.stderr.take() {
                let _ = tokio::io::AsyncReadExt::read_to_string(&mut stderr, &mut said).await;
            }
            panic!("ended without a line with {text:?}; said {:?}\n{said}", self.heard)
        })
        .await
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32)).expect("not waited for");
        kill_process(pid, signal).expect("our own child");
    }

    pub async fn ended(&mut self) -> ExitStatus {
        // Whoever writes more than a pipe holds would never end.
        drop(self.stderr.take().map(|mut stderr| {
            tokio::spawn(async move { tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await })
        }));
        within("the command to end", self.child.wait()).await.expect("our own child")
    }
}

/// The demo's web server behind a port of the edge; `more` are further lines.
pub fn web(count: u32, listen: u16, more: &str) -> String {
    format!(
        "[[service]]\nname = \"web\"\ncount = {count}\ncommand = [{TIDEGATE:?}, \"demo\", \"web\", \"--port\", \"${{PORT_HTTP}}\"]\n\
         memory = \"32MiB\"\nports = [\"http\"]\n\
         check = {{ http = \"/ready\", port = \"http\", interval = \"200ms\", timeout = \"2s\" }}\n\
         edge = {{ port = \"http\", listen = {listen} }}\n{more}\n"
    )
}

/// A service that runs a shell script; `more` are further lines.
pub fn with_program(name: &str, script: &str, more: &str) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\ncommand = [\"sh\", \"-c\", '''{script}''']\nmemory = \"32MiB\"\n{more}\n"
    )
}
