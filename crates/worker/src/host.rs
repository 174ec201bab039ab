//! Facts about the machine this node is on. All read on demand; none cached but the boot id, which cannot
//! change while we live.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

pub use crate::sys::boottime_ms;

/// Changes with every start of the machine: pids and start times of another boot mean nothing.
pub fn boot_id() -> String {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    BOOT_ID.get_or_init(read).clone()
}

/// A random UUID from the kernel.
pub fn random_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// Bytes of memory of the machine, or 0 when unknown.
pub fn memory_total() -> u64 {
    meminfo("MemTotal").unwrap_or(0)
}

/// Processors this process may use.
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

fn meminfo(key: &str) -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Room on the filesystem of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub total: u64,
    /// What we may still write; root's reserve is not counted.
    pub free: u64,
}

impl Disk {
    /// 0.0 empty … 1.0 full.
    pub fn fullness(&self) -> f64 {
        if self.total == 0 { 1.0 } else { 1.0 - self.free as f64 / self.total as f64 }
    }
}

pub fn disk(dir: &Path) -> io::Result<Disk> {
    let stat = rustix::fs::statvfs(dir)?;
    // Blocks in root's reserve are neither free for us nor used: they do not count at all.
    let reserved = stat.f_bfree.saturating_sub(stat.f_bavail);
    let total = stat.f_blocks.saturating_sub(reserved).saturating_mul(stat.f_frsize);
    Ok(Disk { total, free: stat.f_bavail.saturating_mul(stat.f_frsize) })
}

/// How short of memory the machine is, and by what measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryPressure {
    /// Share of the last ten seconds in which some task waited for memory, 0.0 … 1.0 (PSI).
    Stalled(f64),
    /// Kernels without PSI: share of memory still available, 0.0 … 1.0.
    Available(f64),
    Unknown,
}

impl MemoryPressure {
    /// Waiting for memory this much of the time, a node is of no use to what would be placed on it.
    const STALLED_HIGH: f64 = 0.20;
    /// Below this the kernel is about to kill.
    const AVAILABLE_LOW: f64 = 0.05;

    pub fn is_high(self) -> bool {
        match self {
            Self::Stalled(share) => share >= Self::STALLED_HIGH,
            Self::Available(share) => share <= Self::AVAILABLE_LOW,
            Self::Unknown => false,
        }
    }
}

pub fn memory_pressure() -> MemoryPressure {
    if let Some(share) = fs::read_to_string("/proc/pressure/memory").ok().and_then(|t| parse_psi(&t)) {
        return MemoryPressure::Stalled(share);
    }
    match (meminfo("MemAvailable"), meminfo("MemTotal")) {
        (Some(available), Some(total)) if total > 0 => {
            MemoryPressure::Available(available as f64 / total as f64)
        }
        _ => MemoryPressure::Unknown,
    }
}

fn parse_psi(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let average = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    Some(average.parse::<f64>().ok()? / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_processors_a_boot_and_a_disk() {
        assert!(memory_total() > 1 << 20);
        assert!(cpu_count() >= 1);
        assert_eq!(boot_id().len(), 36);
        assert!(boottime_ms() > 0);
        let disk = disk(Path::new("/tmp")).unwrap();
        assert!(disk.total >= disk.free && (0.0..=1.0).contains(&disk.fullness()));
        assert_ne!(memory_pressure(), MemoryPressure::Unknown);
    }

    #[test]
    fn pressure_is_the_share_of_time_some_task_waited() {
        let text = "some avg10=25.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=9.00 avg60=0.00 total=3\n";
        assert_eq!(parse_psi(text), Some(0.255));
        assert!(MemoryPressure::Stalled(0.255).is_high());
        assert!(!MemoryPressure::Available(0.5).is_high());
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(parse_meminfo("MemTotal:  16 kB\nMemAvailable:   4 kB\n", "MemAvailable"), Some(4096));
        assert_eq!(parse_meminfo("MemTotalX:  16 kB\n", "MemTotal"), None);
    }
}
