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

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::{
    cli::{Cli, Command, DemoCommand},
    failure::{Failure, Outcome},
};

fn main() -> ExitCode {
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

fn carry_out(cli: Cli) -> Outcome {
    match cli.command {
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
            out::bytes(&script)
        }
        Command::Run(args) => run::run(args),
        Command::Dev(args) => dev::dev(args),
        // On the main thread, without a runtime: the instance dies with the thread that forked it.
        Command::Shim { dir } => by_code(worker::shim::shim_main(&dir)),
        // The same, and there is no other thread that a child could miss.
        Command::Shims { .. } => by_code(worker::shim::nursery::nursery_main()),
        // As a shim: the user's process dies with the thread that forked it.
        Command::Guard { arguments } => by_code(pipelines::command::guard::guard_main(arguments)),
        Command::Leash { command } => one_thread()?.block_on(leash::leash(&command)),
        Command::Demo(which) => one_thread()?.block_on(demo(which)).map_err(Failure::from),
        Command::Tls(command) => commands::tls(command),
        command => one_thread()?.block_on(commands::run(&cli.global, command)),
    }
}

/// As the process says it itself.
fn by_code(code: i32) -> Outcome {
    match code {
        0 => Ok(()),
        code => Err(Failure { code: u8::try_from(code).unwrap_or(1), message: None }),
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
