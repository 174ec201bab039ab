//! `docs/benchmarks.md`: what was measured, on what, and how to do it again.

use std::{fmt::Write as _, time::Duration};

use crate::{
    machine::{Machine, load},
    report::Line,
};

pub fn page(machine: &Machine, took: Duration, lines: &[Line]) -> String {
    let Machine { processor, cores, memory_gib, kernel, file_system, date, commit, load: before } = machine;
    let (minutes, after) = (took.as_secs_f64() / 60.0, load());
    let (judged, shown) = (table(lines.iter().filter(|line| line.is_judged())), table(lines.iter()));
    format!(
        "# Benchmarks\n\n\
         Written by `cargo xtask bench`, which runs everything below; `cargo xtask bench NAME` runs those whose name \
         contains `NAME` and writes nothing here. It exits with an error if a bar is missed.\n\n\
         | | |\n|---|---|\n\
         | machine | {cores} cores ({processor}), {memory_gib:.0} GiB |\n\
         | kernel | Linux {kernel} |\n\
         | file system | {file_system} |\n\
         | date | {date}, {minutes:.0} minutes |\n\
         | commit | {commit} |\n\
         | load average | {before:.1} before it, {after:.1} at its end: what was above zero before it, somebody else \
         had to do |\n\n\
         ## What is held against a bar\n\n{judged}\n\
         ## How it grows\n\n\
         The planner and the coordinator alone, in one thread: from a thousand units to a million, on ten nodes to ten \
         thousand, at most 1,500 units on a node. A drain is that of the fullest node: on fewer nodes it has more to \
         decide.\n\n\
         ![Placing rate, deciding a drain, idle tick and memory per unit, over units and nodes](benchmarks.svg)\n\n\
         ## Everything that was measured\n\n{EXPLAINED}\n{shown}"
    )
}

/// What names alone do not say.
const EXPLAINED: &str = "\
- `moving_100_processes_*`: a hundred real processes, ready 0.2 s after their start, off a node; *by hand* is the floor: \
the same processes started, watched and stopped by a program that knows all there is to know.\n\
- `requests_*`: 16 clients, half of them with a new connection for each request, through the edge while two nodes drain in \
turn.\n\
- `coordinator_killed_*`: SIGKILL in the middle of a drain, three candidates on a three-member etcd with the lease of \
production, 5 s.\n\
- `workers_10k_*`: ten thousand simulated workers in one process, each the real state machine of a node behind a real \
stream of its own to one real coordinator on loopback with the embedded store; 100,000 instances that are ready at once; then \
100 of the nodes drain together. Processor time is that of the coordinator's process, in per cent of one core; heartbeats \
come once a second from each. Latencies of commits are read from the coordinator's own histogram, within its buckets.\n\
- `dispatchers_10k_*`: real daemons and streams, a pipeline that does nothing.\n\
- `hand_over_gap_*`: from the last row that the old dispatcher wrote to the first of the new one, over files.\n\
- `feeds_10k_*`: the coordinator alone with 10,000 feeds of 100 dispatchers each.\n\
- `feed_rows_*`: PostgreSQL to PostgreSQL, the same changes, beside the server's own logical replication.\n\
- `redis_slots_*`: a quarter of all slots off a node, in turn with `redis-cli --cluster reshard`.\n";

fn table<'a>(lines: impl Iterator<Item = &'a Line>) -> String {
    let mut text = "| name | value | unit | bar | verdict |\n|---|---:|---|---:|---|\n".to_owned();
    for line in lines {
        let [name, value, unit, bar, verdict] = line.cells().map(|cell| cell.replace('|', "\\|"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| `{name}` | {value} | {unit} | {bar} | {verdict} |");
    }
    text
}
