//! The daemon: roles put together from a configuration.

use crate::{cli::RunArgs, config, failure::Outcome};

pub fn run(args: RunArgs) -> Outcome {
    let config = config::load(&args.config, args.insecure)?;
    crate::out::line(format!("{config:?}"))
}
