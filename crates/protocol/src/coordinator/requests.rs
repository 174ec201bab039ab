//! Carrying out what people and programs ask: checked and decided in one step, so that two requests
//! that race cannot both pass.

use model::{
    Access, Actual, AuditEntry, Change, Desired, Exit, FeedState, Instance, InstanceId, Intent, Kind, Meta,
    Node, NodeIx, Service, ServiceName, Time, Token, Volume, spec::COUNT_MAX,
};

use super::{Answer, ApiError, Asked, Coordinator, ErrorKind, Request, WantedIntent};

/// Entries of the audit log that are kept.
const AUDIT_KEPT: usize = 1000;
/// Of these, and beside them, so many of requests that were turned away: strangers make these.
const REFUSALS_KEPT: usize = 200;
/// Bytes of each of an entry's texts; a request that names a thousand services is cut.
const AUDIT_TEXT_MAX: usize = 1024;

impl Coordinator {
    pub(super) fn answer(&mut self, asked: Asked, now: Time) -> Result<Answer, ApiError> {
        let what = describe(&asked.request);
        let answer = match asked.request {
            Request::Barrier => return Ok(Answer::Done),
            Request::Apply { services, feeds, groups } => self.apply(services, feeds, groups, now)?,
            Request::SetReplicas { group, replicas } => self.set_replicas(&group, replicas, now)?,
            Request::RemoveStoreGroup { group, destroy_data } => {
                self.remove_store_group(&group, destroy_data, now)?
            }
            Request::Store { store, action } => self.act_on_store(&store, action, now)?,
            Request::SetFeedState { feed, state } => self.set_feed_state(&feed, state, now)?,
            Request::MoveSpan { feed, span, node } => self.move_span(&feed, span, &node, now)?,
            Request::Remove { service } => self.remove_service(&service, now)?,
            Request::Scale { service, count } => self.scale_service(&service, count, now)?,
            Request::SetIntent { node, intent } => self.set_intent(&node, intent, now)?,
            Request::ConfirmDead { node } => self.confirm_dead(&node, &asked.who, now)?,
            Request::StopInstance { id } => self.stop_instance(id, now)?,
            Request::AttachVolume { volume, node } => self.attach_volume(&volume, &node, now)?,
            Request::Drain(request) => self.drain(request, (&asked.who, &asked.from), now)?,
            Request::DrainCapture { capture, then } => {
                match self.drain_capture(&capture, then, (&asked.who, &asked.from), now)? {
                    Some(begun) => begun,
                    // Asked every second: nothing to write down.
                    None => return Ok(Answer::Done),
                }
            }
            Request::HandOver => Answer::Done,
            Request::CancelNode { node } => self.cancel_node(&node, now)?,
            Request::CancelDrain { epoch } => self.cancel_drain(epoch, now)?,
            Request::CreateToken { name, access, hash, expires_at } => {
                let created_by = asked.who.clone();
                self.create_token(Token { name, access, hash, created_at: now, created_by, expires_at }, now)?
            }
            Request::RevokeToken { name } => self.revoke_token(&name, now)?,
            Request::NoteRefusal { .. } => Answer::Done,
        };
        self.audit(asked.who, asked.from, what, now);
        Ok(answer)
    }

    pub(super) fn audit(&mut self, who: String, from: String, what: String, now: Time) {
        let [who, from, what] = [who, from, what].map(|text| cut(text, AUDIT_TEXT_MAX));
        let number = self.cluster.meta().audit_next;
        let entry = AuditEntry { number, at: now, who, from, what };
        // Each kind has room of its own: a flood of refusals leaves in the log what was done.
        let kept = if entry.is_refusal() { REFUSALS_KEPT } else { AUDIT_KEPT };
        let alike = self.cluster.audit().filter(|old| old.is_refusal() == entry.is_refusal());
        let alike: Vec<u64> = alike.map(|old| old.number).collect();
        let gone = alike.len().checked_sub(kept).map_or(0, |beyond| beyond + 1);
        self.change(now, |txn, _| {
            txn.put(Change::Meta(Meta { audit_next: number + 1, ..txn.meta().clone() }));
            txn.put(Change::Audit(entry));
            alike[..gone].iter().for_each(|old| txn.put(Change::AuditGone(*old)));
        });
    }

    /// The processes of a store group are no service to anybody.
    pub(super) fn service_rec(&self, name: &ServiceName) -> Result<&Service, ApiError> {
        let entry = self.cluster.service_by_name(name.as_str());
        let entry = entry
            .filter(|entry| entry.rec.spec().kind != Kind::Store)
            .ok_or_else(|| ApiError::not_found("service_not_found", format!("there is no service {name}")))?;
        Ok(&entry.rec)
    }

