//! `tidegate-sim --seeds N [--from S] [--seed S] [--trace] [--coverage]`: runs seeds on all cores, prints
//! a line per failure and a summary.

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use sim::{Coverage, EXPECTED, Failure, Options, run};

/// This many seeds reach everything that is expected of them.
const COVERING_SEEDS: u64 = 300;

struct Args {
    from: u64,
    seeds: u64,
    trace: bool,
    coverage: bool,
}

fn parse() -> Result<Args, String> {
    let mut args = Args { from: 1, seeds: 300, trace: false, coverage: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{text:?} is not a number"))
        };
        match word.as_str() {
            "--seeds" => args.seeds = number()?,
            "--from" => args.from = number()?,
            "--seed" => (args.from, args.seeds) = (number()?, 1),
            "--trace" => args.trace = true,
            "--coverage" => args.coverage = true,
            other => {
                return Err(format!(
                    "{other} is not known; there are --seeds, --from, --seed, --trace, --coverage"
                ));
            }
        }
    }
    Ok(args)
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(args) => args,
        Err(message) => {
            eprintln!("tidegate-sim: {message}");
            return ExitCode::from(2);
        }
    };
    let next = AtomicU64::new(args.from);
    let total: Mutex<(Vec<Failure>, u64, Coverage)> = Mutex::default();
    let options = Options { trace: args.trace };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(args.seeds as usize) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= args.from + args.seeds {
                        break;
                    }
                    let outcome = run(seed, &options);
                    let Ok(mut total) = total.lock() else { break };
                    if let Some(failure) = outcome.failure {
                        println!("{failure}");
                        total.0.push(failure);
                    }
                    total.1 += outcome.steps;
                    total.2.add(&outcome.coverage);
                }
            });
        }
    });
    let Ok((failures, steps, coverage)) = total.into_inner() else { return ExitCode::FAILURE };
    if let Some(first) = failures.iter().min_by_key(|failure| failure.seed) {
        println!("the end of seed {}:", first.seed);
        for line in &first.trace {
            println!("  {line}");
        }
    }
    if args.coverage {
        for what in EXPECTED {
            println!("{:>9}  {what}", coverage.times(what));
        }
    }
    // Fewer seeds than this may well miss something; a rule that nothing ever tries is no rule.
    let missed: Vec<_> = EXPECTED.iter().filter(|what| coverage.times(what) == 0).collect();
    let blind = args.seeds >= COVERING_SEEDS && !missed.is_empty();
    if blind {
        println!("never reached: {missed:?}");
    }
    println!("sim: {} seeds, {} failed, {steps} steps", args.seeds, failures.len());
    if failures.is_empty() && !blind { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
