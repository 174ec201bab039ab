//! The figures of design.md section 11 and those that show how they come about, one line each:
//! `name value unit bar verdict`. Absolute times differ between machines; run it where you care.
//!
//! Without a name all benches run, and `docs/benchmarks.md` is written with what they said. *Invariant:* nothing
//! here is a test: a bar that is missed is a figure, and the exit code says so.

#![forbid(unsafe_code)]

mod chart;
mod cluster;
mod core;
mod draining;
mod feeds;
mod list;
mod machine;
mod many_feeds;
mod office;
mod page;
mod real;
mod report;
mod runner;
mod scaling;
mod slots;
mod stores;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--one", name] => runner::one(name),
        ["--size", nodes, units] => scaling::size(nodes, units),
        ["--nomad"] => real::nomad::compare(),
        [] | [""] => runner::all(),
        [filter] => runner::some(filter),
        _ => anyhow::bail!("one name at most, not {arguments:?}"),
    }
}