    pub(super) fn node_ix(&self, id: &str) -> Result<NodeIx, ApiError> {
        self.cluster
            .node_ix(id)
            .ok_or_else(|| ApiError::not_found("node_not_found", format!("there is no node {id}")))
    }

    fn remove_service(&mut self, name: &ServiceName, now: Time) -> Result<Answer, ApiError> {
        let next = Service { removed: true, ..self.service_rec(name)?.clone() };
        self.change(now, |txn, _| txn.put(Change::Service(next)));
        Ok(Answer::Done)
    }

    fn scale_service(&mut self, name: &ServiceName, count: u32, now: Time) -> Result<Answer, ApiError> {
        let rec = self.service_rec(name)?;
        if rec.removed {
            return Err(being_removed(name));
        }
        if rec.spec().kind == Kind::System {
            let message = format!("{name} is a system service: it runs once on every node and has no count");
            return Err(ApiError::new(ErrorKind::Invalid, "no_count", message));
        }
        if count > COUNT_MAX {
            let message = format!("count {count} is not between 0 and {COUNT_MAX}");
            return Err(ApiError::new(ErrorKind::Invalid, "count_invalid", message));
        }
        if rec.count != count {
            let next = Service { count, ..rec.clone() };
            self.change(now, |txn, _| txn.put(Change::Service(next)));
        }
        Ok(Answer::Done)
    }

    fn set_intent(&mut self, node: &str, wanted: WantedIntent, now: Time) -> Result<Answer, ApiError> {
        let ix = self.node_ix(node)?;
        if let Some(drain) = &self.cluster.node(ix).drain {
            let message = format!("{node} is in drain {}; cancel that first", drain.epoch);
            return Err(ApiError::new(ErrorKind::Conflict, "drain_in_progress", message));
        }
        let rec = &self.cluster.node(ix).rec;
        let intent = match wanted {
            WantedIntent::Active => Intent::Active,
            WantedIntent::Disabled => Intent::Disabled,
        };
        if rec.intent != intent {
            let next = Node { intent, ..rec.clone() };
            self.change(now, |txn, _| txn.put(Change::Node(next)));
            self.health_follows(ix);
        }
        Ok(Answer::Done)
    }

    fn confirm_dead(&mut self, node: &str, who: &str, now: Time) -> Result<Answer, ApiError> {
        let ix = self.node_ix(node)?;
        if !self.cluster.node(ix).rec.is_offline() {
            let message = format!(
                "{node} is {}; only a node that is offline can be confirmed dead",
                self.cluster.node(ix).rec.health.as_str()
            );
            return Err(ApiError::new(ErrorKind::NotNow, "node_not_offline", message));
        }
        let there: Vec<Instance> = self.cluster.instances_on(ix).filter(|i| !i.is_over()).cloned().collect();
        self.change(now, |txn, _| {
            for mut instance in there {
                instance.order += u32::from(instance.desired != Desired::Stopped);
                instance.desired = Desired::Stopped;
                instance.actual = Actual::Stopped;
                instance.exit = Some(Exit::Unknown);
                instance.ended_at = Some(now);
                instance.message = Some(format!("its node was confirmed dead by {who}").into());
                txn.put(Change::Instance(instance));
            }
        });
        self.roomier();
        Ok(Answer::Done)
    }

    fn stop_instance(&mut self, id: InstanceId, now: Time) -> Result<Answer, ApiError> {
        let found = self.cluster.instance(id);
        let instance = found
            .ok_or_else(|| ApiError::not_found("instance_not_found", format!("there is no instance {id}")))?;
        if instance.is_over() {
            let message = format!("{} is over already", self.cluster.instance_name(instance));
            return Err(ApiError::new(ErrorKind::Conflict, "instance_over", message));
        }
        if let Some(store) = self.cluster.store_of(instance) {
            let message = format!("it is the process of store {0}; `tidegate store restart {0}`", store.id);
            return Err(ApiError::new(ErrorKind::Conflict, "instance_of_store", message));
        }
        if instance.desired == Desired::Running {
            let mut next = instance.clone();
            next.desired = Desired::Draining;
            next.order += 1;
            self.change(now, |txn, _| txn.put(Change::Instance(next)));
        }
        Ok(Answer::Done)
    }

