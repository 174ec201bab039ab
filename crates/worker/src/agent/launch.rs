//! From an order to a running process: ports, volume, scratch directory, variables, then the shim.

use std::{collections::BTreeMap, path::Path, path::PathBuf};

use model::{Code, InstanceId, Kind, spec::Probe, spec::expand};
use protocol::message::Run;

use super::disk;
use crate::{
    checks::{Check, CheckKind},
    runtime::{Handle, Launch, LaunchError, Prepared, Runtime},
    volumes::{self, Presence, Volumes},
};

/// Why an instance could not be started, for its status.
pub(super) struct Failure {
    pub code: Code,
    pub message: String,
}

fn failure(code: Code, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}

/// Everything that is known before the process is.
pub(super) struct Plan {
    pub id: InstanceId,
    pub run: u32,
    pub what: std::sync::Arc<Run>,
    pub ports: Vec<u16>,
    pub node: String,
    pub fence_ms: Option<u64>,
    pub path: String,
}

/// Where commands are looked for: as the daemon does, and last beside the daemon's own binary, so that
/// the examples run wherever it was built.
pub(super) fn search_path(exe: &Path) -> String {
    let own = exe.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
    match std::env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{own}"),
        _ => format!("/usr/local/bin:/usr/bin:/bin:{own}"),
    }
}

impl Plan {
    pub fn name(&self) -> String {
        self.id.named(&self.what.service)
    }

    /// The variables that an instance is given, by name.
    pub fn variables(&self, disk: &Path, volume: Option<&Path>) -> BTreeMap<String, String> {
        let spec = &self.what.spec;
        let mut values = BTreeMap::from([
            ("INSTANCE".to_owned(), self.name()),
            ("SERVICE".to_owned(), self.what.service.to_string()),
            ("NODE".to_owned(), self.node.clone()),
            ("RELEASE".to_owned(), self.what.release.to_string()),
            ("DISK".to_owned(), disk.display().to_string()),
        ]);
        values.extend(volume.map(|path| ("VOLUME".to_owned(), path.display().to_string())));
        values.extend(self.what.slot.map(|slot| ("SLOT".to_owned(), slot.to_string())));
        values.extend(spec.port_variables().zip(self.ports.iter().map(u16::to_string)));
        values.insert("PATH".to_owned(), self.path.clone());
        let given = values.clone();
        for (key, value) in &spec.env {
            // Checked when the specification was taken; what cannot be expanded stays as it is.
            let value = expand(value, |name| given.get(name).cloned()).unwrap_or_else(|_| value.clone());
            values.insert(key.clone(), value);
        }
        values
    }
}

/// Writes down the order and everything else that has to be there before the process. Blocks on the disk.
pub(super) fn prepare(
    runtime: &Runtime,
    volumes: &Volumes,
    plan: &Plan,
    order: &str,
) -> Result<Prepared, Failure> {
    let name = plan.name();
    let dir = runtime.dir(&name);
    disk::save_order(&dir, order).map_err(|fault| {
        let message = format!("its order cannot be written to {}: {fault}", dir.display());
        failure(Code::StartFailed, message)
    })?;
    // A daemon that died while it copied may have left half of something.
    if let Err(fault) = super::copy::drop_half(&dir) {
        tracing::warn!("{name}: half a copy of scratch data cannot be removed: {fault}");
    }
    let disk = volumes::scratch(&dir)
        .map_err(|fault| failure(Code::StartFailed, format!("its scratch directory: {fault}")))?;
    let volume = volume(volumes, &plan.what)?;
    let env = plan.variables(&disk, volume.as_deref());
    let command = plan.what.spec.command.iter().map(|part| expand(part, |name| env.get(name).cloned()));
    let command =
        command.collect::<Result<Vec<_>, _>>().map_err(|fault| failure(Code::StartFailed, fault))?;
    let launch = Launch {
        instance: name,
        run: plan.run,
        command,
        env,
        workdir: disk,
        memory_limit: Some(plan.what.spec.memory),
        fence_ms: plan.fence_ms,
        // A batch that is done must not be run again. After a loss of power every other one is started, or
        // is not, as the coordinator says, however it had ended.
        lasting_exit: plan.what.spec.kind == Kind::Batch,
        ..Launch::default()
    };
    runtime.prepare(launch).map_err(|fault| failure(Code::StartFailed, chain(&fault)))
}

/// Starts what is prepared.
pub(super) async fn start(runtime: &Runtime, prepared: Prepared) -> Result<Handle, Failure> {
    runtime.start(prepared).await.map_err(|fault| match fault {
        LaunchError::StartFailed(exit) => failure(Code::StartFailed, exit.describe()),
        other => failure(Code::StartFailed, chain(&other)),
    })
}

/// The volume's directory. What is there is used; what is missing and should be there is said.
fn volume(volumes: &Volumes, run: &Run) -> Result<Option<PathBuf>, Failure> {
    let Some(order) = &run.volume else { return Ok(None) };
    let fault = |fault: volumes::VolumeError| failure(Code::VolumeNotPresent, chain(&fault));
    let id = order.id.as_str();
    let volumes = volumes.under(order.mounted.as_deref());
    let path = volumes.path(id).map_err(fault)?;
    let there = volumes.inspect(id).map_err(fault)?;
    // An empty directory without our marker is a mount point without its mount.
    let missing = match there {
        Presence::Present => false,
        Presence::Empty => !volumes.is_marked(id, &path).map_err(fault)?,
        Presence::Missing => true,
    };
    if order.expected && missing {
        let message = format!("the data of volume {id} should be at {} and is not", path.display());
        return Err(failure(Code::VolumeNotPresent, message));
    }
    Ok(Some(volumes.ensure(id).map_err(fault)?.path))
}

/// The check of an instance, with its ports and variables filled in.
pub(super) fn check(runtime: &Runtime, volumes: &Volumes, plan: &Plan) -> Option<Check> {
    let check = plan.what.spec.check.as_ref()?;
    let port = |name: &str| plan.what.spec.port_index(name).and_then(|at| plan.ports.get(at)).copied();
    let dir = runtime.dir(&plan.name());
    let disk = dir.join("disk");
    let volume = plan
        .what
        .volume
        .as_ref()
        .and_then(|volume| volumes.under(volume.mounted.as_deref()).path(volume.id.as_str()).ok());
    let env = plan.variables(&disk, volume.as_deref());
    let kind = match &check.probe {
        Probe::Http { path, port: name } => CheckKind::Http { path: path.clone(), port: port(name)? },
        Probe::Tcp { port: name } => CheckKind::Tcp { port: port(name)? },
        Probe::Command(argv) => {
            let argv = argv.iter().map(|part| expand(part, |name| env.get(name).cloned()));
            CheckKind::Command { argv: argv.collect::<Result<_, _>>().ok()? }
        }
    };
    let mut ready = Check::new(kind, check.interval.as_duration(), check.timeout.as_duration());
    (ready.env, ready.workdir) = (env, Some(disk));
    Some(ready)
}

/// An error with its causes, on one line.
pub(super) fn chain(fault: &dyn std::error::Error) -> String {
    let mut text = fault.to_string();
    let mut cause = fault.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}
