//! A volume as the API shows it.

use model::{Cluster, Volume};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rfc3339;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    pub id: String,
    pub service: String,
    /// The name in the specification.
    pub name: String,
    pub slot: u32,
    /// The node that has the data.
    pub home: String,
    /// The instance that has it, if one is not over.
    pub attached_to: Option<String>,
    /// Data should be there: a missing directory is an error, not a fresh start.
    pub expected: bool,
    pub created_at: String,
}

pub(crate) fn volume_view(cluster: &Cluster, volume: &Volume) -> VolumeView {
    let service = cluster.service_by_name(volume.service.as_str()).map(|entry| &entry.rec);
    let instances = cluster.service_ix(volume.service.as_str()).into_iter();
    let user = instances.flat_map(|ix| cluster.instances_of(ix)).find(|instance| {
        // A release may have given the same place another volume.
        let named = service.and_then(|rec| rec.spec_of(instance.release).volume.as_ref());
        let is_this = named.is_some_and(|named| named.name == volume.name);
        is_this && instance.slot == Some(volume.slot) && !instance.is_over()
    });
    VolumeView {
        id: volume.id.to_string(),
        service: volume.service.to_string(),
        name: volume.name.clone(),
        slot: volume.slot,
        home: volume.home.to_string(),
        attached_to: user.map(|instance| cluster.instance_name(instance)),
        expected: volume.expected,
        created_at: rfc3339(volume.created_at),
    }
}
