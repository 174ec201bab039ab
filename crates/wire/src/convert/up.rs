//! What daemons say.

use model::{
    Actual, ClusterId, Code, Exit, InstanceId, Life, MemoryCaps, Millis, ProcessEpoch, Resources, Roles,
};
use protocol::message::{
    EdgeReport, FeedReport, Heartbeat, Hello, Inventory, Status, Up, UpBody, Withdrawal,
};

use super::{
    Checked, address, clipped, code_of, count, feed_name, labels, node, port, required, service, text,
};
use crate::{
    error::{Fault, WireError},
    limits::{FEEDS_MAX, LISTEN_FAILURES_MAX, NAME_BYTES_MAX, PORTS_MAX, TEXT_BYTES_MAX, UNITS_MAX},
    pb,
};

/// What an unknown code makes of `Heartbeat.degraded`. A newer node that gives a reason unknown here
/// still must get nothing new; of the reasons a node has, this one promises least about its cause.
const DEGRADED_FALLBACK: Code = Code::MemoryPressure;

impl From<&Up> for pb::Up {
    fn from(up: &Up) -> pb::Up {
        let body = match &up.body {
            UpBody::Hello(hello) => pb::up::Body::Hello(hello.into()),
            UpBody::Heartbeat(heartbeat) => pb::up::Body::Heartbeat(heartbeat.into()),
            UpBody::Relay { to, message } => {
                pb::up::Body::Relay(pb::Relay { to: to.as_str().to_owned(), message: Some(message.into()) })
            }
            UpBody::Goodbye => pb::up::Body::Goodbye(pb::Goodbye {}),
        };
        pb::Up { seq: up.seq, body: Some(body) }
    }
}

impl TryFrom<pb::Up> for Up {
    type Error = WireError;

    fn try_from(up: pb::Up) -> Checked<Up> {
        let body = match required("up.body", up.body)? {
            pb::up::Body::Hello(hello) => UpBody::Hello(hello.try_into()?),
            pb::up::Body::Heartbeat(heartbeat) => UpBody::Heartbeat(heartbeat.try_into()?),
            pb::up::Body::Relay(relay) => UpBody::Relay {
                to: node("relay.to", &relay.to)?,
                message: required("relay.message", relay.message)?.try_into()?,
            },
            pb::up::Body::Goodbye(pb::Goodbye {}) => UpBody::Goodbye,
        };
        Ok(Up { seq: up.seq, body })
    }
}

impl From<&Hello> for pb::Hello {
    fn from(hello: &Hello) -> pb::Hello {
        let Roles { coordinator, worker, edge } = hello.roles;
        let Resources { memory, cpu } = hello.capacity;
        pb::Hello {
            node: hello.node.as_str().to_owned(),
            life: hello.life.0,
            roles: Some(pb::Roles { coordinator, worker, edge }),
            labels: hello.labels.clone(),
            capacity: Some(pb::Resources { memory, cpu }),
            host: hello.host.clone(),
            api: hello.api.clone(),
            memory_caps: Some((&hello.memory_caps).into()),
            cluster: hello.cluster.map(|cluster| cluster.0),
            inventory: hello.inventory.iter().map(pb::Inventory::from).collect(),
            edge: Some((&hello.edge).into()),
            rpc: hello.rpc.clone(),
            succeeds: hello.succeeds.map(|life| life.0),
        }
    }
}

impl TryFrom<pb::Hello> for Hello {
    type Error = WireError;

    fn try_from(hello: pb::Hello) -> Checked<Hello> {
        let pb::Roles { coordinator, worker, edge } = required("hello.roles", hello.roles)?;
        let pb::Resources { memory, cpu } = required("hello.capacity", hello.capacity)?;
        count("hello.inventory", &hello.inventory, UNITS_MAX)?;
        labels("hello.labels", &hello.labels)?;
        Ok(Hello {
            node: node("hello.node", &hello.node)?,
            life: Life(hello.life),
            succeeds: hello.succeeds.map(Life),
            roles: Roles { coordinator, worker, edge },
            labels: hello.labels,
            capacity: Resources { memory, cpu },
            host: text("hello.host", hello.host, NAME_BYTES_MAX)?,
            api: address("hello.api", hello.api)?,
            rpc: address("hello.rpc", hello.rpc)?,
            memory_caps: required("hello.memory_caps", hello.memory_caps)?.try_into()?,
            cluster: hello.cluster.map(ClusterId),
            inventory: hello.inventory.into_iter().map(Inventory::try_from).collect::<Result<_, _>>()?,
            edge: required("hello.edge", hello.edge)?.try_into()?,
        })
    }
}

impl From<&MemoryCaps> for pb::MemoryCaps {
    fn from(caps: &MemoryCaps) -> pb::MemoryCaps {
        let (kind, why) = match caps {
            MemoryCaps::CgroupV2 => (pb::memory_caps::Kind::CgroupV2, String::new()),
            MemoryCaps::CgroupV1 => (pb::memory_caps::Kind::CgroupV1, String::new()),
            MemoryCaps::None(why) => (pb::memory_caps::Kind::None, clipped(why)),
        };
        pb::MemoryCaps { kind: kind.into(), why }
    }
}

