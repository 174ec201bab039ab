//! The drain as a picture that is redrawn in place.

use std::{collections::BTreeMap, io::Write, time::Duration};

use server::view::DrainStatusView;

use super::{
    is_over, lines,
    tally::{self, CLASSES, Counts},
};
use crate::out;

const BAR: usize = 24;
/// Where the text of a line that begins with a word like `waits` starts.
const INDENT: usize = 11;
/// More moves than this at a time are counted instead of listed.
const MOVES_SHOWN: usize = 8;
const BLOCKERS_SHOWN: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Bold,
    Good,
    Wait,
    Bad,
}

pub type Line = (Paint, String);

/// Draws over what it drew before.
#[derive(Default)]
pub struct Live {
    drawn: usize,
    /// The most of each class that was seen on each node: the full length of its bar.
    tops: BTreeMap<String, Counts>,
}

impl Live {
    pub fn show(&mut self, epoch: u64, parts: &[&DrainStatusView], note: Option<&str>, elapsed: Duration) {
        for part in parts {
            let tops = self.tops.entry(part.node.clone()).or_default();
            for (top, count) in tops.iter_mut().zip(tally::counts(&part.remaining)) {
                *top = count.max(*top);
            }
        }
        let (width, height) = size();
        let lines = frame(epoch, parts, &self.tops, note, elapsed);
        self.draw(&fit(lines, width, height));
    }

    /// Nothing of it stays.
    pub fn clear(&mut self) {
        self.draw(&[]);
    }

    fn draw(&mut self, lines: &[Line]) {
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A\r", self.drawn));
        }
        // Without wrapping: a line that the terminal counts wider than we do must not become two.
        text.push_str("\x1b[?7l");
        let is_coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        for (paint, line) in lines {
            let code = match paint {
                Paint::Plain => "",
                Paint::Bold => "\x1b[1m",
                Paint::Good => "\x1b[32m",
                Paint::Wait => "\x1b[33m",
                Paint::Bad => "\x1b[31m",
            };
            match is_coloured && !code.is_empty() {
                true => text.push_str(&format!("{code}{line}\x1b[0m\x1b[K\n")),
                false => text.push_str(&format!("{line}\x1b[K\n")),
            }
        }
        text.push_str("\x1b[J\x1b[?7h");
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        self.drawn = lines.len();
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// Wrapped to the terminal's width and cut to its height: what is higher could not be drawn over.
fn fit(lines: Vec<Line>, width: usize, height: usize) -> Vec<Line> {
    let wrapped = lines.into_iter().flat_map(|(paint, line)| {
        // What others wrote (messages, names) must not command the terminal.
        let clean: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        wrap(&clean, width).into_iter().map(move |line| (paint, line))
    });
    let mut lines: Vec<Line> = wrapped.collect();
    let room = height.saturating_sub(1).max(1);
    if lines.len() > room {
        let hidden = lines.len() - room + 1;
        lines.truncate(room - 1);
        let text = format!("… {hidden} more lines: tidegate drain status shows all");
        lines.push((Paint::Plain, text.chars().take(width).collect()));
    }
    lines
}

/// At spaces where there are any; what follows is indented to where the texts begin.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut chars: Vec<char> = line.chars().collect();
    let mut wrapped = Vec::new();
    while chars.len() > width.max(2 * INDENT) {
        let width = width.max(2 * INDENT);
        let space = chars[..width].iter().rposition(|c| *c == ' ').filter(|at| *at > INDENT);
        let rest = chars.split_off(space.unwrap_or(width));
        wrapped.push(chars.into_iter().collect());
        let rest = rest.into_iter().skip_while(|c| *c == ' ');
        chars = std::iter::repeat_n(' ', INDENT).chain(rest).collect();
    }
    wrapped.push(chars.into_iter().collect());
    wrapped
}

/// What there is to see, most of it first.
pub fn frame(
    epoch: u64,
    parts: &[&DrainStatusView],
    tops: &BTreeMap<String, Counts>,
    note: Option<&str>,
    elapsed: Duration,
) -> Vec<Line> {
    let mut lines = Vec::new();
    let message = parts.first().map(|part| part.message.as_str()).filter(|text| !text.is_empty());
    let message = message.map(|text| format!(" · {text}")).unwrap_or_default();
    let time = out::span(elapsed.as_secs() as i64);
    lines.push((Paint::Bold, format!("drain {epoch}{message} · {time}")));
    for part in parts {
        match part.state.as_str() {
            "draining" => draining(part, tops.get(&part.node), &mut lines),
            "drained" => lines.push((Paint::Good, format!("{}  {}", part.node, lines::progress(part)))),
            _ if is_over(part) => {
                lines.push((Paint::Bad, format!("{}  {}", part.node, lines::progress(part))))
            }
            _ => lines.push((Paint::Wait, format!("{}  {}", part.node, lines::progress(part)))),
        }
    }
    lines.extend(note.map(|note| (Paint::Bad, note.to_owned())));
    lines.push((Paint::Plain, "Ctrl-C leaves; the drain goes on".to_owned()));
    lines
}

