//! A whole cluster in one thread under a seeded clock: the real coordinator, nodes and edges of
//! `protocol`, among simulated machines, networks, processes and a simulated store that all fail.
//!
//! Owns the world around the actors and what must hold in it. First faults happen and nothing may break
//! (safety); then they end and everything must come right within a bounded time (liveness). A failure
//! names its seed, and the seed brings it back.
//!
//! *Invariant:* nothing here reads a clock, does I/O (but for printing a trace) or iterates a
//! `HashMap`: a seed is all that a run depends on.

#![forbid(unsafe_code)]

mod clients;
mod closed;
mod coverage;
mod drains;
mod faults;
mod feeds;
mod limits;
mod liveness;
mod machine;
mod marks;
mod net;
mod office;
mod process;
mod rng;
mod scratch;
mod script;
mod shrink;
mod store;
mod stores;
mod swarm;
mod trace;
mod truth;
mod workload;
mod world;

pub use coverage::{CODES_OUT_OF_REACH, Coverage, EXPECTED, codes_expected};
pub use script::{Item, Played, Script};
pub use shrink::{Shrunk, reduce, shrink};
pub use swarm::Swarm;

use world::World;

/// How to run a seed. What happens in it is drawn from the seed alone.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Print every line of the trace as it comes.
    pub trace: bool,
    /// Keep its last lines, and have all of them in its hash. A failing run has them in any case.
    pub lines: bool,
}

/// One thing that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    /// The number of the invariant in section 10 of the design.
    pub invariant: u32,
    /// Virtual milliseconds since the beginning.
    pub at: u64,
    pub message: String,
    /// The last lines of the trace.
    pub trace: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.at as f64 / 1000.0;
        write!(f, "seed {}: invariant {} at t={at:.3}s: {}", self.seed, self.invariant, self.message)
    }
}

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub failure: Option<Failure>,
    pub steps: u64,
    /// Two runs of a seed have the same.
    pub trace_hash: u64,
    pub coverage: Coverage,
    /// Faults and requests, in order.
    pub played: Vec<Played>,
}

/// Runs one seed to its end, or to its first failure.
pub fn run(seed: u64, options: &Options) -> Outcome {
    let script = Script::whole(seed);
    let outcome = play(&script, options);
    match outcome.failure.is_some() && !options.trace && !options.lines {
        // Once more, for what led to it.
        true => play(&script, &Options { lines: true, ..options.clone() }),
        false => outcome,
    }
}

/// Runs a script to its end, or to its first failure.
pub fn play(script: &Script, options: &Options) -> Outcome {
    World::new(script, options).run()
}
