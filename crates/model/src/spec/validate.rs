//! From the file's shape to a checked specification: every value is looked at, the first that is
//! wrong is named with its key.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{CheckFile, ServiceFile, SpecError};
use super::{
    COUNT_MAX, Check, DURATION_MAX, Disk, EdgeSpec, Kind, Migrate, Probe, SPEC_BYTES_MAX, ServiceSpec,
    Signal, Stop, Update, VolumeSpec,
};
use crate::{
    Millis, ServiceName,
    units::{parse_bytes, parse_duration},
};

/// Below this a check would be a load of its own.
const CHECK_INTERVAL_MIN: Millis = Millis(10);
/// A process needs at least this much to exist.
const MEMORY_MIN: u64 = 1 << 20;
const PARALLEL_MAX: i64 = 10_000;
const PORTS_MAX: usize = 32;
const CPU_MAX: i64 = 1_000_000;

type Checked<T> = Result<T, SpecError>;

fn wrong<T>(key: &str, message: impl Into<String>) -> Checked<T> {
    Err(SpecError { key: key.to_owned(), message: message.into() })
}

/// Lower-case letters, digits and dashes, a letter first; 63 at most. Fits a host name, a file name
/// and an environment variable once upper-cased.
pub fn is_valid_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && name.len() <= 63
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.ends_with('-')
}

impl ServiceFile {
    /// The checked specification, with the service's name and count.
    pub fn check(&self) -> Checked<(ServiceName, u32, ServiceSpec)> {
        if !is_valid_name(&self.name) {
            return wrong(
                "name",
                format!(
                    "{:?} is not a name: lower-case letters, digits and dashes, a letter first, 63 at most",
                    self.name
                ),
            );
        }
        if self.size() > SPEC_BYTES_MAX {
            return wrong(
                "name",
                format!("the specification of {:?} is larger than {SPEC_BYTES_MAX} bytes", self.name),
            );
        }
        let kind = self.checked_kind()?;
        let count = self.checked_count(kind)?;
        let memory = parse_bytes(&self.memory).or_else(|message| wrong("memory", message))?;
        if memory < MEMORY_MIN {
            return wrong(
                "memory",
                format!("{:?} is too little for any process (1MiB at least)", self.memory),
            );
        }
        if !(0..=CPU_MAX).contains(&self.cpu) {
            return wrong(
                "cpu",
                format!("{} is not between 0 and {CPU_MAX} thousandths of a core", self.cpu),
            );
        }
        self.checked_ports()?;
        self.checked_env()?;
        let spec = ServiceSpec {
            kind,
            command: self.checked_command()?,
            env: self.env.clone(),
            memory,
            cpu: self.cpu as u32,
            ports: self.ports.clone(),
            check: self.check.as_ref().map(|check| self.checked_check(check)).transpose()?,
            edge: self.checked_edge(kind)?,
            stop: self.checked_stop()?,
            migrate: Migrate {
                max_parallel: parallel("migrate.max_parallel", self.migrate.max_parallel)?,
                min_healthy_time: duration("migrate.min_healthy_time", &self.migrate.min_healthy_time)?,
                healthy_deadline: duration("migrate.healthy_deadline", &self.migrate.healthy_deadline)?,
                surge: self.migrate.surge,
            },
            update: Update {
                max_parallel: parallel("update.max_parallel", self.update.max_parallel)?,
                healthy_deadline: duration("update.healthy_deadline", &self.update.healthy_deadline)?,
                surge: self.update.surge,
            },
            volume: self.checked_volume(kind)?,
            disk: Disk { migrate: self.disk.migrate },
            rerun: self.rerun,
            constraints: self.checked_constraints()?,
        };
        Ok((ServiceName::new(&self.name), count, spec))
    }

    fn size(&self) -> usize {
        let text = |map: &BTreeMap<String, String>| map.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        let check = self.check.as_ref().and_then(|check| check.command.as_ref());
        self.command.iter().chain(check.into_iter().flatten()).map(String::len).sum::<usize>()
            + text(&self.env)
            + text(&self.constraints)
    }

