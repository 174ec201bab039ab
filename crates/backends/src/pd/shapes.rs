//! What PD's answers look like, as far as it matters here.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// PD tells region sizes in these.
pub const MIB: u64 = 1 << 20;

/// The label by which PD knows a store that leads nothing.
const ENGINE: &str = "engine";
const TIFLASH: &str = "tiflash";

/// Go writes lists and maps that were never made as `null`.
fn null_is_empty<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
pub struct Stores {
    #[serde(deserialize_with = "null_is_empty")]
    pub stores: Vec<Store>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Store {
    pub store: Meta,
    pub status: Status,
}

/// Fields that are zero are left out by PD.
#[derive(Clone, Debug, Deserialize)]
pub struct Meta {
    pub id: u64,
    pub address: String,
    #[serde(default)]
    pub state: u8,
    #[serde(default)]
    pub node_state: u8,
    /// As `state`, or `Disconnected` or `Down`: what PD makes of a store's silence.
    pub state_name: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub labels: Vec<Label>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Label {
    pub key: String,
    pub value: String,
}

/// Sizes are missing before the first heartbeat of a store.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    #[serde(default)]
    pub capacity: Size,
    #[serde(default)]
    pub available: Size,
    #[serde(default)]
    pub used_size: Size,
    #[serde(default)]
    pub leader_count: u64,
    /// In MiB.
    #[serde(default)]
    pub region_size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Up,
    Offline,
    Tombstone,
}

impl Store {
    /// `None` for states that are none of PD's.
    pub fn life(&self) -> Option<Life> {
        match (self.store.state, self.store.node_state) {
            (2, _) | (_, 3) => Some(Life::Tombstone),
            (1, _) | (_, 2) => Some(Life::Offline),
            // 0 is being prepared, which is as good as serving
            (0, 0 | 1) => Some(Life::Up),
            (_, _) => None,
        }
    }

    pub fn is_tiflash(&self) -> bool {
        self.store.labels.iter().any(|label| label.key == ENGINE && label.value == TIFLASH)
    }

    /// Neither going nor silent.
    pub fn is_well(&self) -> bool {
        self.life() == Some(Life::Up) && self.store.state_name.eq_ignore_ascii_case("up")
    }
}

/// `"1.5TiB"`, as PD writes sizes: rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let power = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter().position(|known| *known == unit);
        match (number.parse::<f64>(), power) {
            (Ok(number), Some(power)) => Ok(Size((number * 1024_f64.powi(power as i32)) as u64)),
            (_, _) => Err(format!("{text:?} is no size")),
        }
    }
}

#[derive(Debug, Deserialize)]
pub struct Members {
    pub header: Header,
    pub leader: Option<Leader>,
}

#[derive(Debug, Deserialize)]
pub struct Header {
    pub cluster_id: u64,
}

#[derive(Debug, Deserialize)]
pub struct Leader {
    pub member_id: u64,
}

#[derive(Debug, Deserialize)]
pub struct PdStatus {
    pub start_timestamp: i64,
}

#[derive(Debug, Deserialize)]
pub struct RegionCount {
    pub count: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Replicate {
    pub max_replicas: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Schedule {
    pub low_space_ratio: f64,
    /// What PD runs, by what it has on disk.
    #[serde(rename = "schedulers-v2", default, deserialize_with = "null_is_empty")]
    pub schedulers: Vec<Scheduler>,
}

#[derive(Debug, Deserialize)]
pub struct Scheduler {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub disable: bool,
}

/// The stores that leaders are kept from.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EvictLeader {
    #[serde(deserialize_with = "null_is_empty")]
    pub store_id_ranges: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub struct Progress {
    pub progress: f64,
    /// In MiB a second.
    pub current_speed: f64,
    /// The greatest number there is when nothing moves.
    pub left_seconds: f64,
}

/// Peers a minute.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limit {
    pub add_peer: f64,
    pub remove_peer: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(json: &str) -> Store {
        let text = format!(r#"{{"store":{json},"status":{{"leader_count":0,"region_size":0}}}}"#);
        serde_json::from_str(&text).expect("a store")
    }

    #[test]
    fn sizes_are_understood_as_pd_writes_them() {
        let read = |text: &str| serde_json::from_str::<Size>(&format!("{text:?}")).map(|size| size.0);
        assert_eq!(read("0B").ok(), Some(0));
        assert_eq!(read("31.5KiB").ok(), Some(32_256));
        assert_eq!(read("1.5TiB").ok(), Some(3 << 39));
        for rubbish in ["", "TiB", "5", "5 GB", "1.2.3GiB"] {
            assert!(read(rubbish).is_err(), "{rubbish}");
        }
    }

    #[test]
    fn what_go_never_made_is_empty_and_what_is_missing_is_no_answer() {
        let empty: EvictLeader =
            serde_json::from_str(r#"{"store-id-ranges":null,"batch":3}"#).expect("a list");
        assert!(empty.store_id_ranges.is_empty());
        let none: Stores = serde_json::from_str(r#"{"count":0,"stores":null}"#).expect("a list");
        assert!(none.stores.is_empty());
        assert!(serde_json::from_str::<Stores>("{}").is_err());
    }

    #[test]
    fn a_field_that_is_left_out_is_zero_which_is_up_and_being_prepared() {
        let fresh = store(r#"{"id":1,"address":"a:1","state_name":"Up"}"#);
        assert_eq!(fresh.life(), Some(Life::Up));
        assert!(fresh.is_well());
    }

    #[test]
    fn either_field_tells_a_store_that_goes_or_has_gone() {
        for (state, node_state, life) in [
            (0, 1, Some(Life::Up)),
            (1, 2, Some(Life::Offline)),
            (1, 0, Some(Life::Offline)),
            (2, 3, Some(Life::Tombstone)),
            (2, 0, Some(Life::Tombstone)),
            (7, 0, None),
            (0, 9, None),
        ] {
            let json = format!(
                r#"{{"id":1,"address":"a:1","state":{state},"node_state":{node_state},"state_name":"?"}}"#
            );
            assert_eq!(store(&json).life(), life, "{json}");
        }
    }

    #[test]
    fn a_store_that_is_silent_is_not_well() {
        assert!(!store(r#"{"id":1,"address":"a:1","state_name":"Disconnected","node_state":1}"#).is_well());
        assert!(!store(r#"{"id":1,"address":"a:1","state_name":"Down","node_state":1}"#).is_well());
    }
}
