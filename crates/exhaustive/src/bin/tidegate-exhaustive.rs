//! Explores one configuration after the other and prints what came of each.

use std::{process::ExitCode, time::Instant};

use exhaustive::{Config, broken, explore, futures_agree, large, small};

const USAGE: &str = "usage: tidegate-exhaustive [--progress] [--agree] [NAME…]

Goes through every state of small clusters: of those named, or of all, which takes hours.
  --progress  says how far it is
  --agree     compares, for each state that is reached again, what can follow with what followed at first

names, in the order of how long they take:";

/// What is wrong with the arguments; the usage, if that is asked for.
fn refuse(names: &[String]) -> Option<ExitCode> {
    let broken = broken().into_iter().map(|(config, _)| config);
    let known: Vec<&str> =
        small().into_iter().chain(large()).chain(broken).map(|config| config.name).collect();
    let usage = || {
        println!("{USAGE}");
        known.iter().for_each(|name| println!("  {name:?}"));
    };
    for name in names {
        match name.as_str() {
            "--progress" | "--agree" => (),
            "--help" | "-h" => {
                usage();
                return Some(ExitCode::SUCCESS);
            }
            name if known.contains(&name) => (),
            name => {
                usage();
                eprintln!("error: there is no search and no option {name:?}");
                return Some(ExitCode::from(2));
            }
        }
    }
    None
}

fn main() -> ExitCode {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = refuse(&names) {
        return code;
    }
    let progress = names.iter().any(|name| name == "--progress");
    let agree = names.iter().any(|name| name == "--agree");
    names.retain(|name| !name.starts_with("--"));
    let named = |config: &Config| names.is_empty() || names.iter().any(|name| name == config.name);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all_hold = true;
    println!(
        "{:<28} {:>9} {:>10} {:>6} {:>6} {:>9}",
        "search", "states", "steps", "depth", "away", "seconds"
    );
    // Those that are broken on purpose are shown only to who asks for them.
    let broken = broken().into_iter().map(|(config, _)| config).filter(|_| !names.is_empty());
    for config in small().into_iter().chain(large()).chain(broken).filter(named) {
        let (name, began) = (config.name, Instant::now());
        if agree {
            let agreed = futures_agree(config);
            all_hold &= agreed.is_ok();
            println!("{name:<28} {agreed:?} {:>9.1}", began.elapsed().as_secs_f64());
            continue;
        }
        let outcome = explore(config, threads, progress);
        let seconds = began.elapsed().as_secs_f64();
        let (unique, steps, depth) = (outcome.unique, outcome.steps, outcome.depth);
        let away = outcome.distances.to_right;
        println!("{name:<28} {unique:>9} {steps:>10} {depth:>6} {away:>6} {seconds:>9.1}");
        if let Some(broke) = &outcome.broken {
            all_hold = false;
            println!("  invariant {}: {}", broke.invariant, broke.what);
            for action in &broke.path {
                println!("    {action}");
            }
        }
        for missed in &outcome.missed {
            all_hold = false;
            println!("  never reached: {missed}");
        }
    }
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
