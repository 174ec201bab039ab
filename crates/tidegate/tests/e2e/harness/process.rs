//! Processes by pid and start time: what an instance's records say, and the end of all of them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

/// One process within one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    start: u64,
}

impl Process {
    pub fn of(pid: u32) -> Process {
        let pid = i32::try_from(pid).expect("a pid");
        Process { pid, start: start_time(pid).expect("the process is there") }
    }

    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// Does nothing if it is gone: its pid may be another's by now.
    pub fn signal(self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) {
            let _ = kill_process(pid, signal);
        }
    }

    fn kill_group(self) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// In clock ticks since boot; `None` for a process that is gone or dead and not waited for.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

/// The shim and the main process of one run of an instance.
#[derive(Clone, Debug)]
pub struct Run {
    pub instance: String,
    pub shim: Process,
    pub main: Option<Process>,
}

/// What is on record in a node's data directory, alive or not.
pub fn runs(data: &Path) -> Vec<Run> {
    let Ok(entries) = std::fs::read_dir(data.join("instances")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| read(entry.path())).collect()
}

fn read(dir: PathBuf) -> Option<Run> {
    let record = last_line(&dir, "run")?;
    let process = |pid: &str, start: &str| {
        let pid = i32::try_from(record[pid].as_i64()?).ok()?;
        Some(Process { pid, start: record[start].as_u64()? })
    };
    Some(Run {
        instance: record["instance"].as_str()?.to_owned(),
        shim: process("shim_pid", "shim_start")?,
        main: process("child_pid", "child_start"),
    })
}

/// The last that is on record under this word.
fn last_line(dir: &Path, word: &str) -> Option<Value> {
    let text = std::fs::read_to_string(dir.join("run")).ok()?;
    let mut records = text.lines().filter_map(|line| line.split_once(' '));
    serde_json::from_str(records.rfind(|(of, _)| *of == word)?.1).ok()
}

/// Those of which something is alive.
pub fn alive(data: &Path) -> Vec<Run> {
    let lives = |run: &Run| run.shim.is_alive() || run.main.is_some_and(Process::is_alive);
    runs(data).into_iter().filter(lives).collect()
}

/// Every shim and every instance of a node, without asking, and what the kernel keeps for them. To be
/// called when its daemon is dead.
pub fn kill_everything(data: &Path) {
    for _ in 0..100 {
        // A shim that has just been started has no record yet: it is found by its command line.
        let (runs, shims) = (alive(data), shims(data));
        if runs.is_empty() && shims.is_empty() {
            break;
        }
        for run in runs {
            // The shim last: it is what knows how the others ended.
            run.main.inspect(|main| main.kill_group());
            run.shim.signal(Signal::KILL);
        }
        shims.into_iter().for_each(|shim| shim.signal(Signal::KILL));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes the empty cgroups of a node: shims that are killed leave theirs. What is busy stays.
pub fn remove_cgroups(data: &Path) {
    let Ok(entries) = std::fs::read_dir(data.join("instances")) else { return };
    let groups: BTreeSet<PathBuf> = entries.flatten().filter_map(|entry| group(&entry.path())).collect();
    for group in &groups {
        let _ = std::fs::remove_dir(group);
    }
    for node in groups.iter().filter_map(|group| group.parent()).collect::<BTreeSet<_>>() {
        let _ = std::fs::remove_dir(node);
    }
}

fn group(dir: &Path) -> Option<PathBuf> {
    let launch = last_line(dir, "launch")?;
    Some(PathBuf::from(launch["cgroup"]["path"].as_str()?))
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").expect("proc is mounted").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Processes that hold an instance in a directory below `data`, and what forks them.
fn shims(data: &Path) -> Vec<Process> {
    let shim = |pid| {
        let start = start_time(pid)?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
        (matches!(words.nth(1)?, "shim" | "shims") && Path::new(words.next()?).starts_with(data))
            .then_some(Process { pid, start })
    };
    pids().filter_map(shim).collect()
}

/// Every process that carries the mark of an instance whose scratch directory is below `dir`: its pid
/// and the instance's name. Also those that no record mentions.
pub fn marked(dir: &Path) -> Vec<(u32, String)> {
    let instance = |pid: i32| {
        start_time(pid)?;
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let value = |name: &str| {
            let variables = environ.split(|byte| *byte == 0);
            let text = variables.filter_map(|variable| std::str::from_utf8(variable).ok());
            text.filter_map(|text| text.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        value("TIDEGATE_MARK")?;
        let name = value("INSTANCE").unwrap_or_default().to_owned();
        Path::new(value("DISK")?).starts_with(dir).then_some((pid.cast_unsigned(), name))
    };
    pids().filter_map(instance).collect()
}

/// Every process with this directory in its command line.
pub fn that_name(dir: &Path) -> Vec<(i32, String)> {
    let named = |pid: i32| {
        start_time(pid)?;
        let line = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).ok()?).into_owned();
        line.contains(dir.to_str()?).then(|| (pid, line.replace('\0', " ")))
    };
    pids().filter_map(named).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Every living process that this one has started, and those that these have started.
pub fn below(top: Process) -> Vec<Process> {
    let mut all = vec![top];
    let pids: Vec<(i32, i32)> = pids().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut at = 0;
    while at < all.len() {
        let children = pids.iter().filter(|(_, parent)| *parent == all[at].pid);
        let living = children.filter_map(|(pid, _)| Some(Process { pid: *pid, start: start_time(*pid)? }));
        let living: Vec<Process> = living.collect();
        all.extend(living);
        at += 1;
    }
    all.split_off(1)
}
