//! The one binary: commands, configuration, the daemon's assembly, and `dev`.
//!
//! *Invariant:* nothing here decides anything about a cluster. Commands say what the server answered;
//! the daemon puts layers together.

#![forbid(unsafe_code)]

mod access;
mod certificates;
mod cli;
mod client;
mod commands;
mod config;
mod daemon;
mod demo;
mod dev;
mod failure;
#[cfg(test)]
mod hostile_tests;
mod leash;
mod lock;
mod out;
mod run;
mod service_file;
mod stop;
mod target;
mod toml_at;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory, Parser};

use crate::{
    cli::{Cli, Command, DemoCommand},
    failure::{Failure, Outcome},
};

fn main() -> ExitCode {
    if let Some(dir) = shim_dir() {
        return ExitCode::from(shim_code(&dir));
    }
    let cli = Cli::parse();
    match carry_out(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            if let Some(message) = message {
                out::note(format!("error: {message}"));
            }
            ExitCode::from(code)
        }
    }
}

/// The directory of `tidegate shim DIR`, as daemons write it. One runs per instance, and none needs to know all
/// the commands that there are.
fn shim_dir() -> Option<PathBuf> {
    let mut words = std::env::args_os().skip(1);
    let dir = words.next().filter(|word| word == "shim").and_then(|_| words.next()).map(PathBuf::from);
    dir.filter(|dir| dir.is_absolute() && words.next().is_none())
}

/// On the main thread, without a runtime: the instance dies with the thread that forked it.
fn shim_code(dir: &Path) -> u8 {
    u8::try_from(worker::shim::shim_main(dir)).unwrap_or(1)
}

fn carry_out(cli: Cli) -> Outcome {
    match cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
            out::bytes(&script)
        }
        Command::Run(args) => run::run(args),
        Command::Dev(args) => dev::dev(args),
        Command::Shim { dir } => match shim_code(&dir) {
            0 => Ok(()),
            code => Err(Failure { code, message: None }),
        },
        // As a shim: the user's process dies with the thread that forked it.
        Command::Guard { arguments } => match pipelines::command::guard::guard_main(arguments) {
            0 => Ok(()),
            code => Err(Failure { code: u8::try_from(code).unwrap_or(1), message: None }),
        },
        Command::Leash { command } => one_thread()?.block_on(leash::leash(&command)),
        Command::Demo(which) => one_thread()?.block_on(demo(which)).map_err(Failure::from),
        Command::Tls(command) => commands::tls(command),
        command => one_thread()?.block_on(commands::run(&cli.global, command)),
    }
}

async fn demo(which: DemoCommand) -> anyhow::Result<()> {
    match which {
        DemoCommand::Web { port } => demo::demo_web(port).await,
        DemoCommand::Batch => demo::demo_batch().await,
        DemoCommand::System => demo::demo_system().await,
        DemoCommand::Store => demo::demo_store().await,
        DemoCommand::Orders { dir } => demo::demo_orders(&dir).await,
    }
}

/// Commands wait for one answer at a time.
fn one_thread() -> Outcome<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::error(format!("cannot start: {error}")))
}
