//! The service file: the shape that people write in TOML and programs send as JSON.
//!
//! Unknown keys are errors here, wrong values in `validate`. The same shape is what `GET` returns and
//! what nodes are sent, so it is written out with nothing left to defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FeedFile, Kind, Probe, ServiceSpec, StoreGroupFile};
use crate::units::{format_bytes, format_duration};

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecFile {
    #[serde(default)]
    pub service: Vec<ServiceFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feed: Vec<FeedFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub store_group: Vec<StoreGroupFile>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceFile {
    pub name: String,
    #[serde(default = "kind_default")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub memory: String,
    #[serde(default = "cpu_default")]
    pub cpu: i64,
    #[serde(default)]
    pub ports: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge: Option<EdgeFile>,
    #[serde(default)]
    pub stop: StopFile,
    #[serde(default)]
    pub migrate: MigrateFile,
    #[serde(default)]
    pub update: UpdateFile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeFile>,
    #[serde(default)]
    pub disk: DiskFile,
    #[serde(default = "yes")]
    pub rerun: bool,
    #[serde(default)]
    pub constraints: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default = "interval_default")]
    pub interval: String,
    #[serde(default = "timeout_default")]
    pub timeout: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeFile {
    pub port: String,
    pub listen: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StopFile {
    pub signal: String,
    pub grace: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MigrateFile {
    pub max_parallel: i64,
    pub min_healthy_time: String,
    pub healthy_deadline: String,
    pub surge: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateFile {
    pub max_parallel: i64,
    pub healthy_deadline: String,
    pub surge: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeFile {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiskFile {
    pub migrate: bool,
}

/// A value that is wrong, and the key it stands at (`check.port`), for the message's "where".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct SpecError {
    pub key: String,
    pub message: String,
}

impl Default for StopFile {
    fn default() -> StopFile {
        StopFile { signal: "SIGTERM".to_owned(), grace: "10s".to_owned() }
    }
}

impl Default for MigrateFile {
    fn default() -> MigrateFile {
        MigrateFile {
            max_parallel: 1,
            min_healthy_time: "10s".to_owned(),
            healthy_deadline: "5m".to_owned(),
            surge: true,
        }
    }
}

impl Default for UpdateFile {
    fn default() -> UpdateFile {
        UpdateFile { max_parallel: 1, healthy_deadline: "5m".to_owned(), surge: true }
    }
}

fn kind_default() -> String {
    "service".to_owned()
}
pub(super) fn cpu_default() -> i64 {
    100
}
fn yes() -> bool {
    true
}
fn interval_default() -> String {
    "500ms".to_owned()
}
fn timeout_default() -> String {
    "1s".to_owned()
}

impl ServiceFile {
    /// Writes a checked specification out again. `count` is left out for system services.
    pub fn of(name: &str, count: u32, spec: &ServiceSpec) -> ServiceFile {
        ServiceFile {
            name: name.to_owned(),
            kind: spec.kind.as_str().to_owned(),
            count: (spec.kind != Kind::System).then_some(i64::from(count)),
            command: spec.command.clone(),
            env: spec.env.clone(),
            memory: format_exact(spec.memory),
            cpu: i64::from(spec.cpu),
            ports: spec.ports.clone(),
            check: spec.check.as_ref().map(CheckFile::of),
            edge: spec
                .edge
                .as_ref()
                .map(|edge| EdgeFile { port: edge.port.clone(), listen: i64::from(edge.listen) }),
            stop: StopFile {
                signal: spec.stop.signal.as_str().to_owned(),
                grace: format_duration(spec.stop.grace),
            },
            migrate: MigrateFile {
                max_parallel: i64::from(spec.migrate.max_parallel),
                min_healthy_time: format_duration(spec.migrate.min_healthy_time),
                healthy_deadline: format_duration(spec.migrate.healthy_deadline),
                surge: spec.migrate.surge,
            },
            update: UpdateFile {
                max_parallel: i64::from(spec.update.max_parallel),
                healthy_deadline: format_duration(spec.update.healthy_deadline),
                surge: spec.update.surge,
            },
            volume: spec.volume.as_ref().map(|volume| VolumeFile { name: volume.name.clone() }),
            disk: DiskFile { migrate: spec.disk.migrate },
            rerun: spec.rerun,
            constraints: spec.constraints.clone(),
        }
    }
}

impl CheckFile {
    pub(super) fn of(check: &super::Check) -> CheckFile {
        let (mut http, mut port, mut tcp, mut command) = (None, None, None, None);
        match &check.probe {
            Probe::Http { path, port: to } => (http, port) = (Some(path.clone()), Some(to.clone())),
            Probe::Tcp { port: to } => tcp = Some(to.clone()),
            Probe::Command(argv) => command = Some(argv.clone()),
        }
        let (interval, timeout) = (format_duration(check.interval), format_duration(check.timeout));
        CheckFile { http, port, tcp, command, interval, timeout }
    }
}

/// Sizes are compared after a round trip, so they are written without rounding.
pub(super) fn format_exact(bytes: u64) -> String {
    let text = format_bytes(bytes);
    match crate::units::parse_bytes(&text) {
        Ok(same) if same == bytes => text,
        Ok(_) | Err(_) => format!("{bytes}B"),
    }
}
