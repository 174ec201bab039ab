//! `tidegate run`: what a daemon does before and after it works: logs, limits, the lock, the end.

use std::io::IsTerminal;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::{
    cli::RunArgs,
    config, daemon,
    failure::{Failure, Outcome},
    lock::DirLock,
};

pub fn run(args: RunArgs) -> Outcome {
    let config = config::load(&args.config, args.insecure)?;
    start_logging(&args.log)?;
    let _lock = DirLock::take(&config.data_dir, "daemon")?;
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::error(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(daemon::live(config, &args));
    // Reads of files and the like that never return must not hold up the end.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn start_logging(filter: &str) -> Outcome {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage(format!("--log {filter:?} is not a filter: {error}")))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    subscriber.try_init().map_err(|error| Failure::error(format!("cannot log: {error}")))
}

/// An edge holds two descriptors per connection, and the usual soft limit is 1024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("the limit of open files cannot be raised");
    }
}
