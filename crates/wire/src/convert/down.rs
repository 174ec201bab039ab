//! What the coordinator says.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    ClusterId, InstanceId, Millis, ProcessEpoch, ServiceName, ServiceSpec, Term, VolumeId, spec::ServiceFile,
};
use protocol::{
    Timing,
    message::{
        Backend, BackendSet, DiskFrom, Down, DownBody, Duty, HeartbeatAnswer, Order, Refusal, Run, Sets,
        VolumeOrder, Welcome, What,
    },
};

use super::{Checked, address, clipped, count, feed_name, port, required, service, text};
use crate::{
    error::{Fault, WireError},
    limits::{
        BACKENDS_PER_SET_MAX, FEEDS_MAX, NAME_BYTES_MAX, SETS_MAX, SPEC_JSON_BYTES_MAX, TEXT_BYTES_MAX,
        UNITS_MAX,
    },
    pb,
};

impl From<&Down> for pb::Down {
    fn from(down: &Down) -> pb::Down {
        let body = match &down.body {
            DownBody::Welcome(welcome) => pb::down::Body::Welcome(welcome.into()),
            DownBody::Refused { why, message } => {
                let why = pb::refused::Why::from(*why).into();
                pb::down::Body::Refused(pb::Refused { why, message: clipped(message) })
            }
            DownBody::Answer(answer) => pb::down::Body::Answer(answer.into()),
            DownBody::Orders(orders) => pb::down::Body::Orders(orders.as_slice().into()),
            DownBody::Sets(sets) => pb::down::Body::Sets(sets.into()),
            DownBody::Roster(roster) => pb::down::Body::Roster((&**roster).into()),
            DownBody::Feeds(orders) => pb::down::Body::Feeds(orders.as_slice().into()),
            DownBody::Relay(peer) => pb::down::Body::Relay(peer.into()),
            DownBody::Duty(duty) => pb::down::Body::Duty((*duty).into()),
            DownBody::Leave => pb::down::Body::Leave(pb::Leave {}),
        };
        pb::Down { seq: down.seq, cluster: down.cluster.0, term: down.term.0, body: Some(body) }
    }
}

impl TryFrom<pb::Down> for Down {
    type Error = WireError;

    fn try_from(down: pb::Down) -> Checked<Down> {
        let body = match required("down.body", down.body)? {
            pb::down::Body::Welcome(welcome) => DownBody::Welcome(welcome.try_into()?),
            pb::down::Body::Refused(refused) => DownBody::Refused {
                why: refusal(refused.why)?,
                message: text("refused.message", refused.message, TEXT_BYTES_MAX)?,
            },
            pb::down::Body::Answer(answer) => DownBody::Answer(answer.try_into()?),
            pb::down::Body::Orders(orders) => DownBody::Orders(orders.try_into()?),
            pb::down::Body::Sets(sets) => DownBody::Sets(sets.try_into()?),
            pb::down::Body::Roster(roster) => DownBody::Roster(Arc::new(roster.try_into()?)),
            pb::down::Body::Feeds(orders) => DownBody::Feeds(orders.try_into()?),
            pb::down::Body::Relay(peer) => DownBody::Relay(peer.try_into()?),
            pb::down::Body::Duty(duty) => DownBody::Duty(duty.try_into()?),
            pb::down::Body::Leave(pb::Leave {}) => DownBody::Leave,
        };
        Ok(Down { seq: down.seq, cluster: ClusterId(down.cluster), term: Term(down.term), body })
    }
}

impl From<&Welcome> for pb::Welcome {
    fn from(welcome: &Welcome) -> pb::Welcome {
        pb::Welcome {
            epoch: welcome.epoch.0,
            timing: Some((&welcome.timing).into()),
            foreign: welcome.foreign,
            api: welcome.api.clone(),
            moves_per_node: welcome.moves_per_node,
        }
    }
}

impl TryFrom<pb::Welcome> for Welcome {
    type Error = WireError;

    fn try_from(welcome: pb::Welcome) -> Checked<Welcome> {
        Ok(Welcome {
            epoch: ProcessEpoch(welcome.epoch),
            timing: required("welcome.timing", welcome.timing)?.try_into()?,
            foreign: welcome.foreign,
            api: address("welcome.api", welcome.api)?,
            moves_per_node: welcome.moves_per_node,
        })
    }
}

