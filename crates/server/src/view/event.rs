//! An event as the API shows it.

use std::collections::BTreeMap;

use model::Event;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rfc3339;

/// The data of one server-sent event; its `event:` is the kind, its `id:` the number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Rises always, over coordinators too.
    pub number: u64,
    /// `node.health_changed`, `instance.allocated`, ….
    pub kind: String,
    pub at: String,
    pub unit: String,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

/// The data of an event `reset`: events between the one asked for and the next one are gone. Read the
/// state anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResetView {
    /// The number asked for.
    pub asked: u64,
    /// What follows comes after this number.
    pub resume: u64,
}

impl EventView {
    pub(crate) fn new(number: u64, event: &Event) -> EventView {
        let fields = event.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        EventView {
            number,
            kind: event.kind.as_str().to_owned(),
            at: rfc3339(event.at),
            unit: event.unit.clone(),
            message: event.message.clone(),
            fields: fields.collect(),
        }
    }
}
