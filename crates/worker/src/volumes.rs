//! Volumes: directories `<data>/volumes/<id>` that outlive the instances that use them.
//!
//! A marker file says whose it is, so that a path that is not mounted, or a disk of another cluster, is not
//! taken for an empty volume: an instance that starts on nothing where its data should be does more harm
//! than one that does not start. After `volume attach` what is there is used and what is missing is said.
//!
//! Scratch directories (`disk`) live in the instance's directory and go with it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sys;

pub const MARKER: &str = ".tidegate-volume";

const MARKER_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    version: u32,
    id: String,
    cluster: String,
}

/// What is found where a volume should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// There is data.
    Present,
    /// The directory is there with nothing in it but our marker.
    Empty,
    Missing,
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume id {0:?} is not a plain name")]
    Name(String),
    #[error("{} belongs to volume {id} of cluster {cluster}", .path.display())]
    Foreign { path: PathBuf, id: String, cluster: String },
    #[error("{}: {why}", .path.display())]
    Marker { path: PathBuf, why: String },
    #[error("volume at {}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io { path, source }
}

/// A volume that is there and ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub path: PathBuf,
    /// It was missing and has just been made: whoever expected data must be told.
    pub created: bool,
}

#[derive(Debug, Clone)]
pub struct Volumes {
    root: PathBuf,
    cluster: String,
}

impl Volumes {
    pub fn new(data_dir: &Path, cluster: &str) -> Self {
        Self { root: data_dir.join("volumes"), cluster: cluster.into() }
    }

    /// Those under a directory that is mounted on several nodes; `None`: the node's own.
    pub fn under(&self, mounted: Option<&str>) -> Self {
        match mounted {
            Some(root) => Self { root: root.into(), cluster: self.cluster.clone() },
            None => self.clone(),
        }
    }

    pub fn path(&self, id: &str) -> Result<PathBuf, VolumeError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let good = (1..=200).contains(&id.len()) && id.chars().all(plain) && !id.starts_with('.');
        if good { Ok(self.root.join(id)) } else { Err(VolumeError::Name(id.into())) }
    }

    /// Makes it if it is missing. What is there without a marker was put there by a person who moved the
    /// volume, and is taken over; what bears another's marker is refused.
    pub fn ensure(&self, id: &str) -> Result<Volume, VolumeError> {
        let path = self.path(id)?;
        let created = !path.is_dir();
        DirBuilder::new().recursive(true).mode(0o755).create(&path).map_err(at(&path))?;
        if !self.is_marked(id, &path)? {
            let marker = Marker { version: MARKER_VERSION, id: id.into(), cluster: self.cluster.clone() };
            let text = serde_json::to_vec_pretty(&marker).map_err(|e| at(&path)(e.into()))?;
            sys::write_atomic(&path.join(MARKER), &text).map_err(at(&path))?;
        }
        Ok(Volume { path, created })
    }

    pub fn inspect(&self, id: &str) -> Result<Presence, VolumeError> {
        let path = self.path(id)?;
        let entries = match fs::read_dir(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Presence::Missing),
            entries => entries.map_err(at(&path))?,
        };
        self.is_marked(id, &path)?;
        for entry in entries {
            let name = entry.map_err(at(&path))?.file_name();
            // Every ext filesystem has a lost+found at its root; it is not data.
            if name != MARKER && name != "lost+found" {
                return Ok(Presence::Present);
            }
        }
        Ok(Presence::Empty)
    }

    /// For movable volumes (a path mounted on several nodes): true when `path` bears this volume's marker.
    /// An error when it bears another's.
    pub fn is_marked(&self, id: &str, path: &Path) -> Result<bool, VolumeError> {
        let file = path.join(MARKER);
        let text = match fs::read(&file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            text => text.map_err(at(&file))?,
        };
        let marker: Marker = serde_json::from_slice(&text)
            .map_err(|e| VolumeError::Marker { path: file.clone(), why: e.to_string() })?;
        if marker.version != MARKER_VERSION {
            let why = format!("version {}, this tidegate knows {MARKER_VERSION}", marker.version);
            return Err(VolumeError::Marker { path: file, why });
        }
        if marker.id != id || marker.cluster != self.cluster {
            return Err(VolumeError::Foreign { path: path.into(), id: marker.id, cluster: marker.cluster });
        }
        Ok(true)
    }

    /// Deletes the data. Only what bears this volume's marker is ever deleted.
    pub fn remove(&self, id: &str) -> Result<(), VolumeError> {
        let path = self.path(id)?;
        if !path.exists() {
            return Ok(());
        }
        if !self.is_marked(id, &path)? {
            return Err(VolumeError::Marker { path, why: "no marker; not deleted".into() });
        }
        // Renamed first: a crash in the middle must not leave a part that looks like a volume.
        let doomed = self.root.join(format!(".deleting-{id}"));
        if doomed.exists() {
            fs::remove_dir_all(&doomed).map_err(at(&doomed))?;
        }
        fs::rename(&path, &doomed).map_err(at(&path))?;
        fs::remove_dir_all(&doomed).map_err(at(&doomed))
    }
}

