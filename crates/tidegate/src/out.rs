//! Printing: data to stdout, everything else to stderr. A reader that has gone ends the command.

use std::io::{IsTerminal, Write};

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde_json::Value;

use crate::failure::{Failure, Outcome};

/// Writes to stdout.
pub fn bytes(data: &[u8]) -> Outcome {
    let mut out = std::io::stdout().lock();
    out.write_all(data).and_then(|()| out.flush()).map_err(Failure::of_output)
}

pub fn line(text: impl AsRef<str>) -> Outcome {
    bytes(format!("{}\n", text.as_ref()).as_bytes())
}

/// A word for people beside the data. Nobody reading it is no reason to stop.
pub fn note(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "{}", text.as_ref());
}

pub fn json(value: &Value) -> Outcome {
    line(format!("{value:#}"))
}

/// Columns without borders, as wide as the terminal at most; never cut where a program reads.
pub struct Columns {
    table: Table,
}

impl Columns {
    pub fn new(header: &[&str]) -> Columns {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(header.iter().map(|text| Cell::new(text.to_uppercase())));
        let is_terminal = std::io::stdout().is_terminal();
        match is_terminal {
            true => table.set_content_arrangement(ContentArrangement::Dynamic),
            false => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        if !is_terminal || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            table.force_no_tty();
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Columns { table }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        self.table.add_row(cells);
    }

    pub fn print(&self) -> Outcome {
        let mut text = String::new();
        for row in self.table.trim_fmt().lines() {
            text.push_str(row.trim_end());
            text.push('\n');
        }
        bytes(text.as_bytes())
    }
}

pub fn cell(text: impl ToString) -> Cell {
    Cell::new(text.to_string())
}

/// A state, coloured by how much it should worry.
pub fn state(text: &str) -> Cell {
    let color = match text {
        "up" | "ok" | "ready" | "complete" | "active" => Some(Color::Green),
        "degraded" | "pending" | "starting" | "unready" | "rolling" | "stopping" | "draining" | "queued"
        | "drained" | "drained_except" | "cancelled" | "disabled" => Some(Color::Yellow),
        "offline" | "failed" | "lost" | "node_lost" | "unknown" => Some(Color::Red),
        _ => None,
    };
    match color {
        Some(color) => Cell::new(text).fg(color),
        None => Cell::new(text),
    }
}

/// `-` where there is nothing to say.
pub fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// How long ago: `12s`, `3m`, `5h`, `2d`.
pub fn age(since: &str) -> String {
    match since.parse::<Timestamp>() {
        Ok(at) => short_span(Timestamp::now().as_second().saturating_sub(at.as_second()).max(0)),
        Err(_) => or_dash(since).to_owned(),
    }
}

/// How long, to the second while seconds matter: `14s`, `2m05s`, `1h03m`.
pub fn span(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{}s", seconds.max(0)),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Seconds from now until a time; negative if it is over.
pub fn until(time: &str) -> Option<i64> {
    let at = time.parse::<Timestamp>().ok()?;
    Some(at.as_second() - Timestamp::now().as_second())
}

fn short_span(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short_and_keep_two_digits_of_meaning() {
        let texts = [0, 59, 119, 120, 7_199, 7_200, 172_799, 172_800].map(short_span);
        assert_eq!(texts, ["0s", "59s", "119s", "2m", "119m", "2h", "47h", "2d"]);
    }
}
