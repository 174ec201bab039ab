//! One line a figure.

use anyhow::bail;

/// What a figure is held against.
#[derive(Clone, Copy)]
pub enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Shown, not judged.
    None,
}

pub struct Report {
    filter: String,
    missed: Vec<String>,
}

impl Report {
    pub fn new(filter: String) -> Report {
        println!("{:<44} {:>14} {:<12} {:>16}  verdict", "name", "value", "unit", "bar");
        Report { filter, missed: Vec::new() }
    }

    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// The filter is one of these, or the beginning of one: nothing else is meant.
    pub fn names_only(&self, names: &[&str]) -> bool {
        !self.filter.is_empty() && names.iter().any(|name| name.starts_with(&self.filter))
    }

    pub fn line(&mut self, name: &str, value: f64, unit: &str, bar: Bar) {
        let (shown, met) = match bar {
            Bar::AtLeast(bar) => (format!(">= {}", number(bar)), Some(value >= bar)),
            Bar::AtMost(bar) => (format!("<= {}", number(bar)), Some(value <= bar)),
            Bar::None => ("-".to_owned(), None),
        };
        let verdict = match met {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "-",
        };
        println!("{name:<44} {:>14} {unit:<12} {shown:>16}  {verdict}", number(value));
        if met == Some(false) {
            self.missed.push(name.to_owned());
        }
    }

    pub fn finish(self) -> anyhow::Result<()> {
        if !self.missed.is_empty() {
            bail!("missed: {}", self.missed.join(", "));
        }
        Ok(())
    }
}

fn number(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
