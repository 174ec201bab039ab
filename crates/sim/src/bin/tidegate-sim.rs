//! `tidegate-sim [--seeds N | --minutes N | --seed S | --script FILE] [--from S] [--trace] [--coverage]`: runs
//! seeds on all cores, prints a line per failure and a summary. The first seed that fails is made shorter, and
//! printed as a script that `--script` replays; it is kept below `target/sim` as well.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sim::{Coverage, Failure, Options, Script, play, run, shrink};

/// This many seeds reach everything that is expected of them.
const COVERING_SEEDS: u64 = 1000;
/// Runs that may be spent on making a failing seed shorter.
const SHRINK_RUNS_MAX: u32 = 600;
const SCRIPTS: &str = "target/sim";

struct Args {
    /// `None`: where nobody has been, if there is time to spend.
    from: Option<u64>,
    seeds: u64,
    minutes: Option<u64>,
    script: Option<PathBuf>,
    trace: bool,
    coverage: bool,
}

fn parse() -> Result<Args, String> {
    let mut args =
        Args { from: None, seeds: 300, minutes: None, script: None, trace: false, coverage: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut text = || words.next().ok_or_else(|| format!("{word} needs something after it"));
        let number = |text: String| text.parse().map_err(|_| format!("{text:?} is not a number"));
        match word.as_str() {
            "--seeds" => args.seeds = number(text()?)?,
            "--from" => args.from = Some(number(text()?)?),
            "--seed" => (args.from, args.seeds) = (Some(number(text()?)?), 1),
            "--minutes" => args.minutes = Some(number(text()?)?),
            "--script" => args.script = Some(text()?.into()),
            "--trace" => args.trace = true,
            "--coverage" => args.coverage = true,
            other => {
                let known = "--seeds, --minutes, --from, --seed, --script, --trace, --coverage";
                return Err(format!("{other} is not known; there are {known}"));
            }
        }
    }
    Ok(args)
}

#[derive(Default)]
struct Total {
    failures: Vec<Failure>,
    seeds: u64,
    steps: u64,
    coverage: Coverage,
}

fn main() -> ExitCode {
    let done = parse().and_then(|args| match &args.script {
        Some(path) => replay(path, args.trace),
        None => seeds(&args),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("tidegate-sim: {message}");
            ExitCode::from(2)
        }
    }
}

fn replay(path: &PathBuf, trace: bool) -> Result<bool, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let script: Script = text.parse().map_err(|why| format!("{}: {why}", path.display()))?;
    let outcome = play(&script, &Options { trace, lines: true });
    let Some(failure) = outcome.failure else {
        println!("sim: the script holds, {} steps", outcome.steps);
        return Ok(true);
    };
    show(&failure);
    Ok(false)
}

fn show(failure: &Failure) {
    println!("{failure}");
    for line in &failure.trace {
        println!("  {line}");
    }
}

fn seeds(args: &Args) -> Result<bool, String> {
    let begun = Instant::now();
    let limit = args.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let from = args.from.unwrap_or(if limit.is_some() { since_1970 * 100 } else { 1 });
    let goes_on = |seed: u64| match limit {
        Some(limit) => begun.elapsed() < limit,
        None => seed < from + args.seeds,
    };
    let next = AtomicU64::new(from);
    let total: Mutex<Total> = Mutex::default();
    let options = Options { trace: args.trace, lines: false };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !goes_on(seed) {
                        break;
                    }
                    let outcome = run(seed, &options);
                    let Ok(mut total) = total.lock() else { break };
                    if let Some(failure) = outcome.failure {
                        println!("{failure}");
                        total.failures.push(failure);
                    }
                    (total.seeds, total.steps) = (total.seeds + 1, total.steps + outcome.steps);
                    total.coverage.add(&outcome.coverage);
                }
            });
        }
    });
    let total = total.into_inner().map_err(|_| "a seed panicked".to_owned())?;
    Ok(summary(args, from, &total))
}

fn summary(args: &Args, from: u64, total: &Total) -> bool {
    if let Some(first) = total.failures.iter().min_by_key(|failure| failure.seed) {
        println!("the end of it:");
        show(first);
        make_shorter(first.seed);
    }
    if args.coverage {
        for (times, what) in total.coverage.lines() {
            println!("{times:>9}  {what}");
        }
    }
    // Fewer seeds than this, or others than the first, may well miss something rare; a rule that nothing ever
    // tries is no rule.
    let missed = total.coverage.missing();
    let blind = from == 1 && total.seeds >= COVERING_SEEDS && !missed.is_empty();
    if blind {
        println!("never reached: {missed:?}");
    }
    let (seeds, failed) = (total.seeds, total.failures.len());
    println!("sim: {seeds} seeds from {from}, {failed} failed, {} steps", total.steps);
    failed == 0 && !blind
}

/// Prints what is left of a failing seed, and keeps it.
fn make_shorter(seed: u64) {
    let Some(shrunk) = shrink(seed, SHRINK_RUNS_MAX) else { return };
    let path = PathBuf::from(SCRIPTS).join(format!("seed-{seed}.script"));
    let (all, left) = shrunk.items;
    println!("made shorter in {} runs, from {all} faults and requests to {left}:", shrunk.runs);
    print!("{}", shrunk.text());
    let kept = std::fs::create_dir_all(SCRIPTS).and_then(|()| std::fs::write(&path, shrunk.text()));
    match kept {
        Ok(()) => println!("replay it with: tidegate-sim --script {}", path.display()),
        Err(error) => println!("it could not be kept at {}: {error}", path.display()),
    }
}
