//! Stores under simulation: a backend of its own, beside the cluster, that is slow, fails and restarts.

use protocol::{coordinator::BackendOrder, message::VolumeOrder};

use crate::world::World;

impl World {
    pub fn backend_asked(&mut self, machine: usize, order: BackendOrder) {
        self.say(format!("m{machine} asks a backend: {} {:?}", order.call.name(), order.store));
    }

    pub fn destroyed_volume(&mut self, machine: usize, volume: &VolumeOrder) {
        self.say(format!("m{machine} destroys volume {}", volume.id));
    }
}
