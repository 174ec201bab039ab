//! Control groups: the hard memory cap of an instance, and the sure way to find all of its processes.
//!
//! [`Cgroups`] is what the node has (found once, at start); [`Group`] is the place of one instance. The
//! place is written into the launch record, so that it is found again by a daemon that was started from
//! somewhere else and would itself choose another place.
//!
//! Layout: `<where we may write>/tidegate/<node id>-<hash of data dir>/<instance>`. The shim stays outside:
//! a cap that kills must not kill the one that reports it.
//!
//! Preferred is v2 with the memory controller, then v1. v2 without that controller (hybrid machines
//! without a v1 memory hierarchy) still serves to find processes. What is missing is said in words for the
//! node's status ([`Cgroups::memory_cap`]).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::sys;

/// How long a group may stay busy after its last process died; the kernel needs a moment.
const REMOVE_WITHIN: Duration = Duration::from_secs(2);
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

/// Nested groups an instance may have made itself; deeper ones are not followed.
const NESTING_MAX: usize = 8;

/// Below it are the nodes of this machine.
const TOP: &str = "tidegate";

/// The leaf our own process moves to on v2, where a group with processes cannot hand out controllers.
const DAEMON_LEAF: &str = "daemon";

/// In the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    V2,
    V1,
}

/// What this node can do with cgroups.
#[derive(Debug, Clone)]
pub struct Cgroups {
    base: Option<(Kind, PathBuf)>,
    /// Why memory is not capped.
    no_cap: Option<String>,
}

impl Cgroups {
    /// Looks for a place to put instances and makes it. Never fails: what is not possible is said.
    pub fn detect(node: &str, data_dir: &Path) -> Self {
        Self::detect_among(&[Kind::V2, Kind::V1], node, data_dir)
    }

    /// As [`Cgroups::detect`], for who does not want one of the two.
    pub fn detect_among(kinds: &[Kind], node: &str, data_dir: &Path) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("{}-{:08x}", component(node), hash(data_dir));
        let mut hierarchies = find_hierarchies(&mounts, &own);
        hierarchies.retain(|h| kinds.contains(&h.kind));
        Self::detect_in(&hierarchies, &name)
    }

    fn detect_in(hierarchies: &[Hierarchy], name: &str) -> Self {
        let places = || hierarchies.iter().flat_map(|h| h.places().into_iter().map(|place| (h.kind, place)));
        let mut reasons = Vec::new();
        for (kind, place) in places() {
            let base = match kind {
                Kind::V2 if !has_controller(&place) => Err(io::Error::other("no memory controller")),
                Kind::V2 => open_v2(&place, name, true),
                Kind::V1 => open_v1(&place, name),
            };
            match base {
                Ok(base) => return Self { base: Some((kind, base)), no_cap: None },
                Err(e) => reasons.push(format!("{}: {e}", place.display())),
            }
        }
        if reasons.is_empty() {
            reasons.push("no cgroup hierarchy is mounted".into());
        }
        // Without a cap, but still the sure way to find all processes of an instance.
        let mut bare = places().filter(|(kind, _)| *kind == Kind::V2);
        let base = bare.find_map(|(kind, place)| Some((kind, open_v2(&place, name, false).ok()?)));
        Self { base, no_cap: Some(reasons.join("; ")) }
    }

    /// No groups at all, for tests and for those who say so in the configuration.
    pub fn none(why: impl Into<String>) -> Self {
        Self { base: None, no_cap: Some(why.into()) }
    }

    /// `Err` says in words why a memory limit is not enforced on this node.
    pub fn memory_cap(&self) -> Result<Kind, &str> {
        match (&self.base, &self.no_cap) {
            (_, Some(why)) => Err(why),
            (Some((kind, _)), None) => Ok(*kind),
            (None, None) => Err("no cgroups"),
        }
    }

    /// Where all instances of this node are.
    pub fn base(&self) -> Option<&Path> {
        self.base.as_ref().map(|(_, path)| path.as_path())
    }

    /// The place of an instance; made by its shim.
    pub fn group(&self, instance: &str) -> Option<Group> {
        let (kind, base) = self.base.as_ref()?;
        let memory = self.no_cap.is_none();
        Some(Group { kind: *kind, path: base.join(component(instance)), memory })
    }

    /// Removes groups that hold no process: what shims left that were killed, or a machine that was busy.
    /// To be called once all runs have been adopted: a shim that is just starting has an empty group too.
    /// Returns how many went.
    pub fn remove_empty(&self) -> usize {
        let Some((kind, base)) = &self.base else { return 0 };
        let groups = subdirs(base).into_iter().map(|path| Group { kind: *kind, path, memory: false });
        groups.filter(|g| g.pids().is_empty() && remove_tree(&g.path, 0).is_ok()).count()
    }
}

