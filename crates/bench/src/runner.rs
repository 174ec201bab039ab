//! Runs benches, each in a process of its own, and shows their lines as they come.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, bail, ensure};

use crate::{
    chart,
    list::{BENCHES, Bench},
    machine::Machine,
    page,
    report::{Line, Point, Report, Said, read},
};

/// Below the top of the checkout, where `cargo xtask bench` starts us.
const PAGE: &str = "docs/benchmarks.md";
const CURVES: &str = "docs/benchmarks.svg";

/// In this process, for the one that started it.
pub fn one(name: &str) -> anyhow::Result<()> {
    let bench =
        BENCHES.iter().find(|bench| bench.figures[0] == name).with_context(|| format!("no {name}"))?;
    let mut report = Report::to_parent();
    (bench.run)(&mut report).inspect_err(|fault| report.fault(fault))
}

/// Those with a figure whose name contains the filter.
pub fn some(filter: &str) -> anyhow::Result<()> {
    let chosen: Vec<&Bench> =
        BENCHES.iter().filter(|bench| bench.figures.iter().any(|name| name.contains(filter))).collect();
    ensure!(!chosen.is_empty(), "no figure has {filter:?} in its name");
    let ran = run(&chosen);
    if !ran.points.is_empty() {
        write(CURVES, &chart::curves(&ran.points))?;
    }
    verdict(&ran.lines)
}

/// Everything, and writes the page.
pub fn all() -> anyhow::Result<()> {
    let (machine, begun) = (Machine::look()?, Instant::now());
    let ran = run(&BENCHES.iter().collect::<Vec<_>>());
    write(CURVES, &chart::curves(&ran.points))?;
    write(PAGE, &page::page(&machine, begun.elapsed(), &ran.lines))?;
    println!("\n{PAGE} and {CURVES} are written, after {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0);
    verdict(&ran.lines)
}

#[derive(Default)]
struct Ran {
    lines: Vec<Line>,
    points: Vec<Point>,
}

fn run(benches: &[&Bench]) -> Ran {
    let mut ran = Ran::default();
    show(["name", "value", "unit", "bar", "verdict"].map(String::from));
    for bench in benches {
        let before = ran.lines.len();
        if let Some(program) = bench.needs.iter().find(|program| !is_there(program)) {
            let why = format!("no {program} on the PATH");
            let lines =
                bench.figures.iter().map(|name| Line::NotRun { name: (*name).to_owned(), why: why.clone() });
            ran.lines.extend(lines);
            ran.lines[before..].iter().for_each(|line| show(line.cells()));
        } else if let Err(fault) = follow(bench, &mut ran) {
            let line = Line::Failed { name: bench.figures[0].to_owned(), why: format!("{fault:#}") };
            show(line.cells());
            ran.lines.push(line);
        }
    }
    ran
}

/// Starts a bench and takes what it says, until it ends.
fn follow(bench: &Bench, ran: &mut Ran) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--one", bench.figures[0]]).stdout(Stdio::piped());
    let mut child = command.spawn().context("starting it")?;
    let said = BufReader::new(child.stdout.take().context("its output")?);
    let mut fault = None;
    for line in said.lines() {
        match read(&line?) {
            Some(Said::Figure(figure)) => {
                let line = Line::Measured(figure);
                show(line.cells());
                ran.lines.push(line);
            }
            Some(Said::Point(point)) => ran.points.push(point),
            Some(Said::Fault(why)) => fault = Some(why),
            None => {}
        }
    }
    let status = child.wait()?;
    match fault {
        Some(why) => bail!("{why}"),
        None => ensure!(status.success(), "it ended with {status}"),
    }
    Ok(())
}

pub fn show([name, value, unit, bar, verdict]: [String; 5]) {
    println!("{name:<48} {value:>12} {unit:<12} {bar:>12}  {verdict}");
}

fn verdict(lines: &[Line]) -> anyhow::Result<()> {
    let missed: Vec<&str> = lines.iter().filter_map(Line::missed).collect();
    ensure!(missed.is_empty(), "missed: {}", missed.join(", "));
    Ok(())
}

/// On the PATH, or where Debian keeps the programs of PostgreSQL.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = debian.map(|version| version.path().join("bin"));
    std::env::split_paths(&path).chain(debian).any(|dir| dir.join(program).is_file())
}

fn write(path: &str, text: &str) -> anyhow::Result<()> {
    let folder = Path::new(path).parent().context("a file in a folder")?;
    ensure!(folder.is_dir(), "{} is not here: start it at the top of the checkout", folder.display());
    std::fs::write(path, text).with_context(|| format!("writing {path}"))
}
