//! What people run while working on Tidegate: `cargo xtask test`, `bench`, `sim`, `exhaust`, `tidy`, `deny`.

#![forbid(unsafe_code)]

mod deny;
mod install;
mod run;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tests, benches, simulations and house rules of Tidegate")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that must hold: format, clippy, tidy, deny, all tests, the simulator. Installs what is missing.
    Test {
        /// Seeds for the simulator.
        #[arg(long, default_value_t = 2000)]
        seeds: u64,
    },
    /// The figures of design.md section 11 and more, one line each: name, value, unit, bar, verdict.
    ///
    /// Without a name all of them, which takes some ten minutes and writes docs/benchmarks.md with its curves.
    /// A bench whose programs (etcd, PostgreSQL, Redis) are not here says so in its lines; a bar that is missed is
    /// an error.
    ///
    /// Absolute times are those of this machine and of what else it does. What real daemons write goes to a
    /// directory below TMPDIR; in /dev/shm the disk is out of the figure.
    Bench {
        /// Only those whose name contains this.
        #[arg(default_value = "")]
        filter: String,
        /// Instead, the drain of a hundred processes beside the same one by the `nomad` that is on the PATH.
        #[arg(long, conflicts_with = "filter")]
        nomad: bool,
    },
    /// Whole clusters under seeded faults. A failure prints its seed, which reproduces it, and a script that is
    /// shorter.
    Sim {
        #[arg(long, default_value_t = 300)]
        seeds: u64,
        /// As many as fit into so many minutes, from where nobody has been.
        #[arg(long, conflicts_with = "seeds")]
        minutes: Option<u64>,
        /// Just this one.
        #[arg(long)]
        seed: Option<u64>,
        /// What a failing seed was made shorter to.
        #[arg(long)]
        script: Option<std::path::PathBuf>,
        /// Print what happens.
        #[arg(long)]
        trace: bool,
        /// Print how often interesting things were reached.
        #[arg(long)]
        coverage: bool,
    },
    /// Every state of a small cluster, under faults at every moment. Prints the number of states of each
    /// search; one that finds something wrong prints how it comes to that.
    Exhaust {
        /// Only these searches; all of them take hours.
        names: Vec<String>,
        /// Print now and then how far a search is.
        #[arg(long)]
        progress: bool,
        /// Try instead whether what counts as one state has one future.
        #[arg(long)]
        agree: bool,
    },
    /// The rules of the house: pure crates, arrows between crates, sizes, opening words, where `unsafe` may stand.
    Tidy,
    /// Licences, sources and duplicates of what is built in, by deny.toml.
    Deny,
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Test { seeds } => test(seeds),
        Task::Bench { filter, nomad } => bench(if nomad { "--nomad" } else { &filter }),
        Task::Sim { seeds, minutes, seed, script, trace, coverage } => {
            let mut args = match (script, seed, minutes) {
                (Some(script), _, _) => vec!["--script".to_owned(), script.display().to_string()],
                (None, Some(seed), _) => vec!["--seed".to_owned(), seed.to_string()],
                (None, None, Some(minutes)) => vec!["--minutes".to_owned(), minutes.to_string()],
                (None, None, None) => vec!["--seeds".to_owned(), seeds.to_string()],
            };
            args.extend(trace.then(|| "--trace".to_owned()));
            args.extend(coverage.then(|| "--coverage".to_owned()));
            sim(&args)
        }
        Task::Exhaust { names, progress, agree } => exhaust(names, progress, agree),
        Task::Tidy => tidy::check(),
        Task::Deny => deny::check(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("xtask: {fault:#}");
            ExitCode::FAILURE
        }
    }
}

fn test(seeds: u64) -> anyhow::Result<()> {
    install::etcd()?;
    install::postgresql()?;
    install::redis()?;
    install::python()?;
    install::pd();
    install::schemathesis();
    run::step("format", "cargo", &["fmt", "--all", "--check"])?;
    run::step("clippy", "cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    run::heading("tidy");
    tidy::check()?;
    run::heading("deny");
    deny::check()?;
    // Instances under test are real processes of the real binary.
    run::step("build", "cargo", &["build", "--package", "tidegate"])?;
    run::step("tests", "cargo", &["test", "--workspace"])?;
    run::heading("simulations");
    sim(&["--seeds".to_owned(), seeds.to_string()])?;
    println!("\nall green");
    Ok(())
}

fn bench(what: &str) -> anyhow::Result<()> {
    for (program, installed) in
        [("etcd", install::etcd()), ("PostgreSQL", install::postgresql()), ("Redis", install::redis())]
    {
        if let Err(fault) = installed {
            println!("{program} is not here, and what needs it is not measured: {fault:#}");
        }
    }
    run::step("build", "cargo", &["build", "--release", "--package", "tidegate"])?;
    run::cargo(&["run", "--release", "--quiet", "--package", "tidegate-bench", "--", what])
}

fn exhaust(names: Vec<String>, progress: bool, agree: bool) -> anyhow::Result<()> {
    let mut args: Vec<String> =
        ["run", "--release", "--quiet", "--package", "tidegate-exhaustive", "--"].map(String::from).to_vec();
    args.extend(progress.then(|| "--progress".into()));
    args.extend(agree.then(|| "--agree".into()));
    args.extend(names);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run::cargo(&args)
}

fn sim(args: &[String]) -> anyhow::Result<()> {
    let cargo = ["run", "--release", "--quiet", "--package", "tidegate-sim", "--"];
    let args: Vec<&str> = cargo.into_iter().chain(args.iter().map(String::as_str)).collect();
    run::cargo(&args)
}
