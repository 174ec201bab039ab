//! One line a figure: what a bench says, and how it is judged.
//!
//! Every bench runs in a process of its own, so that none is measured with what another left in memory. It says its
//! lines with tabs on its standard output; the process that started it judges and shows them.

use std::fmt;

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Shown, not judged.
    None,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::AtLeast(bar) => write!(f, ">= {}", number(*bar)),
            Bar::AtMost(bar) => write!(f, "<= {}", number(*bar)),
            Bar::None => write!(f, "-"),
        }
    }
}

/// Where a bench says its figures.
pub struct Report(());

impl Report {
    pub fn to_parent() -> Report {
        Report(())
    }

    pub fn line(&mut self, name: &str, value: f64, unit: &str, bar: Bar) {
        let (kind, bar) = match bar {
            Bar::AtLeast(bar) => ("at_least", bar),
            Bar::AtMost(bar) => ("at_most", bar),
            Bar::None => ("none", 0.0),
        };
        println!("figure\t{name}\t{value}\t{unit}\t{kind}\t{bar}");
    }

    /// One point of a curve over the number of units, for so many nodes.
    pub fn point(&mut self, point: &Point) {
        let Point { chart, nodes, units, value } = point;
        println!("point\t{chart}\t{nodes}\t{units}\t{value}");
    }

    pub fn fault(&mut self, fault: &anyhow::Error) {
        println!("fault\t{}", format!("{fault:#}").replace(['\t', '\n'], " "));
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub bar: Bar,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub chart: String,
    pub nodes: usize,
    pub units: usize,
    pub value: f64,
}

/// What a bench said, read back.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Figure(Figure),
    Point(Point),
    Fault(String),
}

/// `None`: no line of ours.
pub fn read(line: &str) -> Option<Said> {
    let fields: Vec<&str> = line.split('\t').collect();
    match fields.as_slice() {
        ["figure", name, value, unit, kind, bar] => {
            let bar: f64 = bar.parse().ok()?;
            let bar = match *kind {
                "at_least" => Bar::AtLeast(bar),
                "at_most" => Bar::AtMost(bar),
                "none" => Bar::None,
                _ => return None,
            };
            let (name, unit) = ((*name).to_owned(), (*unit).to_owned());
            Some(Said::Figure(Figure { name, value: value.parse().ok()?, unit, bar }))
        }
        ["point", chart, nodes, units, value] => Some(Said::Point(Point {
            chart: (*chart).to_owned(),
            nodes: nodes.parse().ok()?,
            units: units.parse().ok()?,
            value: value.parse().ok()?,
        })),
        ["fault", text] => Some(Said::Fault((*text).to_owned())),
        _ => None,
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    Measured(Figure),
    /// It needs something that this machine does not have.
    NotRun {
        name: String,
        why: String,
    },
    Failed {
        name: String,
        why: String,
    },
}

impl Line {
    pub fn is_judged(&self) -> bool {
        match self {
            Line::Measured(figure) => figure.bar != Bar::None,
            Line::NotRun { .. } | Line::Failed { .. } => true,
        }
    }

    /// The name, if it is not as it should be.
    pub fn missed(&self) -> Option<&str> {
        match self {
            Line::Measured(figure) if figure.meets() == Some(false) => Some(&figure.name),
            Line::Failed { name, .. } => Some(name),
            Line::Measured(_) | Line::NotRun { .. } => None,
        }
    }

    /// Name, value, unit, bar, verdict.
    pub fn cells(&self) -> [String; 5] {
        let none = || "-".to_owned();
        match self {
            Line::Measured(figure) => {
                let verdict = match figure.meets() {
                    Some(true) => "reached",
                    Some(false) => "MISSED",
                    None => "-",
                };
                let unit = if figure.unit.is_empty() { none() } else { figure.unit.clone() };
                let (name, value) = (figure.name.clone(), number(figure.value));
                [name, value, unit, figure.bar.to_string(), verdict.to_owned()]
            }
            Line::NotRun { name, why } => [name.clone(), none(), none(), none(), format!("not run: {why}")],
            Line::Failed { name, why } => [name.clone(), none(), none(), none(), format!("FAILED: {why}")],
        }
    }
}

impl Figure {
    fn meets(&self) -> Option<bool> {
        match self.bar {
            Bar::AtLeast(bar) => Some(self.value >= bar),
            Bar::AtMost(bar) => Some(self.value <= bar),
            Bar::None => None,
        }
    }
}

pub fn number(value: f64) -> String {
    match value {
        _ if value == 0.0 => "0".to_owned(),
        _ if value >= 100.0 => grouped(value.round() as u64),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// With a comma every three digits.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bench_says_is_read_back_and_judged() {
        let Some(Said::Figure(figure)) = read("figure\tplacing\t250000\t/s\tat_least\t200000") else {
            panic!("a figure");
        };
        let line = Line::Measured(figure);
        assert_eq!(line.cells().join(" "), "placing 250,000 /s >= 200,000 reached");
        assert_eq!(line.missed(), None);
        let Some(Said::Figure(figure)) = read("figure\ttick\t2\tms\tat_most\t1") else { panic!("a figure") };
        assert_eq!(Line::Measured(figure).missed(), Some("tick"));
        assert_eq!(read("starting etcd"), None);
    }

    #[test]
    fn a_bench_that_cannot_run_here_is_no_miss_and_one_that_failed_is() {
        let (name, why) = ("slots".to_owned(), "no redis-server on the PATH".to_owned());
        let not_run = Line::NotRun { name: name.clone(), why: why.clone() };
        assert_eq!(not_run.cells()[4], "not run: no redis-server on the PATH");
        assert_eq!(not_run.missed(), None);
        assert_eq!(Line::Failed { name, why }.missed(), Some("slots"));
    }

    #[test]
    fn numbers_are_short_enough_to_read() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(12.345), "12.35");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(0.00012), "0.0001");
    }
}