impl TryFrom<pb::MemoryCaps> for MemoryCaps {
    type Error = WireError;

    fn try_from(caps: pb::MemoryCaps) -> Checked<MemoryCaps> {
        match pb::memory_caps::Kind::try_from(caps.kind) {
            Ok(pb::memory_caps::Kind::CgroupV2) => Ok(MemoryCaps::CgroupV2),
            Ok(pb::memory_caps::Kind::CgroupV1) => Ok(MemoryCaps::CgroupV1),
            Ok(pb::memory_caps::Kind::None) => {
                Ok(MemoryCaps::None(text("memory_caps.why", caps.why, TEXT_BYTES_MAX)?))
            }
            Ok(pb::memory_caps::Kind::Unspecified) | Err(_) => {
                Err(Fault::UnknownValue(caps.kind).at("memory_caps.kind"))
            }
        }
    }
}

impl From<&Inventory> for pb::Inventory {
    fn from(inventory: &Inventory) -> pb::Inventory {
        pb::Inventory {
            service: inventory.service.as_str().to_owned(),
            status: Some((&inventory.status).into()),
        }
    }
}

impl TryFrom<pb::Inventory> for Inventory {
    type Error = WireError;

    fn try_from(inventory: pb::Inventory) -> Checked<Inventory> {
        Ok(Inventory {
            service: service("inventory.service", &inventory.service)?,
            status: required("inventory.status", inventory.status)?.try_into()?,
        })
    }
}

impl From<&Heartbeat> for pb::Heartbeat {
    fn from(heartbeat: &Heartbeat) -> pb::Heartbeat {
        pb::Heartbeat {
            epoch: heartbeat.epoch.0,
            statuses: heartbeat.statuses.iter().map(pb::Status::from).collect(),
            forgotten: heartbeat.forgotten.iter().map(|instance| instance.0).collect(),
            degraded: heartbeat.degraded.map(|code| code.as_str().to_owned()),
            edge: Some((&heartbeat.edge).into()),
            roster: heartbeat.roster.map(pb::SetRevision::from),
            feeds: heartbeat.feeds.iter().map(pb::FeedReport::from).collect(),
            dispatchers: heartbeat
                .dispatchers
                .iter()
                .map(|(feed, count)| pb::FeedCount { feed: feed.as_str().to_owned(), count: *count })
                .collect(),
        }
    }
}

impl TryFrom<pb::Heartbeat> for Heartbeat {
    type Error = WireError;

    fn try_from(heartbeat: pb::Heartbeat) -> Checked<Heartbeat> {
        count("heartbeat.statuses", &heartbeat.statuses, UNITS_MAX)?;
        count("heartbeat.forgotten", &heartbeat.forgotten, UNITS_MAX)?;
        count("heartbeat.feeds", &heartbeat.feeds, FEEDS_MAX)?;
        count("heartbeat.dispatchers", &heartbeat.dispatchers, FEEDS_MAX)?;
        let dispatchers = heartbeat.dispatchers.into_iter();
        let dispatchers = dispatchers.map(|feed| Ok((feed_name("feed_count.feed", &feed.feed)?, feed.count)));
        let degraded = heartbeat.degraded.map(|code| {
            code_of(&code).unwrap_or_else(|| {
                tracing::debug!(code = clipped(&code), "a node is degraded for a reason unknown here");
                DEGRADED_FALLBACK
            })
        });
        Ok(Heartbeat {
            epoch: ProcessEpoch(heartbeat.epoch),
            statuses: heartbeat.statuses.into_iter().map(Status::try_from).collect::<Result<_, _>>()?,
            forgotten: heartbeat.forgotten.into_iter().map(InstanceId).collect(),
            degraded,
            edge: required("heartbeat.edge", heartbeat.edge)?.try_into()?,
            roster: heartbeat.roster.map(Into::into),
            feeds: heartbeat.feeds.into_iter().map(FeedReport::try_from).collect::<Result<_, _>>()?,
            dispatchers: dispatchers.collect::<Result<_, _>>()?,
        })
    }
}

impl From<&EdgeReport> for pb::EdgeReport {
    fn from(edge: &EdgeReport) -> pb::EdgeReport {
        let failed = edge.failed.iter().take(LISTEN_FAILURES_MAX);
        pb::EdgeReport {
            serves: edge.serves.map(pb::SetRevision::from),
            failed: failed
                .map(|(port, why)| pb::ListenFailure { port: u32::from(*port), message: clipped(why) })
                .collect(),
            withdrawal: edge.withdrawal.map(|Withdrawal { drain, done }| pb::Withdrawal { drain, done }),
        }
    }
}

impl TryFrom<pb::EdgeReport> for EdgeReport {
    type Error = WireError;