    fn checked_kind(&self) -> Checked<Kind> {
        match self.kind.as_str() {
            "service" => Ok(Kind::Service),
            "batch" => Ok(Kind::Batch),
            "system" => Ok(Kind::System),
            other => wrong("kind", format!("{other:?} is not a kind (service, batch or system)")),
        }
    }

    fn checked_count(&self, kind: Kind) -> Checked<u32> {
        match (kind, self.count) {
            (Kind::System, Some(_)) => {
                wrong("count", "a system service has no count: it runs once on every node")
            }
            (Kind::System, None) => Ok(0),
            (Kind::Service | Kind::Batch | Kind::Store, None) => Ok(1),
            (Kind::Service | Kind::Batch | Kind::Store, Some(count)) => match u32::try_from(count) {
                Ok(count) if count <= COUNT_MAX => Ok(count),
                _ => wrong("count", format!("{count} is not between 0 and {COUNT_MAX}")),
            },
        }
    }

    fn checked_ports(&self) -> Checked<()> {
        let mut seen = BTreeSet::new();
        if self.ports.len() > PORTS_MAX {
            return wrong("ports", format!("{} ports are more than {PORTS_MAX}", self.ports.len()));
        }
        for port in &self.ports {
            if !is_valid_name(port) {
                return wrong("ports", format!("{port:?} is not a name for a port (like \"http\")"));
            }
            if !seen.insert(port) {
                return wrong("ports", format!("{port:?} is there twice"));
            }
        }
        Ok(())
    }

