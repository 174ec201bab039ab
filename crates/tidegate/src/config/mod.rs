//! The daemon's configuration: read, checked, and refused with file, line and key.
//!
//! What other crates need is handed to them as values; no other crate reads this file.

mod file;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use doors::KeyFiles;
use model::{
    Millis, Roles,
    units::{parse_bytes, parse_duration},
};
use protocol::{
    Timing,
    coordinator::{DrainLimits, FeedLimits},
};

use self::file::{ConfigFile, NodeFile, StoreFile};
use crate::{
    failure::{Failure, Outcome},
    toml_at::{Document, Step, dotted},
};

/// A checked configuration, with every default filled in.
#[derive(Clone, Debug)]
pub struct Config {
    pub id: String,
    pub roles: Roles,
    pub data_dir: PathBuf,
    pub labels: BTreeMap<String, String>,
    /// Bytes; `None`: the machine's.
    pub memory: Option<u64>,
    /// Thousandths of a core; `None`: the machine's.
    pub cpu: Option<u32>,
    pub ports: RangeInclusive<u16>,
    /// Where instances are reached from other machines.
    pub host: String,
    /// What the edge opens its ports on.
    pub edge_host: IpAddr,
    /// How long the edge serves on with its health check failing when its node drains.
    pub withdraw_delay: Millis,
    pub api: SocketAddr,
    pub rpc: SocketAddr,
    /// `host:port` of candidates; our own is among them if this is one.
    pub coordinators: Vec<String>,
    pub store: StoreConfig,
    pub timing: Timing,
    /// How long a PD must have led for its counts to be believed.
    pub pd_settle: Millis,
    pub drain: DrainLimits,
    pub feeds: FeedLimits,
    /// Mutual TLS between daemons, TLS for the API.
    pub tls: Option<KeyFiles>,
    /// Whether people must say who they are.
    pub tokens: bool,
    /// Whoever reaches this daemon may do anything: what `--insecure` says.
    pub insecure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    Embedded,
    Etcd {
        endpoints: Vec<String>,
        prefix: String,
        /// For endpoints at https://.
        keys: Option<KeyFiles>,
    },
}

/// A value that is wrong, at its dotted key.
struct Wrong {
    key: &'static str,
    message: String,
}

impl Config {
    /// Where others dial one of our listeners.
    pub fn reached_at(&self, listener: SocketAddr) -> String {
        reached_at(listener, &self.host)
    }
}

type Checked<T> = Result<T, Wrong>;

fn wrong<T>(key: &'static str, message: impl Into<String>) -> Checked<T> {
    Err(Wrong { key, message: message.into() })
}

/// Reads and checks a file.
pub fn load(path: &Path, insecure: bool) -> Outcome<Config> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::error(format!("{name}: there is no such file")),
        _ => Failure::error(format!("{name}: cannot be read: {error}")),
    })?;
    parse(&name, &text, insecure)
}

/// Checks a text; `name` is what messages call it.
pub fn parse(name: &str, text: &str, insecure: bool) -> Outcome<Config> {
    let document = Document::parse(name, text).map_err(Failure::error)?;
    let file: ConfigFile = document.read().map_err(|mistake| {
        let path = match mistake.path.split_last() {
            Some((_, above)) if mistake.message.starts_with("unknown key") => above,
            _ => &mistake.path,
        };
        let key = if path.is_empty() { String::new() } else { format!("{}: ", dotted(path)) };
        Failure::error(format!("{}: {key}{}", document.place(mistake.offset), mistake.message))
    })?;
    let no_base: [Step; 0] = [];
    check(&file, insecure).map_err(|Wrong { key, message }| {
        Failure::error(format!("{}: {key}: {message}", document.place(document.offset_of(&no_base, key))))
    })
}

fn check(file: &ConfigFile, insecure: bool) -> Checked<Config> {
    check_numbers(file)?;
    let tls = tls(file)?;
    let guards = Guards { tls: tls.is_some(), tokens: file.auth.tokens, insecure };
    let node = &file.node;
    let roles = roles(node)?;
    let api = listener("listen.api", &file.listen.api, guards)?;
    // Candidates take streams of all daemons there, workers those of other workers.
    let listens = roles.coordinator || roles.worker;
    let rpc = listener("listen.rpc", &file.listen.rpc, Guards { insecure: insecure || !listens, ..guards })?;
    if listens && api == rpc {
        return wrong("listen.rpc", format!("{rpc} is the address of listen.api already"));
    }
    let host = host(node, api.ip())?;
    let store = store(&file.store)?;
    let coordinators = coordinators(&file.join.coordinators, roles, &store, reached_at(rpc, &host))?;
    let edge_host = edge_host(file.edge.host.as_deref(), api.ip())?;
    Ok(Config {
        id: id(node)?,
        roles,
        data_dir: data_dir(node)?,
        labels: labels(node)?,
        memory: memory(node)?,
        cpu: cpu(node)?,
        ports: ports(&node.ports)?,
        host,
        edge_host,
        withdraw_delay: duration("edge.withdraw_delay", &file.edge.withdraw_delay)?,
        api,
        rpc,
        coordinators,
        store,
        timing: timing(file)?,
        pd_settle: pd_settle(file)?,
        drain: drain(file)?,
        feeds: feeds(file),
        tls,
        tokens: file.auth.tokens,
        insecure,
    })
}