    fn try_from(edge: pb::EdgeReport) -> Checked<EdgeReport> {
        count("edge_report.failed", &edge.failed, LISTEN_FAILURES_MAX)?;
        let failed = edge.failed.into_iter().map(|failure| {
            let port = port("listen_failure.port", failure.port)?;
            Ok((port, text("listen_failure.message", failure.message, TEXT_BYTES_MAX)?))
        });
        Ok(EdgeReport {
            serves: edge.serves.map(Into::into),
            failed: failed.collect::<Result<_, _>>()?,
            withdrawal: edge.withdrawal.map(|pb::Withdrawal { drain, done }| Withdrawal { drain, done }),
        })
    }
}

impl From<&Status> for pb::Status {
    fn from(status: &Status) -> pb::Status {
        pb::Status {
            instance: status.instance.0,
            number: status.number,
            order: status.order,
            actual: pb::Actual::from(status.actual).into(),
            restarts: status.restarts,
            pid: status.pid,
            ports: status.ports.iter().map(|port| u32::from(*port)).collect(),
            reason: status.reason.map(|code| code.as_str().to_owned()),
            message: status.message.as_deref().map(clipped),
            exit: status.exit.map(pb::Exit::from),
            healthy_for_ms: status.healthy_for.map(|span| span.0),
        }
    }
}

impl TryFrom<pb::Status> for Status {
    type Error = WireError;

    fn try_from(status: pb::Status) -> Checked<Status> {
        count("status.ports", &status.ports, PORTS_MAX)?;
        let message = status.message.map(|message| text("status.message", message, TEXT_BYTES_MAX));
        let (reason, message) = reason_of(status.reason, message.transpose()?);
        Ok(Status {
            instance: InstanceId(status.instance),
            number: status.number,
            order: status.order,
            actual: actual(status.actual)?,
            restarts: status.restarts,
            pid: status.pid,
            ports: status
                .ports
                .into_iter()
                .map(|number| port("status.ports", number))
                .collect::<Result<_, _>>()?,
            reason,
            message,
            exit: status.exit.map(Exit::try_from).transpose()?,
            healthy_for: status.healthy_for_ms.map(Millis),
        })
    }
}

/// A code from a newer node becomes part of the message: no known code would say the same, and the
/// operator still reads it.
fn reason_of(code: Option<String>, message: Option<String>) -> (Option<Code>, Option<String>) {
    let Some(code) = code else { return (None, message) };
    match (code_of(&code), message) {
        (Some(known), message) => (Some(known), message),
        (None, Some(message)) => (None, Some(clipped(&format!("{code}: {message}")))),
        (None, None) => (None, Some(clipped(&code))),
    }
}

impl From<Actual> for pb::Actual {
    fn from(actual: Actual) -> pb::Actual {
        match actual {
            Actual::Pending => pb::Actual::Pending,
            Actual::Starting => pb::Actual::Starting,
            Actual::Ready => pb::Actual::Ready,
            Actual::Unready => pb::Actual::Unready,
            Actual::Stopping => pb::Actual::Stopping,
            Actual::Stopped => pb::Actual::Stopped,
            Actual::Failed => pb::Actual::Failed,
            Actual::Lost => pb::Actual::Lost,
        }
    }
}

fn actual(number: i32) -> Checked<Actual> {
    match pb::Actual::try_from(number) {
        Ok(pb::Actual::Pending) => Ok(Actual::Pending),
        Ok(pb::Actual::Starting) => Ok(Actual::Starting),
        Ok(pb::Actual::Ready) => Ok(Actual::Ready),
        Ok(pb::Actual::Unready) => Ok(Actual::Unready),
        Ok(pb::Actual::Stopping) => Ok(Actual::Stopping),
        Ok(pb::Actual::Stopped) => Ok(Actual::Stopped),
        Ok(pb::Actual::Failed) => Ok(Actual::Failed),
        Ok(pb::Actual::Lost) => Ok(Actual::Lost),
        Ok(pb::Actual::Unspecified) | Err(_) => Err(Fault::UnknownValue(number).at("status.actual")),
    }
}

impl From<Exit> for pb::Exit {
    fn from(exit: Exit) -> pb::Exit {
        let how = match exit {
            Exit::Code(code) => pb::exit::How::Code(code),
            Exit::Signal(signal) => pb::exit::How::Signal(signal),
            Exit::Unknown => pb::exit::How::Unknown(pb::exit::Unknown {}),
        };
        pb::Exit { how: Some(how) }
    }
}

impl TryFrom<pb::Exit> for Exit {
    type Error = WireError;

    fn try_from(exit: pb::Exit) -> Checked<Exit> {
        Ok(match required("exit.how", exit.how)? {
            pb::exit::How::Code(code) => Exit::Code(code),
            pb::exit::How::Signal(signal) => Exit::Signal(signal),
            pb::exit::How::Unknown(pb::exit::Unknown {}) => Exit::Unknown,
        })
    }
}