impl From<&Timing> for pb::Timing {
    fn from(timing: &Timing) -> pb::Timing {
        pb::Timing {
            heartbeat_ms: timing.heartbeat.0,
            lease_ms: timing.lease.0,
            degraded_after_ms: timing.degraded_after.0,
            fence_after_ms: timing.fence_after.0,
            offline_after_ms: timing.offline_after.0,
            last_node_after_ms: timing.last_node_after.0,
        }
    }
}

impl TryFrom<pb::Timing> for Timing {
    type Error = WireError;

    /// A node that fenced later than the coordinator gives it up would run things twice, so the order
    /// of the spans is checked here too.
    fn try_from(timing: pb::Timing) -> Checked<Timing> {
        let spans = [
            timing.heartbeat_ms,
            timing.lease_ms,
            timing.degraded_after_ms,
            timing.fence_after_ms,
            timing.offline_after_ms,
            timing.last_node_after_ms,
        ];
        // `Timing::check` multiplies; no sum of spans may overflow after it either.
        if spans.iter().any(|span| *span > model::spec::DURATION_MAX.0) {
            let message = format!("a span is longer than {}", model::spec::DURATION_MAX);
            return Err(Fault::Timing(protocol::TimingError { key: "*", message }).at("welcome.timing"));
        }
        let [heartbeat, lease, degraded_after, fence_after, offline_after, last_node_after] =
            spans.map(Millis);
        let timing = Timing { heartbeat, lease, degraded_after, fence_after, offline_after, last_node_after };
        timing.check().map_err(|error| Fault::Timing(error).at("welcome.timing"))?;
        Ok(timing)
    }
}

impl From<Refusal> for pb::refused::Why {
    fn from(why: Refusal) -> pb::refused::Why {
        match why {
            Refusal::NodeIdInUse => pb::refused::Why::NodeIdInUse,
            Refusal::NotCoordinator => pb::refused::Why::NotCoordinator,
        }
    }
}

fn refusal(number: i32) -> Checked<Refusal> {
    match pb::refused::Why::try_from(number) {
        Ok(pb::refused::Why::NodeIdInUse) => Ok(Refusal::NodeIdInUse),
        Ok(pb::refused::Why::NotCoordinator) => Ok(Refusal::NotCoordinator),
        Ok(pb::refused::Why::Unspecified) | Err(_) => Err(Fault::UnknownValue(number).at("refused.why")),
    }
}

impl From<&HeartbeatAnswer> for pb::HeartbeatAnswer {
    fn from(answer: &HeartbeatAnswer) -> pb::HeartbeatAnswer {
        let stored = answer.stored.iter();
        let feeds = answer.feeds.iter();
        pb::HeartbeatAnswer {
            heartbeat: answer.heartbeat,
            feeds: feeds
                .map(|(feed, number)| pb::FeedAnswered { feed: feed.as_str().to_owned(), number: *number })
                .collect(),
            stored: stored
                .map(|(instance, number)| pb::Stored { instance: instance.0, number: *number })
                .collect(),
        }
    }
}

impl TryFrom<pb::HeartbeatAnswer> for HeartbeatAnswer {
    type Error = WireError;

    fn try_from(answer: pb::HeartbeatAnswer) -> Checked<HeartbeatAnswer> {
        count("heartbeat_answer.stored", &answer.stored, UNITS_MAX)?;
        let stored = answer.stored.into_iter().map(|stored| (InstanceId(stored.instance), stored.number));
        count("heartbeat_answer.feeds", &answer.feeds, FEEDS_MAX)?;
        let feeds = answer.feeds.into_iter();
        let feeds = feeds.map(|taken| Ok((feed_name("feed_answered.feed", &taken.feed)?, taken.number)));
        Ok(HeartbeatAnswer {
            heartbeat: answer.heartbeat,
            stored: stored.collect(),
            feeds: feeds.collect::<Result<_, _>>()?,
        })
    }
}

/// The specifications of one message, each written once.
#[derive(Default)]
struct Specs<'a> {
    json: Vec<Vec<u8>>,
    /// By the service's name, which is part of the file, and the release's one shared specification.
    places: BTreeMap<(&'a str, *const ServiceSpec), u32>,
}