fn tls(file: &ConfigFile) -> Checked<Option<KeyFiles>> {
    let Some(tls) = &file.tls else {
        return match file.auth.tokens {
            // A token on a plain connection is everybody's who sees the connection; and the first one is
            // made by a person with a certificate.
            true => wrong("auth.tokens", format!("needs TLS: {MAKE_CERTIFICATES}, and name them in [tls]")),
            false => Ok(None),
        };
    };
    key_files([("tls.ca", &tls.ca), ("tls.cert", &tls.cert), ("tls.key", &tls.key)]).map(Some)
}

/// All three, as paths that are good from everywhere.
fn key_files(given: [(&'static str, &PathBuf); 3]) -> Checked<KeyFiles> {
    let absolute = |(key, path): (&'static str, &PathBuf)| match std::path::absolute(path) {
        _ if path.as_os_str().is_empty() => {
            wrong(key, format!("is missing: there are ca, cert and key; {MAKE_CERTIFICATES}"))
        }
        Ok(path) => Ok(path),
        Err(error) => wrong(key, format!("{path:?} is no path here: {error}")),
    };
    let [ca, cert, key] = given;
    Ok(KeyFiles { ca: absolute(ca)?, cert: absolute(cert)?, key: absolute(key)? })
}

/// What stands between a listener and the network.
#[derive(Clone, Copy)]
struct Guards {
    tls: bool,
    tokens: bool,
    insecure: bool,
}

const MAKE_CERTIFICATES: &str = "make certificates with `tidegate tls init`";
const MAKE_TOKENS: &str = "set tokens = true in [auth] and make the first with `tidegate token create`";

fn check_numbers(file: &ConfigFile) -> Checked<()> {
    let numbers = [
        ("drain.nodes_at_once", file.drain.nodes_at_once),
        ("balance.moves_at_once", file.balance.moves_at_once),
        ("scheduler.drain-maintainer-batch-size", file.scheduler.drain_maintainer_batch_size),
        ("scheduler.dispatcher-moves-per-node", file.scheduler.dispatcher_moves_per_node),
        ("scheduler.dispatcher-moves-total", file.scheduler.dispatcher_moves_total),
    ];
    for (key, number) in numbers {
        if !(1..=100_000).contains(&number) {
            return wrong(key, format!("{number} is not between 1 and 100000"));
        }
    }
    Ok(())
}

fn drain(file: &ConfigFile) -> Checked<DrainLimits> {
    let default_deadline = match file.drain.default_deadline.as_str() {
        "none" => None,
        text => Some(duration("drain.default_deadline", text)?),
    };
    Ok(DrainLimits {
        // Checked with the other numbers.
        nodes_at_once: file.drain.nodes_at_once as u32,
        stall_after: duration("drain.stall_after", &file.drain.stall_after)?,
        default_deadline,
        balance_moves: file.balance.moves_at_once as u32,
    })
}

/// Checked with the other numbers.
fn feeds(file: &ConfigFile) -> FeedLimits {
    FeedLimits {
        maintainer_batch: file.scheduler.drain_maintainer_batch_size as u32,
        moves_per_node: file.scheduler.dispatcher_moves_per_node as u32,
        moves_total: file.scheduler.dispatcher_moves_total as u32,
    }
}

fn id(node: &NodeFile) -> Checked<String> {
    let (id, source) = match &node.id {
        Some(id) => (id.clone(), ""),
        None => (rustix::system::uname().nodename().to_string_lossy().to_lowercase(), " (the host name)"),
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let good = id.len() <= 63 && id.bytes().all(plain) && ends(id.bytes().next()) && ends(id.bytes().last());
    if good {
        return Ok(id);
    }
    let rule = "lower-case letters, digits, dashes and dots, 63 at most";
    wrong("node.id", format!("{id:?}{source} is not a name for a node: {rule}"))
}

fn roles(node: &NodeFile) -> Checked<Roles> {
    let mut roles = Roles::default();
    for role in &node.roles {
        let slot = match role.as_str() {
            "coordinator" => &mut roles.coordinator,
            "worker" => &mut roles.worker,
            "edge" => &mut roles.edge,
            other => {
                return wrong("node.roles", format!("{other:?} is not a role (coordinator, worker or edge)"));
            }
        };
        if std::mem::replace(slot, true) {
            return wrong("node.roles", format!("{role:?} is there twice"));
        }
    }
    if roles == Roles::default() {
        return wrong("node.roles", "is empty: a daemon has one role at least");
    }
    Ok(roles)
}

fn data_dir(node: &NodeFile) -> Checked<PathBuf> {
    if node.data_dir.as_os_str().is_empty() {
        return wrong("node.data_dir", "is empty: it names the directory that keeps everything");
    }
    // Shims and instances work from other directories.
    match std::path::absolute(&node.data_dir) {
        Ok(path) => Ok(path),
        Err(error) => wrong("node.data_dir", format!("{:?} is no path here: {error}", node.data_dir)),
    }
}

fn labels(node: &NodeFile) -> Checked<BTreeMap<String, String>> {
    match node.labels.keys().any(String::is_empty) {
        true => wrong("node.labels", "a label's name is empty"),
        false => Ok(node.labels.clone()),
    }
}

fn memory(node: &NodeFile) -> Checked<Option<u64>> {
    let Some(text) = &node.memory else { return Ok(None) };
    match parse_bytes(text) {
        Ok(0) => wrong("node.memory", "is nothing: no instance would fit"),
        Ok(bytes) => Ok(Some(bytes)),
        Err(message) => wrong("node.memory", message),
    }
}

fn cpu(node: &NodeFile) -> Checked<Option<u32>> {
    match node.cpu {
        None => Ok(None),
        Some(number) => match u32::try_from(number) {
            Ok(thousandths @ 1..=10_000_000) => Ok(Some(thousandths)),
            _ => wrong(
                "node.cpu",
                format!("{number} is not a number of thousandths of a core (4000 is 4 cores)"),
            ),
        },
    }
}

fn ports(text: &str) -> Checked<RangeInclusive<u16>> {
    let range = text
        .split_once('-')
        .and_then(|(low, high)| Some((low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?)));
    match range {
        Some((low, high)) if low >= 1024 && low <= high => Ok(low..=high),
        Some((low, high)) if low <= high => {
            wrong("node.ports", format!("{text:?} has ports below 1024, which belong to the system"))
        }
        _ => wrong("node.ports", format!("{text:?} is not a range of ports (write it like \"20000-20999\")")),
    }
}

fn listener(key: &'static str, text: &str, guards: Guards) -> Checked<SocketAddr> {
    let Ok(addr) = text.parse::<SocketAddr>() else {
        return wrong(
            key,
            format!("{text:?} is not an address with a port (write it like \"127.0.0.1:7070\")"),
        );
    };
    if addr.port() == 0 {
        return wrong(key, format!("{text:?} has no port; others must know it"));
    }
    if addr.ip().is_loopback() || guards.insecure {
        return Ok(addr);
    }
    let missing = match (guards.tls, guards.tokens) {
        (true, true) => return Ok(addr),
        (false, false) => {
            format!("has neither TLS nor tokens: {MAKE_CERTIFICATES} and name them in [tls], {MAKE_TOKENS}")
        }
        (false, true) => format!("has no TLS: {MAKE_CERTIFICATES} and name them in [tls]"),
        (true, false) => format!("asks for no tokens: {MAKE_TOKENS}"),
    };
    wrong(
        key,
        format!(
            "{text:?} is reachable from other machines and {missing}; or start with --insecure if everybody \
             on that network may run commands here"
        ),
    )
}

fn host(node: &NodeFile, api: IpAddr) -> Checked<String> {
    match &node.host {
        Some(host)
            if host.is_empty() || host.contains([':', '/', ' ']) && host.parse::<IpAddr>().is_err() =>
        {
            wrong("node.host", format!("{host:?} is not a host (a name or an address, without a port)"))
        }
        Some(host) => Ok(host.clone()),
        None if api.is_unspecified() => wrong(
            "node.host",
            format!("is missing: listen.api is {api}, so say where others reach this machine"),
        ),
        None => Ok(api.to_string()),
    }
}

/// The listener's own address, unless it is every address.
fn reached_at(listener: SocketAddr, host: &str) -> String {
    let port = listener.port();
    match listener.ip().is_unspecified() {
        false => listener.to_string(),
        true if host.contains(':') => format!("[{host}]:{port}"),
        true => format!("{host}:{port}"),
    }
}

fn edge_host(given: Option<&str>, api: IpAddr) -> Checked<IpAddr> {
    match given.map(str::parse::<IpAddr>) {
        None => Ok(api),
        Some(Ok(host)) => Ok(host),
        Some(Err(_)) => {
            wrong("edge.host", "is not an address of this machine (like \"0.0.0.0\", without a port)")
        }
    }
}

fn store(store: &StoreFile) -> Checked<StoreConfig> {
    match store.kind.as_str() {
        "embedded" if !store.endpoints.is_empty() => {
            wrong("store.endpoints", "belongs to kind = \"etcd\"; the embedded store is a file in data_dir")
        }
        "embedded" => Ok(StoreConfig::Embedded),
        "etcd" => {
            if store.endpoints.is_empty() {
                return wrong(
                    "store.endpoints",
                    "is missing: where etcd answers, like [\"https://10.0.0.1:2379\"]",
                );
            }
            let known = |url: &&String| !url.starts_with("http://") && !url.starts_with("https://");
            if let Some(bad) = store.endpoints.iter().find(known) {
                return wrong("store.endpoints", format!("{bad:?} starts with neither http:// nor https://"));
            }
            // An authority of its own: whoever has a certificate of etcd's can write anything there, which is
            // not what a certificate of a worker or of a person is for.
            let keys = match store.endpoints.iter().any(|url| url.starts_with("https://")) {
                true => Some(key_files([
                    ("store.ca", &store.ca),
                    ("store.cert", &store.cert),
                    ("store.key", &store.key),
                ])?),
                false => None,
            };
            if !store.prefix.starts_with('/') || store.prefix.ends_with('/') {
                return wrong("store.prefix", format!("{:?} is not like \"/tidegate/prod\"", store.prefix));
            }
            Ok(StoreConfig::Etcd { endpoints: store.endpoints.clone(), prefix: store.prefix.clone(), keys })
        }
        other => wrong("store.kind", format!("{other:?} is not a store (embedded or etcd)")),
    }
}

fn coordinators(given: &[String], roles: Roles, store: &StoreConfig, own: String) -> Checked<Vec<String>> {
    let key = "join.coordinators";
    let is_address = |text: &str| {
        text.rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
    };
    if let Some(bad) = given.iter().find(|text| !is_address(text)) {
        return wrong(key, format!("{bad:?} is not like \"10.0.0.1:7071\" (the rpc address of a candidate)"));
    }
    if !roles.coordinator {
        return match given.is_empty() {
            true => wrong(
                key,
                "is missing: a daemon without the coordinator role names candidates, like [\"10.0.0.1:7071\"]",
            ),
            false => Ok(given.to_vec()),
        };
    }
    let mut all = given.to_vec();
    if !all.contains(&own) {
        all.insert(0, own);
    }
    if *store == StoreConfig::Embedded && all.len() > 1 {
        return wrong(
            key,
            "the embedded store has exactly one candidate; use store.kind = \"etcd\", or take \"coordinator\" out of node.roles",
        );
    }
    Ok(all)
}

fn timing(file: &ConfigFile) -> Checked<Timing> {
    let given = &file.timing;
    let timing = Timing {
        heartbeat: duration("timing.heartbeat", &given.heartbeat)?,
        lease: duration("timing.lease", &given.lease)?,
        degraded_after: duration("timing.degraded_after", &given.degraded_after)?,
        fence_after: duration("timing.fence_after", &given.fence_after)?,
        offline_after: duration("timing.offline_after", &given.offline_after)?,
        last_node_after: duration("timing.last_node_after", &given.last_node_after)?,
    };
    timing.check().or_else(|error| {
        let key = match error.key {
            "heartbeat" => "timing.heartbeat",
            "lease" => "timing.lease",
            "degraded_after" => "timing.degraded_after",
            "fence_after" => "timing.fence_after",
            _ => "timing",
        };
        wrong(key, error.message)
    })?;
    Ok(timing)
}

fn pd_settle(file: &ConfigFile) -> Checked<Millis> {
    let key = "timing.pd_settle";
    match duration(key, &file.timing.pd_settle)? {
        Millis::ZERO => wrong(key, "a PD that has just begun to lead counts too few leaders; give it time"),
        settle => Ok(settle),
    }
}

fn duration(key: &'static str, text: &str) -> Checked<Millis> {
    match parse_duration(text) {
        Ok(span) if span <= model::spec::DURATION_MAX => Ok(span),
        Ok(_) => wrong(key, format!("{text:?} is longer than {}", model::spec::DURATION_MAX)),
        Err(message) => wrong(key, message),
    }
}

#[cfg(test)]
mod tests;