    fn attach_volume(&mut self, id: &str, node: &str, now: Time) -> Result<Answer, ApiError> {
        let volume = self.cluster.volume(id);
        let volume = volume
            .ok_or_else(|| ApiError::not_found("volume_not_found", format!("there is no volume {id}")))?;
        let rec = &self.cluster.node(self.node_ix(node)?).rec;
        if !rec.roles.worker {
            let message = format!("{node} runs no instances: it is not a worker");
            return Err(ApiError::new(ErrorKind::Invalid, "node_not_worker", message));
        }
        if let Some(user) = self.user_of(volume) {
            let at = &self.cluster.node(user.node).rec;
            let hint = match at.is_offline() {
                true => format!(
                    "; {} is offline: `tidegate node confirm-dead {}` if it is really gone",
                    at.id, at.id
                ),
                false => "; scale its service down or stop it first".to_owned(),
            };
            let message = format!("{} runs on {id}{hint}", self.cluster.instance_name(user));
            return Err(ApiError::new(ErrorKind::Conflict, "volume_in_use", message));
        }
        let service = self.cluster.service_ix(volume.service.as_str());
        let next = Volume { home: rec.id.clone(), expected: true, ..volume.clone() };
        self.change(now, |txn, _| txn.put(Change::Volume(next)));
        self.dirty.extend(service);
        Ok(Answer::Done)
    }

    /// The instance that is, or may be, running on a volume.
    fn user_of(&self, volume: &Volume) -> Option<&Instance> {
        let service = self.cluster.service_ix(volume.service.as_str())?;
        let rec = &self.cluster.service(service)?.rec;
        self.cluster.instances_of(service).find(|instance| {
            let name = rec.spec_of(instance.release).volume.as_ref().map(|volume| &volume.name);
            !instance.is_over() && instance.slot == Some(volume.slot) && name == Some(&volume.name)
        })
    }
}

pub(super) fn being_removed(name: &ServiceName) -> ApiError {
    let message = format!("{name} is being removed; wait until its instances have stopped");
    ApiError::new(ErrorKind::Conflict, "service_removing", message)
}

fn describe(request: &Request) -> String {
    match request {
        Request::Apply { services, feeds, groups } => {
            let services = services.iter().map(|apply| apply.name.to_string());
            let feeds = feeds.iter().map(|apply| format!("feed/{}", apply.name));
            let groups = groups.iter().map(|apply| format!("store-group/{}", apply.name));
            let names: Vec<String> = services.chain(feeds).chain(groups).collect();
            format!("apply {}", names.join(", "))
        }
        Request::SetReplicas { group, replicas } => format!("scale store-group/{group} to {replicas}"),
        Request::RemoveStoreGroup { group, .. } => format!("destroy store-group/{group}"),
        Request::Store { store, action } => format!("{} store/{store}", action.describe()),
        Request::SetFeedState { feed, state } => match state {
            FeedState::Running => format!("resume feed/{feed}"),
            FeedState::Paused => format!("pause feed/{feed}"),
            FeedState::Removing => format!("remove feed/{feed}"),
        },
        Request::MoveSpan { feed, span, node } => format!("move feed/{feed} {span} to node/{node}"),
        Request::Remove { service } => format!("remove service/{service}"),
        Request::Scale { service, count } => format!("scale service/{service} to {count}"),
        Request::SetIntent { node, intent: WantedIntent::Active } => format!("enable node/{node}"),
        Request::SetIntent { node, intent: WantedIntent::Disabled } => format!("disable node/{node}"),
        Request::ConfirmDead { node } => format!("confirm-dead node/{node}"),
        Request::StopInstance { id } => format!("stop instance/{id}"),
        Request::AttachVolume { volume, node } => format!("attach volume/{volume} to node/{node}"),
        Request::Drain(request) => {
            let selector = request.selector.iter().map(|(key, value)| format!("{key}={value}"));
            let named: Vec<String> = request.nodes.iter().cloned().chain(selector).collect();
            format!("drain {}", named.join(", "))
        }
        Request::DrainCapture { capture, .. } => format!("drain {capture} as a capture"),
        Request::HandOver => "hand the office over".to_owned(),
        Request::CancelNode { node } => format!("cancel the drain of node/{node}"),
        Request::CancelDrain { epoch } => format!("cancel drain {epoch}"),
        Request::CreateToken { name, access, .. } => {
            format!(
                "create token/{name} for a{} {}",
                if *access == Access::Operator { "n" } else { "" },
                access.as_str()
            )
        }
        Request::RevokeToken { name } => format!("revoke token/{name}"),
        Request::NoteRefusal { what } => format!("{}{what}", AuditEntry::REFUSED),
        Request::Barrier => String::new(),
    }
}

fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