impl<'a> Specs<'a> {
    fn place(&mut self, run: &'a Run) -> u32 {
        let json = &mut self.json;
        *self.places.entry((run.service.as_str(), Arc::as_ptr(&run.spec))).or_insert_with(|| {
            json.push(spec_json(&run.service, &run.spec));
            (json.len() - 1) as u32
        })
    }
}

/// How many instances the service has is not part of a release, and no node's business.
fn spec_json(service: &ServiceName, spec: &ServiceSpec) -> Vec<u8> {
    let file = ServiceFile { count: None, ..ServiceFile::of(service.as_str(), 1, spec) };
    // Only a map with keys that are not strings could fail; an empty one would be refused.
    serde_json::to_vec(&file).unwrap_or_default()
}

fn spec_of(json: &[u8]) -> Checked<(ServiceName, Arc<ServiceSpec>)> {
    const FIELD: &str = "orders.specs";
    if json.len() > SPEC_JSON_BYTES_MAX {
        return Err(Fault::TooLong { bytes: json.len(), max: SPEC_JSON_BYTES_MAX }.at(FIELD));
    }
    let file: ServiceFile =
        serde_json::from_slice(json).map_err(|error| Fault::NotAServiceFile(error).at(FIELD))?;
    let (name, _count, spec) = file.check().map_err(|error| Fault::Spec(error).at(FIELD))?;
    Ok((name, Arc::new(spec)))
}

impl From<&[Order]> for pb::Orders {
    fn from(orders: &[Order]) -> pb::Orders {
        let mut specs = Specs::default();
        let orders = orders.iter().map(|order| pb::Order {
            instance: order.instance.0,
            revision: order.revision,
            what: Some(match &order.what {
                What::Run(run) => pb::order::What::Run(pb::Run {
                    spec: specs.place(run),
                    release: run.release,
                    slot: run.slot,
                    volume: run.volume.as_ref().map(pb::VolumeOrder::from),
                    disk_from: run.disk_from.as_ref().map(pb::DiskFrom::from),
                }),
                What::Drain => pb::order::What::Drain(pb::Drain {}),
                What::Stop => pb::order::What::Stop(pb::Stop {}),
                What::Forget => pb::order::What::Forget(pb::Forget {}),
                What::Destroy(volume) => pb::order::What::Destroy(volume.into()),
            }),
        });
        let orders = orders.collect();
        pb::Orders { specs: specs.json, orders }
    }
}

impl TryFrom<pb::Orders> for Vec<Order> {
    type Error = WireError;

    fn try_from(orders: pb::Orders) -> Checked<Vec<Order>> {
        count("orders.specs", &orders.specs, UNITS_MAX)?;
        count("orders.orders", &orders.orders, UNITS_MAX)?;
        let specs = orders.specs.iter().map(|json| spec_of(json)).collect::<Result<Vec<_>, _>>()?;
        let order = |order: pb::Order| {
            let what = match required("order.what", order.what)? {
                pb::order::What::Run(run) => What::Run(Arc::new(run_of(run, &specs)?)),
                pb::order::What::Drain(pb::Drain {}) => What::Drain,
                pb::order::What::Stop(pb::Stop {}) => What::Stop,
                pb::order::What::Forget(pb::Forget {}) => What::Forget,
                pb::order::What::Destroy(volume) => What::Destroy(VolumeOrder::try_from(volume)?),
            };
            Ok(Order { instance: InstanceId(order.instance), revision: order.revision, what })
        };
        orders.orders.into_iter().map(order).collect()
    }
}

fn run_of(run: pb::Run, specs: &[(ServiceName, Arc<ServiceSpec>)]) -> Checked<Run> {
    let found = usize::try_from(run.spec).ok().and_then(|place| specs.get(place));
    let (service, spec) = found.ok_or_else(|| Fault::NoSuchSpec(run.spec).at("run.spec"))?;
    Ok(Run {
        service: service.clone(),
        release: run.release,
        slot: run.slot,
        volume: run.volume.map(VolumeOrder::try_from).transpose()?,
        disk_from: run.disk_from.map(DiskFrom::try_from).transpose()?,
        spec: spec.clone(),
    })
}

impl From<&DiskFrom> for pb::DiskFrom {
    fn from(from: &DiskFrom) -> pb::DiskFrom {
        pb::DiskFrom { instance: from.instance.0, api: from.api.clone() }
    }
}

