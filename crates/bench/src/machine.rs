//! What the figures were measured on.

use std::{fs, path::Path, process::Command};

use anyhow::Context;

pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: f64,
    pub kernel: String,
    /// Of the directory that daemons and stores write to.
    pub file_system: String,
    pub date: String,
    pub commit: String,
    /// Of the last minute, before anything was measured.
    pub load: f64,
}

impl Machine {
    pub fn look() -> anyhow::Result<Machine> {
        let cpus = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
        let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        Ok(Machine {
            processor: field(&cpus, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: kib.context("MemTotal in /proc/meminfo")? / f64::from(1 << 20),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            file_system: file_system(&std::env::temp_dir())?,
            date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            commit: commit(),
            load: load(),
        })
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// What is mounted nearest above it.
fn file_system(dir: &Path) -> anyhow::Result<String> {
    let mounts = fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let nearest = mounts.filter(|(at, _)| dir.starts_with(at)).max_by_key(|(at, _)| at.len());
    let kind = nearest.map_or("unknown", |(_, kind)| kind);
    Ok(format!("{kind} at {}", dir.display()))
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".to_owned() };
    // What this very command writes does not count.
    let dirty = git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"]);
    match dirty.as_deref() {
        Some("") => commit,
        Some(_) | None => format!("{commit}, with changes that are not committed"),
    }
}

/// What else this machine has to do.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}
