//! A group of changes that is applied while it is being made, with the events that tell of them.

use crate::{
    Change, Cluster, Drain, DrainNode, DrainState, Ending, Event, EventKind, Feed, Instance, Node,
    RolloutState, Service, Time, store_events,
};

/// Applies each change at once, so that the next decision sees it, and keeps them in order for the
/// store.
pub struct Txn<'a> {
    cluster: &'a mut Cluster,
    now: Time,
    changes: Vec<Change>,
    events: Vec<Event>,
}

impl<'a> Txn<'a> {
    pub fn new(cluster: &'a mut Cluster, now: Time) -> Txn<'a> {
        Txn { cluster, now, changes: Vec::new(), events: Vec::new() }
    }

    pub fn put(&mut self, mut change: Change) {
        if let Change::Instance(instance) = &mut change {
            let before = self.cluster.instance(instance.id).map(|old| old.desired);
            if before.is_some_and(|before| before != instance.desired) {
                instance.desired_since = self.now;
            }
        }
        match &change {
            Change::Instance(instance) => self.note_instance(instance),
            Change::Node(node) => self.note_node(node),
            Change::Service(service) => self.note_service(service),
            Change::ServiceGone(name) => {
                self.note(EventKind::ServiceRemoved, format!("service/{name}"), "gone".into(), vec![]);
            }
            Change::Volume(volume) => {
                let before = self.cluster.volume(volume.id.as_str()).map(|old| old.home.clone());
                if let Some(from) = before.filter(|from| *from != volume.home) {
                    let message = format!("home moved from {from} to {}", volume.home);
                    let fields = vec![("from", from.to_string()), ("to", volume.home.to_string())];
                    self.note(EventKind::VolumeMoved, format!("volume/{}", volume.id), message, fields);
                }
            }
            Change::Drain(drain) => self.note_drain(drain),
            Change::Feed(feed) => self.note_feed(feed),
            Change::FeedGone(name) => {
                self.note(EventKind::FeedRemoved, format!("feed/{name}"), "gone".into(), vec![]);
            }
            Change::StoreGroup(group) => {
                self.events.extend(store_events::of_group(self.cluster, group, self.now))
            }
            Change::StoreGroupGone(name) => {
                self.note(EventKind::StoreGroupRemoved, format!("store-group/{name}"), "gone".into(), vec![]);
            }
            Change::Store(store) => self.events.extend(store_events::of_store(self.cluster, store, self.now)),
            Change::StoreGone(id) => {
                let message = "its process and its volume are gone".to_owned();
                let fields = vec![("to", "gone".to_owned())];
                self.note(EventKind::StoreOfflineChanged, format!("store/{id}"), message, fields);
            }
            Change::Meta(_)
            | Change::InstanceGone(_)
            | Change::VolumeGone(_)
            | Change::Audit(_)
            | Change::AuditGone(_)
            | Change::DrainGone(_)
            | Change::Token(_)
            | Change::TokenGone(_) => {}
        }
        self.cluster.apply(&change);
        self.changes.push(change);
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes and events so far, in order; what they did stays done.
    pub fn finish(self) -> (Vec<Change>, Vec<Event>) {
        (self.changes, self.events)
    }

    fn note(&mut self, kind: EventKind, unit: String, message: String, fields: Vec<(&'static str, String)>) {
        self.events.push(Event { kind, at: self.now, unit, message, fields });
    }

    fn note_instance(&mut self, instance: &Instance) {
        let before = self.cluster.instance(instance.id).map(|old| (old.desired, old.actual, old.reason));
        let node = self.cluster.node(instance.node).rec.id.clone();
        let name = self.cluster.instance_name(instance);
        let unit = format!("instance/{name}");
        let fields = |from: &str, to: &str| {
            vec![("node", node.to_string()), ("from", from.to_owned()), ("to", to.to_owned())]
        };
        let Some((desired, actual, reason)) = before else {
            let message = format!("placed on {node}, release {}", instance.release);
            let mut fields = vec![("node", node.to_string()), ("release", instance.release.to_string())];
            if let Some(replaces) = instance.replaces {
                fields.push(("replaces", replaces.to_string()));
            }
            return self.note(EventKind::InstanceAllocated, unit, message, fields);
        };
        if desired != instance.desired {
            let (from, to) = (desired.as_str(), instance.desired.as_str());
            let message = format!("to be {to} on {node}");
            self.note(EventKind::InstanceDesiredStateChanged, unit.clone(), message, fields(from, to));
        }
        if actual != instance.actual || (reason != instance.reason && instance.reason.is_some()) {
            let (from, to) = (actual.as_str(), instance.actual.as_str());
            let mut message = format!("{to} on {node}");
            let mut fields = fields(from, to);
            if let Some(code) = instance.reason {
                message.push_str(&format!(" ({code})"));
                fields.push(("code", code.to_string()));
            }
            self.note(EventKind::InstanceStatusChanged, unit, message, fields);
        }
    }

    fn note_node(&mut self, node: &Node) {
        let before = self.cluster.node_by_id(node.id.as_str()).map(|old| (old.rec.intent, old.rec.health));
        let unit = format!("node/{}", node.id);
        let (intent, health) = match before {
            Some(before) => before,
            None => {
                let fields = vec![("from", String::new()), ("to", node.health.as_str().to_owned())];
                return self.note(EventKind::NodeHealthChanged, unit, "registered".into(), fields);
            }
        };
        if intent != node.intent {
            let (from, to) = (intent.as_str(), node.intent.as_str());
            let fields = vec![("from", from.to_owned()), ("to", to.to_owned())];
            self.note(EventKind::NodeStateChanged, unit.clone(), format!("from {from} to {to}"), fields);
        }
        if health != node.health {
            let (from, to) = (health.as_str(), node.health.as_str());
            let fields = vec![("from", from.to_owned()), ("to", to.to_owned())];
            self.note(EventKind::NodeHealthChanged, unit, format!("from {from} to {to}"), fields);
        }
    }

    fn note_drain(&mut self, drain: &Drain) {
        let before = self.cluster.drain(drain.epoch).cloned();
        for part in &drain.nodes {
            let old = before.as_ref().and_then(|drain| drain.part(part.node.as_str()));
            let unit = format!("node/{}", part.node);
            let fields = || {
                let done = format!("{}/{}", part.done, part.total);
                vec![
                    ("epoch", drain.epoch.to_string()),
                    ("state", part.state_str().to_owned()),
                    ("done", done),
                ]
            };
            if part.started_at.is_some() && old.is_none_or(|old| old.started_at.is_none()) {
                let message = format!("drain {} begins with {} units", drain.epoch, part.total);
                self.note(EventKind::DrainStarted, unit.clone(), message, fields());
            }
            if old.is_some_and(|old| old.done < part.done) {
                let message = format!("{} of {} units have left", part.done, part.total);
                self.note(EventKind::DrainProgressed, unit.clone(), message, fields());
            }
            // A drain may be blocked from its first moment.
            if part.blocked && old.is_none_or(|old| !old.blocked) {
                let message = "something needs a person".to_owned();
                self.note(EventKind::DrainBlocked, unit.clone(), message, fields());
            }
            if part.stalled && old.is_none_or(|old| !old.stalled) {
                let message = format!("nothing has left for a while; {} of {} have", part.done, part.total);
                self.note(EventKind::DrainStalled, unit.clone(), message, fields());
            }
            match (old.map(|old| old.state), part.state) {
                (was, now) if was == Some(now) => {}
                (_, DrainState::Draining) => {}
                (_, DrainState::Queued) => {
                    let message = format!("drain {} is queued", drain.epoch);
                    self.note(EventKind::NodeStateChanged, unit, message, fields());
                }
                (_, DrainState::Ended(Ending::Cancelled)) => {
                    let message = format!("drain {} is cancelled", drain.epoch);
                    self.note(EventKind::DrainCancelled, unit, message, fields());
                }
                (_, DrainState::Ended(_)) => {
                    self.note(EventKind::DrainEnded, unit, ended(drain, part), fields())
                }
            }
        }
    }

    /// Something that no record shows by itself.
    pub fn tell(
        &mut self,
        kind: EventKind,
        unit: String,
        message: String,
        fields: Vec<(&'static str, String)>,
    ) {
        self.note(kind, unit, message, fields);
    }

    fn note_feed(&mut self, feed: &Feed) {
        let unit = format!("feed/{}", feed.name);
        let before = self.cluster.feed(feed.name.as_str()).cloned();
        let Some(before) = before else {
            return self.note(EventKind::FeedApplied, unit, "created".to_owned(), vec![]);
        };
        if before.spec != feed.spec {
            self.note(EventKind::FeedApplied, unit.clone(), "changed".to_owned(), vec![]);
        }
        if before.state != feed.state {
            let (from, to) = (before.state.as_str(), feed.state.as_str());
            let fields = vec![("from", from.to_owned()), ("to", to.to_owned())];
            self.note(EventKind::FeedStateChanged, unit.clone(), format!("from {from} to {to}"), fields);
        }
        let at = |feed: &Feed| feed.maintainer.as_ref().map(|maintainer| maintainer.node.clone());
        if before.epoch != feed.epoch
            && let Some(to) = at(feed)
        {
            let from = at(&before).map(|node| node.to_string()).unwrap_or_default();
            let message = match from.is_empty() {
                true => format!("maintainer placed on {to}"),
                false => format!("maintainer from {from} to {to}"),
            };
            let fields = vec![("from", from), ("to", to.to_string()), ("epoch", feed.epoch.to_string())];
            self.note(EventKind::FeedMaintainerMoved, unit, message, fields);
        }
    }

    fn note_service(&mut self, service: &Service) {
        let before = self.cluster.service_by_name(service.name.as_str());
        let before = before.map(|old| (old.rec.release, old.rec.count, old.rec.rollout.state.clone()));
        let unit = format!("service/{}", service.name);
        let applied = match &before {
            None => Some(format!("created, count {}", service.count)),
            Some((release, ..)) if *release != service.release => {
                Some(format!("release {}", service.release))
            }
            Some((_, count, _)) if *count != service.count => {
                Some(format!("count {count} to {}", service.count))
            }
            Some(_) => None,
        };
        let release = || vec![("release", service.release.to_string())];
        if let Some(message) = applied {
            self.note(EventKind::ServiceApplied, unit.clone(), message, release());
        }
        if before.is_some_and(|(.., state)| state != service.rollout.state) {
            let message = match &service.rollout.state {
                RolloutState::Rolling => format!("release {} is rolling out", service.release),
                RolloutState::Complete => format!("release {} is complete", service.release),
                RolloutState::Failed { reason, message } => {
                    format!("release {} failed ({reason}): {message}", service.release)
                }
            };
            self.note(EventKind::RolloutChanged, unit, message, release());
        }
    }
}

impl std::ops::Deref for Txn<'_> {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

fn ended(drain: &Drain, part: &DrainNode) -> String {
    let late = if part.deadline_reached { ", deadline reached" } else { "" };
    format!("drain {} ended: {}{late}", drain.epoch, part.state_str())
}
