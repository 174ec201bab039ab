//! What remains, by class and by reason, in words.

use std::collections::BTreeMap;

use server::view::{DrainStatusView, RemainingView};

use crate::out;

/// In the order in which they are shown.
pub const CLASSES: [&str; 8] =
    ["stateless", "batch", "system", "stateful", "maintainers", "dispatchers", "stores", "unknown"];

pub type Counts = [u64; CLASSES.len()];

pub fn counts(remaining: &RemainingView) -> Counts {
    let dispatchers = remaining.dispatchers.values().sum();
    let RemainingView { instances, batch, system, stateful, maintainers, stores, unknown, .. } = *remaining;
    [instances, batch, system, stateful, maintainers, dispatchers, stores, unknown]
}

/// `3 stateless, 1 system left`, or `nothing left`.
pub fn left(remaining: &RemainingView) -> String {
    let named = CLASSES.iter().zip(counts(remaining)).filter(|(_, count)| *count > 0);
    let parts: Vec<String> = named.map(|(class, count)| format!("{count} {}", of(class, count))).collect();
    match parts.is_empty() {
        true => "nothing left".to_owned(),
        false => format!("{} left", parts.join(", ")),
    }
}

/// Some classes are named by what is counted, the others by what it is like.
fn of(class: &str, count: u64) -> &str {
    match (class, count) {
        ("maintainers" | "dispatchers" | "stores", 1) => &class[..class.len() - 1],
        _ => class,
    }
}

/// `eta 14s (pace of the last 7 moves)`; without a number, why there is none.
pub fn eta(part: &DrainStatusView) -> String {
    match (part.eta_seconds, part.eta_basis.as_str()) {
        (Some(seconds), "") => format!("eta {}", span_of(seconds)),
        (Some(seconds), basis) => format!("eta {} ({basis})", span_of(seconds)),
        (None, "") => "no estimate".to_owned(),
        (None, why) => format!("no estimate: {why}"),
    }
}

/// Rounded up: one that is told 0s and waits is annoyed.
pub fn span_of(seconds: f64) -> String {
    out::span(seconds.ceil() as i64)
}

/// `deadline in 59m48s`, `the deadline is over`; `None` before its turn.
pub fn deadline(part: &DrainStatusView) -> Option<String> {
    if part.state != "draining" {
        return None;
    }
    if part.deadline_reached {
        let units = ["stateless", "batch", "system", "stateful"];
        let counts = CLASSES.iter().zip(counts(&part.remaining));
        let stopped = counts.clone().filter(|(class, _)| units.contains(class)).any(|(_, count)| count > 0);
        return Some(match stopped || counts.map(|(_, count)| count).sum::<u64>() == 0 {
            true => "the deadline is over: what is left is being stopped".to_owned(),
            false => "the deadline is over".to_owned(),
        });
    }
    match &part.deadline {
        None => Some("no deadline".to_owned()),
        Some(at) => out::until(at).map(|seconds| format!("deadline in {}", out::span(seconds))),
    }
}

/// Waits of one code, and what the first of them says.
pub struct Group<'a> {
    pub code: &'a str,
    pub units: Vec<&'a str>,
    pub message: &'a str,
}

/// By code, the most frequent first.
pub fn groups<'a>(waits: impl Iterator<Item = (&'a str, &'a str, &'a str)>) -> Vec<Group<'a>> {
    let mut by_code: BTreeMap<&str, Group<'_>> = BTreeMap::new();
    for (code, unit, message) in waits {
        by_code.entry(code).or_insert(Group { code, units: Vec::new(), message }).units.push(unit);
    }
    let mut groups: Vec<Group<'_>> = by_code.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.units.len()));
    groups
}

pub fn wait_groups(part: &DrainStatusView) -> Vec<Group<'_>> {
    groups(part.waits.iter().map(|wait| (wait.code.as_str(), wait.unit.as_str(), wait.message.as_str())))
}

/// What to do about a wait, if not to wait.
pub fn advice(code: &str) -> Option<&'static str> {
    let code = model::ALL_CODES.iter().find(|known| known.as_str() == code)?;
    // A volume is a wait only once it is acknowledged: nothing is left to do about it.
    let is_settled = *code == model::Code::VolumeLocal;
    Some(code.hint()).filter(|hint| !is_settled && !hint.starts_with("wait") && !hint.is_empty())
}

/// `web-1k3f9a2` of `instance/web-1k3f9a2`: the kind is no news in a list of instances.
pub fn name(unit: &str) -> &str {
    unit.strip_prefix("instance/").unwrap_or(unit)
}

pub fn units(count: u64) -> String {
    if count == 1 { "1 unit".to_owned() } else { format!("{count} units") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_class_is_one() {
        let mut remaining = RemainingView { instances: 1, maintainers: 1, ..RemainingView::default() };
        remaining.dispatchers.insert("orders".to_owned(), 1);
        assert_eq!(left(&remaining), "1 stateless, 1 maintainer, 1 dispatcher left");
        remaining.dispatchers.insert("users".to_owned(), 1);
        (remaining.instances, remaining.maintainers) = (2, 3);
        assert_eq!(left(&remaining), "2 stateless, 3 maintainers, 2 dispatchers left");
    }
}