/// The place of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub kind: Kind,
    pub path: PathBuf,
    /// Whether a memory limit can be set here.
    pub memory: bool,
}

impl Group {
    /// Makes the group, empty and with this limit. What an earlier run left in it is killed.
    pub fn create(&self, memory_limit: Option<u64>) -> io::Result<()> {
        if self.path.is_dir() {
            self.kill_all();
            self.remove()?;
        }
        fs::create_dir_all(&self.path)?;
        if !self.memory {
            return Ok(());
        }
        match self.kind {
            Kind::V1 => self.limit_v1(memory_limit),
            Kind::V2 => self.limit_v2(memory_limit),
        }
    }

    fn limit_v1(&self, limit: Option<u64>) -> io::Result<()> {
        let Some(limit) = limit else { return Ok(()) };
        self.write("memory.limit_in_bytes", &limit.to_string())?;
        // Only there when the kernel accounts swap; without it a capped instance would swap instead of die.
        if self.path.join("memory.memsw.limit_in_bytes").exists() {
            self.write("memory.memsw.limit_in_bytes", &limit.to_string())?;
        }
        Ok(())
    }

    fn limit_v2(&self, limit: Option<u64>) -> io::Result<()> {
        // One process killed means all killed: half an instance is worse than none.
        self.write("memory.oom.group", "1")?;
        let Some(limit) = limit else { return Ok(()) };
        self.write("memory.max", &limit.to_string())?;
        if self.path.join("memory.swap.max").exists() {
            self.write("memory.swap.max", "0")?;
        }
        Ok(())
    }

    /// For the forked child, which writes "0" (itself) to it.
    pub fn open_procs(&self) -> io::Result<OwnedFd> {
        Ok(OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?.into())
    }

    /// How many processes the memory cap has killed here.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.kind {
            Kind::V1 => "memory.oom_control",
            Kind::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.unwrap_or(0)
    }

    /// All live processes in here and in groups made below.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        collect_pids(&self.path, 0, &mut pids);
        pids
    }

    /// Sends SIGKILL to everything in here, once. Who needs certainty repeats it until [`Group::pids`] is
    /// empty: on v1 a process may fork between the listing and the signal.
    pub fn kill_all(&self) {
        if self.kind == Kind::V2 && self.write("cgroup.kill", "1").is_ok() {
            return;
        }
        for pid in self.pids().into_iter().filter_map(sys::pid) {
            // Gone already is what we want.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Removes the group; it must hold no process.
    pub fn remove(&self) -> io::Result<()> {
        let until = Instant::now() + REMOVE_WITHIN;
        loop {
            match remove_tree(&self.path, 0) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(e) if Instant::now() >= until => return Err(e),
                Err(_) => std::thread::sleep(REMOVE_PAUSE),
            }
        }
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        write_control(&self.path.join(file), value)
    }
}

/// Wakes up when a v1 group runs into its cap. v2 needs none: there the kernel kills the whole group.
#[derive(Debug)]
pub struct OomNotice {
    event: File,
    // The kernel keeps the registration as long as the eventfd lives; this must not be closed before it.
    _control: File,
}

impl OomNotice {
    pub fn arm(group: &Group) -> io::Result<Self> {
        let event = sys::eventfd()?;
        let control = File::open(group.path.join("memory.oom_control"))?;
        group.write("cgroup.event_control", &format!("{} {}", event.as_raw_fd(), control.as_raw_fd()))?;
        Ok(Self { event: event.into(), _control: control })
    }

