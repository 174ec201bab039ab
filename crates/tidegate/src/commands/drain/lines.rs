//! The drain as plain lines, one per change, for logs and pipes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use server::view::{BlockerView, DrainStatusView};

use super::{
    is_over,
    tally::{self, Counts, Group},
};
use crate::out;

/// Without a change for this long, a line says what it waits for: a log that is silent looks dead.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Lines {
    told: BTreeMap<String, Told>,
}

/// What was last said of a node.
struct Told {
    state: String,
    done: u64,
    left: Counts,
    stalled: bool,
    deadline_reached: bool,
    blockers: BTreeSet<(String, String)>,
    waits: BTreeSet<String>,
    at: Instant,
}

impl Lines {
    /// What is new since the last look.
    pub fn news(&mut self, parts: &[&DrainStatusView], elapsed: Duration) -> Vec<String> {
        let mut news = Vec::new();
        for part in parts {
            let about = if parts.len() > 1 { format!("{}: ", part.node) } else { String::new() };
            let time = out::span(elapsed.as_secs() as i64);
            let told = self.told.remove(&part.node);
            let (told, lines) = since(told, part);
            news.extend(lines.into_iter().map(|line| format!("{time} {about}{line}")));
            self.told.insert(part.node.clone(), told);
        }
        news
    }
}

fn since(before: Option<Told>, part: &DrainStatusView) -> (Told, Vec<String>) {
    let mut lines = Vec::new();
    let key = |blocker: &BlockerView| (blocker.code.clone(), blocker.unit.clone());
    let mut now = Told {
        state: part.state.clone(),
        done: part.done,
        left: tally::counts(&part.remaining),
        stalled: part.stalled,
        deadline_reached: part.deadline_reached,
        blockers: part.blockers.iter().map(key).collect(),
        waits: part.waits.iter().map(|wait| wait.code.clone()).collect(),
        at: Instant::now(),
    };
    let is_new = before
        .as_ref()
        .is_none_or(|before| (&before.state, before.done, before.left) != (&now.state, now.done, now.left));
    let is_long =
        before.as_ref().is_some_and(|before| before.at.elapsed() > SAY_AGAIN_AFTER) && !is_over(part);
    if is_new || is_long {
        lines.push(progress(part));
    } else if let Some(before) = &before {
        now.at = before.at;
    }
    if now.deadline_reached
        && !before.as_ref().is_some_and(|before| before.deadline_reached)
        && !is_over(part)
    {
        let feeds = part.remaining.maintainers + part.remaining.dispatchers.values().sum::<u64>() > 0;
        let but = if feeds { "stateful instances and feeds" } else { "stateful instances" };
        lines.push(format!("the deadline is reached: what is left is stopped, but for {but}"));
    }
    if now.stalled && !before.as_ref().is_some_and(|before| before.stalled) {
        lines.push("stalled: nothing has left for a while".to_owned());
    }
    let was_blocked =
        |blocker: &BlockerView| before.as_ref().is_some_and(|before| before.blockers.contains(&key(blocker)));
    for blocker in part.blockers.iter().filter(|blocker| !was_blocked(blocker)) {
        lines.push(blocked(blocker));
    }
    for (code, unit) in before.iter().flat_map(|before| &before.blockers) {
        if !now.blockers.contains(&(code.clone(), unit.clone())) && !is_over(part) {
            lines.push(format!("no longer blocked: {code} {unit}"));
        }
    }
    // Waits that pass by themselves come and go; those that a person may shorten are told at once.
    for group in tally::wait_groups(part) {
        let is_known = before.as_ref().is_some_and(|before| before.waits.contains(group.code));
        if is_long || (!is_known && tally::advice(group.code).is_some()) {
            lines.push(format!("waits: {}", group_text(&group, 3)));
        }
    }
    (now, lines)
}

/// `7/12 done, 3 stateless, 1 system left; eta 14s (pace of the last 7 moves)`.
pub fn progress(part: &DrainStatusView) -> String {
    let left = tally::left(&part.remaining);
    match part.state.as_str() {
        "queued" => format!("queued: closed, and waiting for its turn; {left}"),
        "draining" => {
            format!("{}/{} done, {left}; {}", part.done, part.total, tally::eta(part))
        }
        ending => format!("{ending}, {}/{} done", part.done, part.total),
    }
}

/// `blocked: volume_local instance/db-…: its data is on a volume of this node — acknowledge it, …`.
pub fn blocked(blocker: &BlockerView) -> String {
    let mut line = format!("blocked: {} {}", blocker.code, blocker.unit);
    if !blocker.message.is_empty() {
        line.push_str(&format!(": {}", blocker.message));
    }
    if !blocker.hint.is_empty() {
        line.push_str(&format!(" — {}", blocker.hint));
    }
    line
}

/// `3 max_parallel: others of its service are on the move (web-a, web-b, …)`.
pub fn group_words(group: &Group<'_>, units_shown: usize) -> String {
    let mut names: Vec<&str> = group.units.iter().take(units_shown).map(|unit| tally::name(unit)).collect();
    if group.units.len() > units_shown {
        names.push("…");
    }
    let mut line = format!("{} {}", group.units.len(), group.code);
    if !group.message.is_empty() {
        line.push_str(&format!(": {}", group.message));
    }
    if names.iter().any(|name| !name.is_empty()) {
        line.push_str(&format!(" ({})", names.join(", ")));
    }
    line
}

/// With what to do about it, if that is not to wait.
pub fn group_text(group: &Group<'_>, units_shown: usize) -> String {
    let words = group_words(group, units_shown);
    match tally::advice(group.code) {
        Some(advice) => format!("{words} — {advice}"),
        None => words,
    }
}