impl TryFrom<pb::DiskFrom> for DiskFrom {
    type Error = WireError;

    fn try_from(from: pb::DiskFrom) -> Checked<DiskFrom> {
        Ok(DiskFrom { instance: InstanceId(from.instance), api: address("disk_from.api", from.api)? })
    }
}

impl From<&VolumeOrder> for pb::VolumeOrder {
    fn from(volume: &VolumeOrder) -> pb::VolumeOrder {
        pb::VolumeOrder {
            id: volume.id.as_str().to_owned(),
            expected: volume.expected,
            mounted: volume.mounted.clone().unwrap_or_default(),
        }
    }
}

impl TryFrom<pb::VolumeOrder> for VolumeOrder {
    type Error = WireError;

    /// The id names a directory, so that nothing but what names are made of may be in it.
    fn try_from(volume: pb::VolumeOrder) -> Checked<VolumeOrder> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let id = volume.id;
        if id.is_empty() || id.len() > NAME_BYTES_MAX || !id.bytes().all(plain) {
            return Err(Fault::NotAName(clipped(&id)).at("volume_order.id"));
        }
        let mounted = Some(volume.mounted).filter(|path| !path.is_empty());
        if mounted.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains('\0')) {
            return Err(Fault::NotAPath.at("volume_order.mounted"));
        }
        Ok(VolumeOrder { id: VolumeId::new(&id), expected: volume.expected, mounted })
    }
}

impl From<Duty> for pb::Duty {
    fn from(duty: Duty) -> pb::Duty {
        let what = match duty {
            Duty::Serve { from } => pb::duty::What::ServeFrom(from.into()),
            Duty::Withdraw { drain } => pb::duty::What::Withdraw(pb::duty::Withdraw { drain }),
        };
        pb::Duty { what: Some(what) }
    }
}

impl TryFrom<pb::Duty> for Duty {
    type Error = WireError;

    fn try_from(duty: pb::Duty) -> Checked<Duty> {
        Ok(match required("duty.what", duty.what)? {
            pb::duty::What::ServeFrom(from) => Duty::Serve { from: from.into() },
            pb::duty::What::Withdraw(pb::duty::Withdraw { drain }) => Duty::Withdraw { drain },
        })
    }
}

impl From<&Sets> for pb::Sets {
    fn from(sets: &Sets) -> pb::Sets {
        pb::Sets {
            revision: Some(sets.revision.into()),
            since: Some(sets.since.into()),
            full: sets.full,
            sets: sets.sets.iter().map(pb::BackendSet::from).collect(),
        }
    }
}

impl TryFrom<pb::Sets> for Sets {
    type Error = WireError;

    fn try_from(sets: pb::Sets) -> Checked<Sets> {
        count("sets.sets", &sets.sets, SETS_MAX)?;
        Ok(Sets {
            revision: required("sets.revision", sets.revision)?.into(),
            since: required("sets.since", sets.since)?.into(),
            full: sets.full,
            sets: sets.sets.into_iter().map(BackendSet::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl From<&BackendSet> for pb::BackendSet {
    fn from(set: &BackendSet) -> pb::BackendSet {
        let backends = set.backends.iter();
        pb::BackendSet {
            service: set.service.as_str().to_owned(),
            listen: set.listen.map(u32::from),
            grace_ms: set.grace.0,
            backends: backends
                .map(|backend| pb::Backend { instance: backend.instance.0, address: backend.address.clone() })
                .collect(),
        }
    }
}

impl TryFrom<pb::BackendSet> for BackendSet {
    type Error = WireError;

    fn try_from(set: pb::BackendSet) -> Checked<BackendSet> {
        count("backend_set.backends", &set.backends, BACKENDS_PER_SET_MAX)?;
        let backends = set.backends.into_iter().map(|backend| {
            let address = address("backend.address", backend.address)?;
            Ok(Backend { instance: InstanceId(backend.instance), address })
        });
        Ok(BackendSet {
            service: service("backend_set.service", &set.service)?,
            listen: set.listen.map(|number| port("backend_set.listen", number)).transpose()?,
            grace: Millis(set.grace_ms),
            backends: backends.collect::<Result<_, _>>()?,
        })
    }
}
