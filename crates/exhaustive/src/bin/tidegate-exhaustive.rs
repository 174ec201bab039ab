//! Explores one configuration after the other and prints what came of each.

use std::{process::ExitCode, time::Instant};

use exhaustive::{Budget, Config, explore};

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let _ = name;
    let budget = Budget { drains: 1, ..Budget::default() };
    let began = Instant::now();
    let outcome = explore(Config::small("drain", budget), 2, true);
    println!("{outcome:#?} {:?}", began.elapsed());
    ExitCode::SUCCESS
}
