//! What the commands read of the server's answers.
//!
//! Every field has a default: a newer or older server may send more or less, and half a table at
//! three in the morning is better than none.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

#[derive(Debug, Deserialize)]
pub struct Items<T> {
    pub items: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cluster {
    #[serde(deserialize_with = "lenient_text")]
    pub cluster_id: String,
    #[serde(deserialize_with = "lenient_text")]
    pub coordinator: String,
    pub term: u64,
    pub reasons: Vec<Reason>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub memory: u64,
    pub cpu: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub instances: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub id: String,
    pub roles: Vec<String>,
    pub state: String,
    pub health: String,
    pub coordinator: bool,
    pub process_epoch: u64,
    pub address: String,
    pub labels: BTreeMap<String, String>,
    pub capacity: Resources,
    pub used: Resources,
    pub counts: Counts,
    pub unclaimed: Vec<serde_json::Value>,
    pub reasons: Vec<Reason>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Rollout {
    pub release: u32,
    pub state: String,
    #[serde(deserialize_with = "lenient_text")]
    pub reason: String,
    #[serde(deserialize_with = "lenient_text")]
    pub message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    pub name: String,
    pub kind: String,
    pub count: u32,
    pub ready: u32,
    pub release: u32,
    pub state: String,
    pub reasons: Vec<Reason>,
    pub rollout: Rollout,
    pub spec: serde_json::Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Instance {
    pub id: String,
    pub service: String,
    pub release: u32,
    pub node: String,
    pub desired: String,
    pub actual: String,
    pub pid: Option<u32>,
    pub ports: BTreeMap<String, u16>,
    pub restarts: u32,
    #[serde(deserialize_with = "lenient_text")]
    pub replaces: String,
    pub reasons: Vec<Reason>,
    #[serde(deserialize_with = "lenient_text")]
    pub created_at: String,
    #[serde(deserialize_with = "lenient_text")]
    pub healthy_since: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub service: String,
    pub name: String,
    #[serde(alias = "home", deserialize_with = "lenient_text")]
    pub node: String,
    #[serde(deserialize_with = "lenient_text")]
    pub path: String,
    #[serde(alias = "attached_to", deserialize_with = "lenient_text")]
    pub instance: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Reason {
    pub code: String,
    pub unit: String,
    #[serde(deserialize_with = "lenient_text")]
    pub since: String,
    #[serde(deserialize_with = "lenient_text")]
    pub message: String,
    #[serde(deserialize_with = "lenient_text")]
    pub hint: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Applied {
    pub name: String,
    pub outcome: String,
    pub release: Option<u32>,
    pub from: Option<u32>,
    pub to: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    pub kind: String,
    #[serde(deserialize_with = "lenient_text")]
    pub at: String,
    pub unit: String,
    pub message: String,
}

/// A text, or a number that stands for one; null is empty.
fn lenient_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    })
}
