//! The service file's shape for the OpenAPI document. The file itself is `model`'s, which knows nothing
//! of OpenAPI; a test holds the two together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Several services, feeds and store groups at once; all are taken, or none.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = SpecFile)]
pub struct SpecFileShape {
    #[schema(required = false)]
    pub service: Vec<ServiceShape>,
    #[schema(required = false)]
    pub feed: Vec<FeedShape>,
    #[schema(required = false)]
    pub store_group: Vec<StoreGroupShape>,
}

/// A store group as it is applied.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = StoreGroupFile)]
pub struct StoreGroupShape {
    pub name: String,
    /// Left out: as it is, 1 for a new group.
    pub replicas: Option<i64>,
    pub command: Vec<String>,
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    #[schema(required = false, default = "256MiB")]
    pub memory: String,
    /// Thousandths of a core.
    #[schema(required = false, default = 100)]
    pub cpu: i64,
    /// Allocated by the node, given as `PORT_NAME`.
    pub ports: Vec<String>,
    /// By which of them the backend knows a store; the first if left out.
    pub port: Option<String>,
    pub check: Option<CheckShape>,
    #[schema(required = false)]
    pub stop: StopShape,
    pub volume: StoreVolumeShape,
    pub backend: BackendShape,
    /// Leaders are waited for this long before data is moved.
    #[schema(required = false, default = "5m")]
    pub max_eviction_time: String,
    /// The label that says which part of the site a node is in.
    pub topology: Option<String>,
    /// Labels that a node must have.
    #[schema(required = false)]
    pub constraints: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = StoreVolume)]
pub struct StoreVolumeShape {
    pub name: String,
    #[schema(required = false, default = false)]
    pub movable: bool,
    /// Mounted on every node that may run a store; with `movable`.
    pub path: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = StoreBackend)]
pub struct BackendShape {
    /// `pd`, `redis-cluster`, `command`.
    pub kind: String,
    #[schema(required = false)]
    pub endpoints: Vec<String>,
    pub primaries_min: Option<i64>,
    #[schema(required = false)]
    pub command: Vec<String>,
}

/// A feed as it is applied.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = FeedFile)]
pub struct FeedShape {
    pub name: String,
    /// `copy` (from source to sink), `command`, `idle`.
    #[schema(required = false, default = "copy")]
    pub kind: String,
    pub source: Option<FeedSourceShape>,
    pub sink: Option<FeedSinkShape>,
    pub command: Option<Vec<String>>,
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    pub spans: Option<i64>,
    /// Labels that a node must have.
    #[schema(required = false)]
    pub constraints: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = FeedSource)]
pub struct FeedSourceShape {
    /// `postgres` or `log`.
    pub kind: String,
    pub url: Option<String>,
    pub publication: Option<String>,
    /// A directory that every node has.
    pub path: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = FeedSink)]
pub struct FeedSinkShape {
    /// `postgres` or `file`.
    pub kind: String,
    pub url: Option<String>,
    /// A directory that every node has.
    pub path: Option<String>,
}

/// A service as it is applied. Sizes are written like `64MiB`, durations like `500ms`.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = ServiceFile)]
pub struct ServiceShape {
    pub name: String,
    /// `service`, `batch`, `system`.
    #[schema(required = false, default = "service")]
    pub kind: String,
    /// Left out: as it is, 1 for a new service.
    pub count: Option<i64>,
    pub command: Vec<String>,
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    #[schema(example = "64MiB")]
    pub memory: String,
    /// Thousandths of a core.
    #[schema(required = false, default = 100)]
    pub cpu: i64,
    /// Allocated by the node, given as `PORT_NAME`.
    #[schema(required = false)]
    pub ports: Vec<String>,
    pub check: Option<CheckShape>,
    pub edge: Option<EdgeShape>,
    #[schema(required = false)]
    pub stop: StopShape,
    #[schema(required = false)]
    pub migrate: MigrateShape,
    #[schema(required = false)]
    pub update: UpdateShape,
    pub volume: Option<VolumeShape>,
    #[schema(required = false)]
    pub disk: DiskShape,
    #[schema(required = false, default = true)]
    pub rerun: bool,
    /// Labels that a node must have.
    #[schema(required = false)]
    pub constraints: BTreeMap<String, String>,
}

/// One of `http` (with `port`), `tcp`, `command`.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Check)]
pub struct CheckShape {
    pub http: Option<String>,
    pub port: Option<String>,
    pub tcp: Option<String>,
    pub command: Option<Vec<String>>,
    #[schema(required = false, default = "500ms")]
    pub interval: String,
    #[schema(required = false, default = "1s")]
    pub timeout: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = EdgePort)]
pub struct EdgeShape {
    pub port: String,
    pub listen: i64,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Stop)]
pub struct StopShape {
    #[schema(required = false, default = "SIGTERM")]
    pub signal: String,
    #[schema(required = false, default = "10s")]
    pub grace: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Migrate)]
pub struct MigrateShape {
    #[schema(required = false, default = 1)]
    pub max_parallel: i64,
    #[schema(required = false, default = "10s")]
    pub min_healthy_time: String,
    #[schema(required = false, default = "5m")]
    pub healthy_deadline: String,
    #[schema(required = false, default = true)]
    pub surge: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Update)]
pub struct UpdateShape {
    #[schema(required = false, default = 1)]
    pub max_parallel: i64,
    #[schema(required = false, default = "5m")]
    pub healthy_deadline: String,
    #[schema(required = false, default = true)]
    pub surge: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = VolumeName)]
pub struct VolumeShape {
    pub name: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Disk)]
pub struct DiskShape {
    #[schema(required = false, default = false)]
    pub migrate: bool,
}