    fn checked_env(&self) -> Checked<()> {
        for (key, value) in &self.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return wrong(&format!("env.{key}"), "is not an environment variable");
            }
            expand(value, |name| self.knows_variable(name).then(String::new))
                .or_else(|message| wrong(&format!("env.{key}"), message))?;
        }
        Ok(())
    }

    fn checked_command(&self) -> Checked<Vec<String>> {
        self.checked_argv("command", &self.command)?;
        Ok(self.command.clone())
    }

    fn checked_argv(&self, key: &str, argv: &[String]) -> Checked<()> {
        if argv.first().is_none_or(|program| program.is_empty()) {
            return wrong(key, "is empty: it names the program to run and its arguments");
        }
        for part in argv {
            if part.contains('\0') {
                return wrong(key, "holds a zero byte");
            }
            expand(part, |name| (self.knows_variable(name) || self.env.contains_key(name)).then(String::new))
                .or_else(|message| wrong(key, message))?;
        }
        Ok(())
    }

    /// The variables that a node gives every instance.
    fn knows_variable(&self, name: &str) -> bool {
        match name {
            "INSTANCE" | "SERVICE" | "NODE" | "RELEASE" | "DISK" => true,
            "VOLUME" => self.volume.is_some(),
            "SLOT" => self.volume.is_some() || self.kind == "batch",
            _ => self.ports.iter().any(|port| name == port_variable(port)),
        }
    }

    fn checked_check(&self, check: &CheckFile) -> Checked<Check> {
        let probe = match (&check.http, &check.tcp, &check.command) {
            (Some(path), None, None) => {
                let Some(port) = &check.port else {
                    return wrong("check.port", "an http check names the port it asks");
                };
                self.known_port("check.port", port)?;
                let plain = path.bytes().all(|byte| byte.is_ascii_graphic());
                if !path.starts_with('/') || !plain {
                    return wrong("check.http", format!("{path:?} is not a path (like \"/ready\")"));
                }
                Probe::Http { path: path.clone(), port: port.clone() }
            }
            (None, Some(port), None) => {
                self.known_port("check.tcp", port)?;
                Probe::Tcp { port: port.clone() }
            }
            (None, None, Some(argv)) => {
                self.checked_argv("check.command", argv)?;
                Probe::Command(argv.clone())
            }
            _ => return wrong("check", "has one of http, tcp and command"),
        };
        if check.port.is_some() && check.http.is_none() {
            return wrong("check.port", "belongs to an http check");
        }
        let interval = duration("check.interval", &check.interval)?;
        let timeout = duration("check.timeout", &check.timeout)?;
        for (key, value) in [("check.interval", interval), ("check.timeout", timeout)] {
            if value < CHECK_INTERVAL_MIN {
                return wrong(key, format!("{value} is shorter than {CHECK_INTERVAL_MIN}"));
            }
        }
        Ok(Check { probe, interval, timeout })
    }

    fn known_port(&self, key: &str, port: &str) -> Checked<()> {
        match self.ports.iter().any(|known| known == port) {
            true => Ok(()),
            false => wrong(key, format!("{port:?} is not among the service's ports {:?}", self.ports)),
        }
    }

    fn checked_edge(&self, kind: Kind) -> Checked<Option<EdgeSpec>> {
        let Some(edge) = &self.edge else { return Ok(None) };
        if kind != Kind::Service {
            return wrong("edge", format!("a {} takes no connections through the edge", kind.as_str()));
        }
        self.known_port("edge.port", &edge.port)?;
        match u16::try_from(edge.listen) {
            Ok(listen) if listen > 0 => Ok(Some(EdgeSpec { port: edge.port.clone(), listen })),
            _ => wrong("edge.listen", format!("{} is not a port (1 to 65535)", edge.listen)),
        }
    }

    fn checked_stop(&self) -> Checked<Stop> {
        let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.as_str() == self.stop.signal) else {
            let known = Signal::ALL.map(Signal::as_str).join(", ");
            return wrong("stop.signal", format!("{:?} is not one of {known}", self.stop.signal));
        };
        Ok(Stop { signal, grace: duration("stop.grace", &self.stop.grace)? })
    }

    fn checked_volume(&self, kind: Kind) -> Checked<Option<VolumeSpec>> {
        let Some(volume) = &self.volume else { return Ok(None) };
        if kind != Kind::Service {
            return wrong("volume", format!("a {} has no volume; only kind \"service\" has", kind.as_str()));
        }
        if !is_valid_name(&volume.name) {
            return wrong("volume.name", format!("{:?} is not a name for a volume", volume.name));
        }
        Ok(Some(VolumeSpec { name: volume.name.clone() }))
    }

    fn checked_constraints(&self) -> Checked<BTreeMap<String, String>> {
        match self.constraints.keys().find(|key| key.is_empty()) {
            Some(_) => wrong("constraints", "a label's name is empty"),
            None => Ok(self.constraints.clone()),
        }
    }
}

/// `http` is given to the process as `PORT_HTTP`.
pub(super) fn port_variable(port: &str) -> String {
    format!("PORT_{}", port.to_ascii_uppercase().replace('-', "_"))
}

impl ServiceSpec {
    /// Names of the variables that hold an instance's ports, in the order of `ports`.
    pub fn port_variables(&self) -> impl Iterator<Item = String> + '_ {
        self.ports.iter().map(|port| port_variable(port))
    }
}

/// Puts values in place of `${NAME}`; `$$` stands for one `$`.
pub fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let Some(end) = after.find('}') else {
                return Err(format!("{text:?} has a ${{ without its }}"));
            };
            let name = &after[..end];
            out.push_str(
                &value(name).ok_or_else(|| format!("${{{name}}} in {text:?} stands for nothing here"))?,
            );
            rest = &after[end + 1..];
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    Ok(out)
}

pub(super) fn duration(key: &str, text: &str) -> Checked<Millis> {
    match parse_duration(text) {
        Ok(span) if span <= DURATION_MAX => Ok(span),
        Ok(_) => wrong(key, format!("{text:?} is longer than {DURATION_MAX}")),
        Err(message) => wrong(key, message),
    }
}

fn parallel(key: &str, number: i64) -> Checked<u32> {
    match number {
        1..=PARALLEL_MAX => Ok(number as u32),
        _ => wrong(key, format!("{number} is not between 1 and {PARALLEL_MAX}")),
    }
}