    /// Blocks until the next notice. It comes before the kill, and once more when the group is removed.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut count = [0; 8];
        self.event.read_exact(&mut count)
    }
}

/// One mounted hierarchy and where this process is in it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    kind: Kind,
    mount: PathBuf,
    own: Option<PathBuf>,
}

impl Hierarchy {
    /// Our own group first: what limits us then limits our instances too.
    fn places(&self) -> Vec<PathBuf> {
        let mut places = Vec::new();
        if let Some(own) = &self.own {
            match own.parent() {
                // Where an earlier life moved itself, or the service manager put us (DelegateSubgroup=).
                Some(parent) if own.ends_with(DAEMON_LEAF) => places.push(parent.to_owned()),
                _ => places.push(own.clone()),
            }
        }
        if !places.contains(&self.mount) {
            places.push(self.mount.clone());
        }
        places
    }
}

fn find_hierarchies(mountinfo: &str, own: &str) -> Vec<Hierarchy> {
    let mut own_paths = BTreeMap::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if controllers.is_empty() {
            own_paths.insert(Kind::V2, path);
        } else if controllers.split(',').any(|c| c == "memory") {
            own_paths.insert(Kind::V1, path);
        }
    }
    let mut found = BTreeMap::new();
    for line in mountinfo.lines() {
        let Some((kind, root, mount)) = parse_mount(line) else { continue };
        // Several mounts of one hierarchy are possible (bind mounts); the first one is the usual place.
        if let Entry::Vacant(slot) = found.entry(kind) {
            let below = own_paths.get(&kind).and_then(|path| below_root(path, root));
            let own = below.map(|p| if p.is_empty() { mount.clone() } else { mount.join(p) });
            slot.insert(Hierarchy { kind, mount, own: own.filter(|p| p.is_dir()) });
        }
    }
    found.into_values().collect()
}

/// Our path relative to what is mounted; in a container the mount may show a part of the hierarchy only.
fn below_root<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let rest = if root == "/" { path } else { path.strip_prefix(root)? };
    Some(rest.trim_start_matches('/'))
}

/// Kind, root and mount point of a line of mountinfo, if it is a hierarchy of use to us.
fn parse_mount(line: &str) -> Option<(Kind, &str, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (fstype, options) = (right.next()?, right.nth(1).unwrap_or(""));
    let kind = match fstype {
        "cgroup2" => Kind::V2,
        "cgroup" if options.split(',').any(|o| o == "memory") => Kind::V1,
        _ => return None,
    };
    Some((kind, root, PathBuf::from(mount)))
}

fn open_v1(place: &Path, name: &str) -> io::Result<PathBuf> {
    let base = place.join(TOP).join(name);
    fs::create_dir_all(&base)?;
    // Opening shows whether we may write it; a group of another user can be made but not limited.
    OpenOptions::new().write(true).open(base.join("memory.limit_in_bytes"))?;
    Ok(base)
}

fn open_v2(place: &Path, name: &str, memory: bool) -> io::Result<PathBuf> {
    let base = place.join(TOP).join(name);
    fs::create_dir_all(&base)?;
    if memory {
        delegate(place, &base)?;
    }
    // Processes are moved between groups only by who may write to both.
    OpenOptions::new().write(true).open(base.join("cgroup.procs"))?;
    Ok(base)
}

fn has_controller(place: &Path) -> bool {
    let text = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
    text.split_ascii_whitespace().any(|c| c == "memory")
}

/// Hands the memory controller down to the base.
fn delegate(place: &Path, base: &Path) -> io::Result<()> {
    if let Err(e) = write_control(&place.join("cgroup.subtree_control"), "+memory") {
        if e.raw_os_error() != Some(libc::EBUSY) {
            return Err(e);
        }
        // The group has processes of its own. If it is only us, we step aside into a leaf.
        let leaf = place.join(DAEMON_LEAF);
        fs::create_dir_all(&leaf)?;
        write_control(&leaf.join("cgroup.procs"), "0")?;
        write_control(&place.join("cgroup.subtree_control"), "+memory")?;
    }
    write_control(&place.join(TOP).join("cgroup.subtree_control"), "+memory")?;
    write_control(&base.join("cgroup.subtree_control"), "+memory")
}

