//! The configuration file as it is written. Unknown keys are errors; every key has a default.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfigFile {
    pub node: NodeFile,
    pub listen: ListenFile,
    pub join: JoinFile,
    pub store: StoreFile,
    pub timing: TimingFile,
    pub drain: DrainFile,
    pub balance: BalanceFile,
    pub edge: EdgeFile,
    pub scheduler: SchedulerFile,
    pub tls: Option<TlsFile>,
    pub auth: AuthFile,
}

/// All three, or the section is left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsFile {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthFile {
    /// Whether people must show a token, or a certificate, to be answered.
    pub tokens: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeFile {
    /// The machine's host name if absent.
    pub id: Option<String>,
    pub roles: Vec<String>,
    pub data_dir: PathBuf,
    pub labels: BTreeMap<String, String>,
    /// The machine's if absent.
    pub memory: Option<String>,
    pub cpu: Option<i64>,
    pub ports: String,
    /// Where its instances are reached; the host of `listen.api` if absent.
    pub host: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListenFile {
    pub api: String,
    pub rpc: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JoinFile {
    pub coordinators: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreFile {
    pub kind: String,
    pub endpoints: Vec<String>,
    pub prefix: String,
    /// For endpoints at https://: all three.
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimingFile {
    pub heartbeat: String,
    pub lease: String,
    pub degraded_after: String,
    pub fence_after: String,
    pub offline_after: String,
    pub last_node_after: String,
    pub pd_settle: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainFile {
    pub nodes_at_once: i64,
    pub default_deadline: String,
    pub stall_after: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalanceFile {
    pub moves_at_once: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeFile {
    pub withdraw_delay: String,
    /// The address that services' ports are opened on; that of `listen.api` if absent.
    pub host: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct SchedulerFile {
    pub drain_maintainer_batch_size: i64,
    pub dispatcher_moves_per_node: i64,
    pub dispatcher_moves_total: i64,
}

impl Default for NodeFile {
    fn default() -> NodeFile {
        NodeFile {
            id: None,
            roles: ["coordinator", "worker", "edge"].map(str::to_owned).to_vec(),
            data_dir: PathBuf::from("/var/lib/tidegate"),
            labels: BTreeMap::new(),
            memory: None,
            cpu: None,
            ports: "20000-20999".to_owned(),
            host: None,
        }
    }
}

impl Default for ListenFile {
    fn default() -> ListenFile {
        ListenFile { api: "127.0.0.1:7070".to_owned(), rpc: "127.0.0.1:7071".to_owned() }
    }
}

impl Default for StoreFile {
    fn default() -> StoreFile {
        StoreFile {
            kind: "embedded".to_owned(),
            endpoints: Vec::new(),
            prefix: "/tidegate".to_owned(),
            ca: PathBuf::new(),
            cert: PathBuf::new(),
            key: PathBuf::new(),
        }
    }
}

impl Default for TimingFile {
    fn default() -> TimingFile {
        let timing = protocol::Timing::default();
        TimingFile {
            heartbeat: timing.heartbeat.to_string(),
            lease: timing.lease.to_string(),
            degraded_after: timing.degraded_after.to_string(),
            fence_after: timing.fence_after.to_string(),
            offline_after: timing.offline_after.to_string(),
            last_node_after: timing.last_node_after.to_string(),
            pd_settle: server::PD_SETTLE.to_string(),
        }
    }
}

impl Default for DrainFile {
    fn default() -> DrainFile {
        DrainFile { nodes_at_once: 1, default_deadline: "1h".to_owned(), stall_after: "2m".to_owned() }
    }
}

impl Default for BalanceFile {
    fn default() -> BalanceFile {
        BalanceFile { moves_at_once: 2 }
    }
}

impl Default for EdgeFile {
    fn default() -> EdgeFile {
        EdgeFile { withdraw_delay: "5s".to_owned(), host: None }
    }
}

impl Default for SchedulerFile {
    fn default() -> SchedulerFile {
        SchedulerFile {
            drain_maintainer_batch_size: 1,
            dispatcher_moves_per_node: 64,
            dispatcher_moves_total: 1024,
        }
    }
}