fn draining(part: &DrainStatusView, tops: Option<&Counts>, lines: &mut Vec<Line>) {
    let percent = (part.progress * 100.0).floor();
    let mut head = vec![format!("{}/{} done ({percent}%)", part.done, part.total)];
    head.extend(tally::deadline(part));
    lines.push((Paint::Bold, format!("{}  {}", part.node, head.join(" · "))));
    lines.push((Paint::Plain, format!("  {}", tally::eta(part))));
    let counts = tally::counts(&part.remaining);
    let tops = tops.copied().unwrap_or(counts);
    for ((class, left), top) in CLASSES.iter().zip(counts).zip(tops) {
        if top > 0 {
            let paint = if left == 0 { Paint::Good } else { Paint::Plain };
            lines.push((paint, format!("  {class:<12} {} {}", bar(top - left, top), of_class(left, top))));
        }
    }
    if part.stalled {
        lines.push((Paint::Bad, "  stalled: nothing has left for a while".to_owned()));
    }
    for blocker in part.blockers.iter().take(BLOCKERS_SHOWN) {
        let name = tally::name(&blocker.unit);
        lines.push((Paint::Bad, format!("  blocked  {} {name}: {}", blocker.code, blocker.message)));
        if !blocker.hint.is_empty() {
            lines.push((Paint::Plain, format!("           what to do: {}", blocker.hint)));
        }
    }
    if part.blockers.len() > BLOCKERS_SHOWN {
        let more = part.blockers.len() - BLOCKERS_SHOWN;
        lines.push((Paint::Bad, format!("  blocked  {more} more")));
    }
    moves(part, lines);
}

fn moves(part: &DrainStatusView, lines: &mut Vec<Line>) {
    let is_moving = |code: &str| code == "replacement_starting";
    let moving: Vec<_> = part.waits.iter().filter(|wait| is_moving(&wait.code)).collect();
    for wait in moving.iter().take(MOVES_SHOWN) {
        let name = tally::name(&wait.unit);
        lines.push((Paint::Plain, format!("  moves    {name} on {} → {}", part.node, wait.message)));
    }
    if moving.len() > MOVES_SHOWN {
        lines.push((Paint::Plain, format!("  moves    {} more", moving.len() - MOVES_SHOWN)));
    }
    for group in tally::wait_groups(part).iter().filter(|group| !is_moving(group.code)) {
        lines.push((Paint::Wait, format!("  waits    {}", lines::group_words(group, 2))));
        if let Some(advice) = tally::advice(group.code) {
            lines.push((Paint::Plain, format!("           what to do: {advice}")));
        }
    }
}

fn bar(done: u64, total: u64) -> String {
    let full = (done as usize * BAR).checked_div(total as usize).unwrap_or(BAR).min(BAR);
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

fn of_class(left: u64, top: u64) -> String {
    match left {
        0 => format!("{top} gone"),
        _ => format!("{left} of {top} left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_terminal_and_does_not_command_it() {
        let long = "  waits    1 no_capacity_memory: needs 2200MiB; the emptiest is short by 543MiB \x1b[2J"
            .to_owned();
        let lines = fit(vec![(Paint::Wait, long); 5], 40, 8);
        assert_eq!(lines.len(), 7);
        assert!(
            lines.iter().all(|(_, line)| line.chars().count() <= 40 && !line.contains('\x1b')),
            "{lines:?}"
        );
        assert!(lines[1].1.starts_with("           2200MiB; the"), "{lines:?}");
        assert!(lines[6].1.starts_with('…'), "{lines:?}");
        assert_eq!(wrap(&"x".repeat(50), 30).len(), 3);
    }

    #[test]
    fn a_bar_is_full_when_all_are_gone() {
        assert_eq!(bar(0, 3).matches('█').count(), 0);
        assert_eq!(bar(3, 3), "█".repeat(BAR));
        assert_eq!(bar(0, 0), "█".repeat(BAR));
    }
}