fn write_control(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

fn subdirs(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

fn collect_pids(dir: &Path, depth: usize, into: &mut Vec<i32>) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    into.extend(text.lines().filter_map(|line| line.trim().parse::<i32>().ok()));
    if depth < NESTING_MAX {
        subdirs(dir).iter().for_each(|sub| collect_pids(sub, depth + 1, into));
    }
}

/// Groups are removed by rmdir alone: their files are not files.
fn remove_tree(dir: &Path, depth: usize) -> io::Result<()> {
    if depth < NESTING_MAX {
        for sub in subdirs(dir) {
            remove_tree(&sub, depth + 1)?;
        }
    }
    fs::remove_dir(dir)
}

/// A name that is one component of a path whatever it was before.
fn component(name: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let cleaned: String = name.chars().map(|c| if keep(c) { c } else { '_' }).collect();
    if cleaned.trim_matches('.').is_empty() { format!("_{cleaned}") } else { cleaned }
}

/// FNV-1a of the data directory, so that two nodes of one name on one machine do not meet.
fn hash(path: &Path) -> u32 {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let step = |h: u32, b: &u8| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193);
    path.as_os_str().as_encoded_bytes().iter().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_machines_offer_v2_without_memory_and_v1_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |s: &str| dir.path().join(s).display().to_string();
        fs::create_dir_all(dir.path().join("memory/user/me")).unwrap();
        fs::create_dir_all(dir.path().join("unified")).unwrap();
        let mounts = format!(
            "30 25 0:26 / {} rw,relatime - cgroup cgroup rw,cpu\n\
             31 25 0:27 / {} rw,relatime shared:9 - cgroup cgroup rw,memory\n\
             32 25 0:28 / {} rw,relatime - cgroup2 cgroup2 rw\n",
            at("cpu"),
            at("memory"),
            at("unified")
        );
        let found = find_hierarchies(&mounts, "4:memory:/user/me\n1:cpu:/x\n0::/\n");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].kind, found[0].own.clone()), (Kind::V2, Some(dir.path().join("unified"))));
        assert_eq!(
            (found[1].kind, found[1].own.clone()),
            (Kind::V1, Some(dir.path().join("memory/user/me")))
        );
    }

    #[test]
    fn a_mount_that_shows_a_part_of_the_hierarchy_hides_that_part_of_our_path() {
        assert_eq!(below_root("/docker/abc/x", "/docker/abc"), Some("x"));
        assert_eq!(below_root("/docker/abc", "/docker/abc"), Some(""));
        assert_eq!(below_root("/elsewhere", "/docker/abc"), None);
    }

    #[test]
    fn after_a_restart_the_place_is_found_from_the_leaf_the_daemon_moved_to() {
        let h = Hierarchy { kind: Kind::V2, mount: "/c".into(), own: Some("/c/unit/daemon".into()) };
        assert_eq!(h.places(), [PathBuf::from("/c/unit"), PathBuf::from("/c")]);
    }

    #[test]
    fn without_any_hierarchy_the_reason_is_said() {
        let none = Cgroups::detect_in(&[], "n");
        assert_eq!(none.memory_cap(), Err("no cgroup hierarchy is mounted"));
        assert!(none.group("i").is_none());
    }

    #[test]
    fn a_v2_group_gets_its_limit_without_swap_and_dies_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        fs::create_dir(&path).unwrap();
        for file in ["memory.max", "memory.swap.max", "memory.oom.group"] {
            fs::write(path.join(file), "").unwrap();
        }
        let group = Group { kind: Kind::V2, path: path.clone(), memory: true };
        group.limit_v2(Some(1 << 20)).unwrap();
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap();
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("memory.swap.max"), "0");
        assert_eq!(read("memory.oom.group"), "1");
        fs::write(path.join("memory.events"), "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n").unwrap();
        assert_eq!(group.oom_kills(), 2);
    }

    #[test]
    fn instance_ids_stay_one_component() {
        assert_eq!(component("web-1.2_a"), "web-1.2_a");
        assert_eq!(component("../x"), ".._x");
        assert_eq!(component(".."), "_..");
        assert_eq!(component(""), "_");
    }
}
