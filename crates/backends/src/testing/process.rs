//! Servers that tests start, and waiting for them.
//!
//! Each runs under a small shell that kills it when the [`Running`] is dropped, and also when the test process itself
//! ends without dropping it: the shell's input ends then, too.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// How long a test waits for something that must happen. Generous: machines are slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub const POLL: Duration = Duration::from_millis(20);

/// `$0` is the server's directory, the rest is the command. Prints the pid and waits for a line, or the end of its
/// input; then kills. Without a line nobody is left who removes the directory.
const SUPERVISOR: &str = r#"
"$@" >>"$0/log" 2>&1 </dev/null &
echo $!
read -r keep
kill -9 $!
wait $!
[ -n "$keep" ] || { rm -rf "$0"; rmdir "$(dirname "$0")"; }
"#;

/// Waits until `condition` gives something.
///
/// # Panics
/// When [`PATIENCE`] is over.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut condition: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        sleep(POLL).await;
    }
}

/// A server that is gone when this is dropped.
pub struct Running {
    supervisor: Child,
    pid: Pid,
}

impl Running {
    /// Runs it in the background, with its output in `log` of that directory.
    pub fn start(directory: &Path, argv: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR]).arg(directory).args(argv);
        // out of the terminal's group: an interrupt must reach it through its input only
        let spawned =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut supervisor = spawned.spawn().expect("a shell");
        let mut line = String::new();
        let output = supervisor.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("the shell says the pid");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        Running { supervisor, pid }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it is our process, not yet waited for");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut orders) = self.supervisor.stdin.take() {
            let _gone_already = orders.write_all(b"keep\n");
        }
        let _gone = self.supervisor.wait();
    }
}
