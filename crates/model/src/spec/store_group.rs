//! What a store group is: its processes and its backend as they are kept, and as people write them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::file::{CheckFile, MigrateFile, ServiceFile, SpecError, StopFile, UpdateFile, VolumeFile};
use super::file::{cpu_default, format_exact};
use super::{COUNT_MAX, Kind, ServiceSpec, validate};
use crate::{Millis, StoreGroupName, units::format_duration};

/// Beside what its processes are: that is the specification of the service of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreGroupSpec {
    pub backend: BackendSpec,
    /// Which of its ports the backend knows a store by.
    pub port: String,
    /// Where volumes are mounted on every node that may run a store; `None`: each is on one node only.
    pub movable: Option<String>,
    /// Before its data is taken elsewhere, leaders are waited for this long.
    pub max_eviction: Millis,
    /// The label that says which part of the site a node is in; without one every node is a part of its own.
    pub topology: Option<String>,
}

/// The outside system that owns the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendSpec {
    Pd {
        endpoints: Vec<String>,
    },
    /// Beside these addresses, those of the group's own stores are asked.
    RedisCluster {
        endpoints: Vec<String>,
        primaries_min: u32,
    },
    Command {
        command: Vec<String>,
    },
}

impl BackendSpec {
    pub fn kind(&self) -> &'static str {
        match self {
            BackendSpec::Pd { .. } => "pd",
            BackendSpec::RedisCluster { .. } => "redis-cluster",
            BackendSpec::Command { .. } => "command",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreGroupFile {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default = "memory_default")]
    pub memory: String,
    #[serde(default = "cpu_default")]
    pub cpu: i64,
    pub ports: Vec<String>,
    /// Defaults to the first of `ports`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckFile>,
    #[serde(default)]
    pub stop: StopFile,
    pub volume: StoreVolumeFile,
    pub backend: BackendFile,
    #[serde(default = "max_eviction_default")]
    pub max_eviction_time: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    #[serde(default)]
    pub constraints: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreVolumeFile {
    pub name: String,
    #[serde(default)]
    pub movable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendFile {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primaries_min: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
}

type Checked<T> = Result<T, SpecError>;

/// What is applied: the name, how many if it says so, the group and its processes.
type CheckedGroup = (StoreGroupName, Option<u32>, StoreGroupSpec, ServiceSpec);

fn wrong<T>(key: &str, message: impl Into<String>) -> Checked<T> {
    Err(SpecError { key: key.to_owned(), message: message.into() })
}

fn memory_default() -> String {
    "256MiB".to_owned()
}

fn max_eviction_default() -> String {
    "5m".to_owned()
}

impl StoreGroupFile {
    /// The checked specification of the group and of its processes.
    pub fn check(&self) -> Checked<CheckedGroup> {
        let replicas = match self.replicas {
            None => None,
            Some(replicas) => match u32::try_from(replicas) {
                Ok(replicas) if replicas <= COUNT_MAX => Some(replicas),
                Ok(_) | Err(_) => {
                    return wrong("replicas", format!("{replicas} is not between 0 and {COUNT_MAX}"));
                }
            },
        };
        let (_, _, mut process) = self.process().check()?;
        process.kind = Kind::Store;
        let port = match (&self.port, self.ports.first()) {
            (Some(port), _) if self.ports.contains(port) => port.clone(),
            (Some(port), _) => {
                return wrong("port", format!("{port:?} is not among the group's ports {:?}", self.ports));
            }
            (None, Some(first)) => first.clone(),
            (None, None) => return wrong("ports", "is empty: the backend knows a store by its address"),
        };
        let max_eviction = validate::duration("max_eviction_time", &self.max_eviction_time)?;
        if self.topology.as_ref().is_some_and(String::is_empty) {
            return wrong("topology", "a label's name is empty");
        }
        let (backend, topology) = (self.backend.check()?, self.topology.clone());
        let spec = StoreGroupSpec { backend, port, movable: self.volume.check()?, max_eviction, topology };
        Ok((StoreGroupName::new(&self.name), replicas, spec, process))
    }

    /// Its processes, as a service of their own would be written.
    fn process(&self) -> ServiceFile {
        ServiceFile {
            name: self.name.clone(),
            kind: "service".to_owned(),
            count: None,
            command: self.command.clone(),
            env: self.env.clone(),
            memory: self.memory.clone(),
            cpu: self.cpu,
            ports: self.ports.clone(),
            check: self.check.clone(),
            edge: None,
            stop: self.stop.clone(),
            migrate: MigrateFile::default(),
            update: UpdateFile::default(),
            volume: Some(VolumeFile { name: self.volume.name.clone() }),
            disk: Default::default(),
            rerun: true,
            constraints: self.constraints.clone(),
        }
    }

    /// Writes a checked specification out again, with every password hidden.
    pub fn shown(name: &str, replicas: u32, spec: &StoreGroupSpec, process: &ServiceSpec) -> StoreGroupFile {
        let mut file = StoreGroupFile::of(name, replicas, spec, process);
        for endpoint in &mut file.backend.endpoints {
            *endpoint = super::feed::without_password(endpoint);
        }
        file
    }

    /// Writes a checked specification out again.
    pub fn of(name: &str, replicas: u32, spec: &StoreGroupSpec, process: &ServiceSpec) -> StoreGroupFile {
        let volume = process.volume.as_ref().map_or(String::new(), |volume| volume.name.clone());
        StoreGroupFile {
            name: name.to_owned(),
            replicas: Some(i64::from(replicas)),
            command: process.command.clone(),
            env: process.env.clone(),
            memory: format_exact(process.memory),
            cpu: i64::from(process.cpu),
            ports: process.ports.clone(),
            port: Some(spec.port.clone()),
            check: process.check.as_ref().map(CheckFile::of),
            stop: StopFile {
                signal: process.stop.signal.as_str().to_owned(),
                grace: format_duration(process.stop.grace),
            },
            volume: StoreVolumeFile {
                name: volume,
                movable: spec.movable.is_some(),
                path: spec.movable.clone(),
            },
            backend: BackendFile::of(&spec.backend),
            max_eviction_time: format_duration(spec.max_eviction),
            topology: spec.topology.clone(),
            constraints: process.constraints.clone(),
        }
    }
}

impl StoreVolumeFile {
    fn check(&self) -> Checked<Option<String>> {
        match (self.movable, &self.path) {
            (false, None) => Ok(None),
            (false, Some(_)) => wrong("volume.path", "belongs to a volume with `movable = true`"),
            (true, None) => wrong("volume.path", "is missing: where the volume is mounted on every node"),
            (true, Some(path)) if path.starts_with('/') && !path.contains('\0') => Ok(Some(path.clone())),
            (true, Some(path)) => {
                wrong("volume.path", format!("{path:?} is not absolute: it is the same on every node"))
            }
        }
    }
}

impl BackendFile {
    fn check(&self) -> Checked<BackendSpec> {
        let no_command = || match self.command.is_empty() {
            true => Ok(()),
            false => wrong("backend.command", "belongs to a backend of kind \"command\""),
        };
        let primaries_min = self.primaries_min.filter(|_| self.kind != "redis-cluster");
        if primaries_min.is_some() {
            return wrong("backend.primaries_min", "belongs to a backend of kind \"redis-cluster\"");
        }
        match self.kind.as_str() {
            "pd" => {
                no_command()?;
                if self.endpoints.is_empty() {
                    return wrong(
                        "backend.endpoints",
                        "is empty: where PD answers, like \"http://127.0.0.1:2379\"",
                    );
                }
                self.check_endpoints(&["http://", "https://"])?;
                Ok(BackendSpec::Pd { endpoints: self.endpoints.clone() })
            }
            "redis-cluster" => {
                no_command()?;
                self.check_endpoints(&["redis://"])?;
                let primaries_min = match self.primaries_min.map(u32::try_from) {
                    None => 3,
                    Some(Ok(number)) if number > 0 => number,
                    Some(_) => return wrong("backend.primaries_min", "is not a number of primaries"),
                };
                Ok(BackendSpec::RedisCluster { endpoints: self.endpoints.clone(), primaries_min })
            }
            "command" if !self.endpoints.is_empty() => {
                wrong("backend.endpoints", "a backend of kind \"command\" has none")
            }
            "command" => match self.command.first() {
                Some(program) if !program.is_empty() => {
                    Ok(BackendSpec::Command { command: self.command.clone() })
                }
                Some(_) | None => wrong("backend.command", "is empty"),
            },
            other => {
                wrong("backend.kind", format!("{other:?} is not a backend (pd, redis-cluster or command)"))
            }
        }
    }

    fn check_endpoints(&self, schemes: &[&str]) -> Checked<()> {
        let right = |endpoint: &String| {
            let rest = schemes.iter().find_map(|scheme| endpoint.strip_prefix(scheme));
            rest.is_some_and(|rest| !rest.is_empty())
        };
        match self.endpoints.iter().position(|endpoint| !right(endpoint)) {
            None => Ok(()),
            // The value may hold a password: it is not repeated.
            Some(at) => wrong(
                "backend.endpoints",
                format!("number {} does not begin with {}", at + 1, schemes.join(" or ")),
            ),
        }
    }

    fn of(spec: &BackendSpec) -> BackendFile {
        let mut file = BackendFile { kind: spec.kind().to_owned(), ..BackendFile::default() };
        match spec {
            BackendSpec::Pd { endpoints } => file.endpoints = endpoints.clone(),
            BackendSpec::RedisCluster { endpoints, primaries_min } => {
                file.endpoints = endpoints.clone();
                file.primaries_min = Some(i64::from(*primaries_min));
            }
            BackendSpec::Command { command } => file.command = command.clone(),
        }
        file
    }
}