/// The scratch directory of an instance, made if it is missing.
pub fn scratch(instance_dir: &Path) -> io::Result<PathBuf> {
    let path = instance_dir.join("disk");
    DirBuilder::new().recursive(true).mode(0o755).create(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_missing_then_empty_then_present_and_outlives_its_user() {
        let data = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(data.path(), "c1");
        assert_eq!(volumes.inspect("db-0").unwrap(), Presence::Missing);
        let made = volumes.ensure("db-0").unwrap();
        assert!(made.created);
        assert_eq!(volumes.inspect("db-0").unwrap(), Presence::Empty);
        fs::write(made.path.join("rows"), "1").unwrap();
        let again = Volumes::new(data.path(), "c1").ensure("db-0").unwrap();
        assert_eq!(again, Volume { path: made.path, created: false });
        assert_eq!(volumes.inspect("db-0").unwrap(), Presence::Present);
    }

    #[test]
    fn data_a_person_copied_here_without_a_marker_is_used() {
        let data = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(data.path(), "c1");
        let path = volumes.path("db-0").unwrap();
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("rows"), "1").unwrap();
        assert_eq!(volumes.inspect("db-0").unwrap(), Presence::Present);
        assert!(!volumes.ensure("db-0").unwrap().created);
        assert!(volumes.is_marked("db-0", &path).unwrap());
    }

    #[test]
    fn the_volume_of_another_cluster_is_neither_used_nor_deleted() {
        let data = tempfile::tempdir().unwrap();
        let path = Volumes::new(data.path(), "theirs").ensure("db-0").unwrap().path;
        let ours = Volumes::new(data.path(), "ours");
        assert!(matches!(ours.ensure("db-0"), Err(VolumeError::Foreign { .. })));
        assert!(matches!(ours.inspect("db-0"), Err(VolumeError::Foreign { .. })));
        assert!(ours.remove("db-0").is_err());
        assert!(path.exists());
    }

    #[test]
    fn what_bears_no_marker_is_never_deleted() {
        let data = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(data.path(), "c1");
        let path = volumes.path("home").unwrap();
        fs::create_dir_all(&path).unwrap();
        assert!(volumes.remove("home").is_err());
        volumes.ensure("home").unwrap();
        volumes.remove("home").unwrap();
        assert!(!path.exists());
        volumes.remove("home").unwrap();
    }

    #[test]
    fn ids_cannot_leave_the_directory() {
        let volumes = Volumes::new(Path::new("/data"), "c1");
        for id in ["", "..", "a/b", ".hidden", "../../etc"] {
            assert!(matches!(volumes.path(id), Err(VolumeError::Name(_))), "{id:?}");
        }
    }

    #[test]
    fn a_broken_marker_is_said() {
        let data = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(data.path(), "c1");
        let path = volumes.ensure("v").unwrap().path;
        fs::write(path.join(MARKER), "{").unwrap();
        assert!(matches!(volumes.inspect("v"), Err(VolumeError::Marker { .. })));
    }
}
