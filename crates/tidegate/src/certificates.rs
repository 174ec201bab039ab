//! The daemon's certificate: loaded, checked against who it is, and followed while it runs.

use std::{sync::Arc, time::Instant};

use doors::{Keys, Who, limits::CERTIFICATE_LOOK};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, StoreConfig},
    failure::{Failure, Outcome},
};

/// How often a certificate's near end is said.
const SAY_EVERY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

fn unusable(section: &'static str) -> impl Fn(doors::KeysError) -> Failure {
    move |error| Failure::error(format!("[{section}]: {:#}", anyhow::Error::new(error)))
}

/// What etcd is shown.
pub fn for_store(config: &Config) -> Outcome<Option<Keys>> {
    match &config.store {
        StoreConfig::Etcd { keys: Some(files), .. } => {
            Keys::load_any(files.clone()).map(Some).map_err(unusable("store"))
        }
        StoreConfig::Etcd { keys: None, .. } | StoreConfig::Embedded => Ok(None),
    }
}

pub fn load(config: &Config) -> Outcome<Option<Keys>> {
    let Some(files) = &config.tls else { return Ok(None) };
    let keys = Keys::load(files.clone()).map_err(unusable("tls"))?;
    let (found, cert) = (keys.who(), files.cert.display());
    if found != Some(Who::Node(config.id.clone())) {
        let found = found.map_or_else(|| "nobody".to_owned(), |who| who.to_string());
        return Err(Failure::error(format!(
            "[tls]: {cert} speaks for {found}, and this is node {}; make its own with `tidegate tls node`",
            config.id
        )));
    }
    let host = &config.host;
    if !keys.certificate().hosts.contains(host) {
        let hosts = keys.certificate().hosts.join(", ");
        return Err(Failure::error(format!(
            "[tls]: {cert} is for {hosts}, and this node is reached at {host}: others would not believe it; \
             make one with `tidegate tls node {} --host {host}`",
            config.id
        )));
    }
    Ok(Some(keys))
}

/// Reads the files again when they have changed, or at once when told to.
pub async fn follow(keys: Keys, reload: Arc<Notify>, shutdown: CancellationToken) {
    let mut said: Option<Instant> = None;
    loop {
        if keys.ends_soon() && said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            let days = keys.certificate().lives().as_secs() / (24 * 3600);
            let cert = keys.files().cert.display();
            tracing::warn!(days, "{cert} expires soon; `tidegate tls node` makes the next");
            said = Some(Instant::now());
        }
        let at_once = tokio::select! {
            () = shutdown.cancelled() => return,
            () = reload.notified() => true,
            () = tokio::time::sleep(CERTIFICATE_LOOK) => false,
        };
        match keys.look(at_once) {
            Ok(true) => {
                tracing::info!("certificates read again; connections from here on use them");
                said = None;
            }
            Ok(false) => {}
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                tracing::error!(error, "the certificates on disk cannot be used; those from before are kept");
            }
        }
    }
}

pub fn metrics(id: &str, keys: &Keys) -> String {
    let name = "tidegate_certificate_expires_at_seconds";
    let help = "When the daemon's certificate expires, in seconds since 1970.";
    let value = keys.certificate().not_after;
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{node=\"{id}\"}} {value}\n")
}
