//! What nodes are told: one order per instance with a revision, sent when it changes, in full on every
//! new connection, and again until it is acknowledged.

use std::sync::Arc;

use model::{Desired, Instance, InstanceId, Kind, Millis, NodeIx, ServiceSpec, Time, VolumeId};

use super::{Coordinator, timers::Timer};
use crate::message::{DiskFrom, DownBody, Order, Run, VolumeOrder, What};

/// An order that was not acknowledged is sent again after this.
const RESEND_AFTER: Millis = Millis::secs(2);
/// Orders in one message: bounds its size.
const ORDERS_PER_MESSAGE_MAX: usize = 256;
/// Above every revision: nothing comes after it.
const FORGET: u32 = u32::MAX;

impl Coordinator {
    /// Sends the orders of instances whose records changed.
    pub(super) fn send_touched(&mut self, now: Time) {
        let mut by_node: std::collections::BTreeMap<NodeIx, Vec<InstanceId>> = Default::default();
        for id in std::mem::take(&mut self.touched) {
            let Some(instance) = self.cluster.instance(id) else { continue };
            let Some(session) = self.sessions.get(&instance.node) else { continue };
            if !instance.is_over() && session.told(id) < Some(instance.order) {
                by_node.entry(instance.node).or_default().push(id);
            }
        }
        for (node, ids) in by_node {
            self.send_orders(node, &ids, now);
        }
    }

    /// Everything a node should know, on a new connection.
    pub(super) fn send_all_orders(&mut self, node: NodeIx, now: Time) {
        let ids: Vec<InstanceId> =
            self.cluster.instances_on(node).filter(|instance| !instance.is_over()).map(|i| i.id).collect();
        self.send_orders(node, &ids, now);
    }

    pub(super) fn order_forget(&mut self, node: NodeIx, id: InstanceId, now: Time) {
        let told = self.sessions.get(&node).and_then(|session| session.told(id));
        if told != Some(FORGET) {
            self.send_order_list(
                node,
                vec![Order { instance: id, revision: FORGET, what: self.last_order(id) }],
                now,
            );
        }
    }

    /// What is left of it may go, with its volume if its store is no more.
    fn last_order(&self, id: InstanceId) -> What {
        let volume = self.cluster.instance(id).and_then(|instance| self.doomed_volume(instance));
        volume.map_or(What::Forget, What::Destroy)
    }

    fn doomed_volume(&self, instance: &Instance) -> Option<VolumeOrder> {
        let store = self.cluster.store_of(instance)?;
        let doomed = planner::stores::to_destroy(&self.cluster, store.group.as_str());
        doomed.iter().any(|(id, _)| *id == instance.id).then(|| self.run(instance).volume)?
    }

    pub(super) fn resend_orders(&mut self, node: NodeIx, now: Time) {
        let Some(session) = self.sessions.get(&node) else { return };
        let due = session.unacknowledged(now - RESEND_AFTER);
        let (forget, others): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|id| session.told(*id) == Some(FORGET));
        let forget = forget.into_iter().filter(|id| self.cluster.instance(*id).is_some());
        let forget = forget
            .map(|instance| Order { instance, revision: FORGET, what: self.last_order(instance) })
            .collect();
        self.send_order_list(node, forget, now);
        self.send_orders(node, &others, now);
        self.arm_resend(node, now);
    }

    fn send_orders(&mut self, node: NodeIx, ids: &[InstanceId], now: Time) {
        let instances = ids.iter().filter_map(|id| self.cluster.instance(*id));
        let orders = instances.filter(|i| !i.is_over()).map(|instance| self.order(instance)).collect();
        self.send_order_list(node, orders, now);
    }

    fn send_order_list(&mut self, node: NodeIx, orders: Vec<Order>, now: Time) {
        if orders.is_empty() || self.cluster.node(node).rec.foreign {
            return;
        }
        let Some(session) = self.sessions.get_mut(&node) else { return };
        for order in &orders {
            session.tell(order.instance, order.revision, now);
        }
        for part in orders.chunks(ORDERS_PER_MESSAGE_MAX) {
            self.send(node, DownBody::Orders(part.to_vec()));
        }
        self.arm_resend(node, now);
    }

    fn arm_resend(&mut self, node: NodeIx, now: Time) {
        let waiting =
            self.sessions.get(&node).is_some_and(|session| session.is_open() && session.waits_for_acks());
        if waiting && !self.timers.is_set(Timer::Resend(node)) {
            self.timers.set(Timer::Resend(node), now + RESEND_AFTER);
        }
    }

    fn order(&self, instance: &Instance) -> Order {
        let what = match instance.desired {
            Desired::Running => What::Run(Arc::new(self.run(instance))),
            Desired::Draining => What::Drain,
            Desired::Stopped => What::Stop,
        };
        Order { instance: instance.id, revision: instance.order, what }
    }

    fn run(&self, instance: &Instance) -> Run {
        // An instance's service outlives it: `ServiceGone` comes after the last `InstanceGone`.
        let rec = &self.cluster.service(instance.service).expect("an instance has its service").rec;
        let spec = rec.spec_of(instance.release).clone();
        let volume = spec.volume.as_ref().map(|volume| {
            let id = VolumeId::new(&format!("{}-{}-{}", rec.name, volume.name, instance.slot.unwrap_or(0)));
            let expected = self.cluster.volume(id.as_str()).is_some_and(|volume| volume.expected);
            let group = self.cluster.store_group(rec.name.as_str());
            let mounted = group.and_then(|group| group.spec.movable.clone());
            VolumeOrder { id, expected, mounted }
        });
        // What a store is, is no node's business: it runs an instance with a volume.
        let spec = match spec.kind {
            Kind::Store => Arc::new(ServiceSpec { kind: Kind::Service, ..(*spec).clone() }),
            Kind::Service | Kind::Batch | Kind::System => spec,
        };
        let (service, disk_from) = (rec.name.clone(), self.disk_from(instance));
        Run { service, release: instance.release, slot: instance.slot, volume, disk_from, spec }
    }

    /// Said for as long as the instance lives: its node knows whether it is done with it.
    fn disk_from(&self, instance: &Instance) -> Option<DiskFrom> {
        let from = instance.replaces.filter(|_| instance.scratch.takes())?;
        let node = self.cluster.instance(from).map(|old| &self.cluster.node(old.node).rec);
        // One that is offline is not waited for a second time.
        let node = node.filter(|node| !node.is_offline());
        Some(DiskFrom { instance: from, api: node.map_or(String::new(), |node| node.api.clone()) })
    }
}
