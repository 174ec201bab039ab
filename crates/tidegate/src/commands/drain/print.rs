//! Drains in words and tables.

use server::view::{DrainStatusView, DrainView, ReasonView};

use super::{
    super::Asker,
    is_over, lines,
    tally::{self, CLASSES},
};
use crate::{
    failure::Outcome,
    out::{self, Columns, age, cell, or_dash, state},
};

/// The newest first.
pub fn table(asker: &Asker, mut drains: Vec<DrainView>) -> Outcome {
    if drains.is_empty() {
        return out::line("no drains; start one with: tidegate node drain NODE");
    }
    drains.sort_by_key(|drain| std::cmp::Reverse(drain.epoch));
    let mut header = vec!["epoch", "nodes", "state", "done", "started", "by", "message"];
    if asker.is_wide() {
        header.extend(["ended", "meta"]);
    }
    let mut table = Columns::new(&header);
    for drain in &drains {
        let nodes: Vec<&str> = drain.nodes.iter().map(|part| part.node.as_str()).collect();
        let total: u64 = drain.nodes.iter().map(|part| part.total).sum();
        let done: u64 = drain.nodes.iter().map(|part| part.done).sum();
        let mut row = vec![
            cell(drain.epoch),
            cell(nodes.join(",")),
            state(&drain.state),
            cell(format!("{done}/{total}")),
            cell(format!("{} ago", age(&drain.created_at))),
            cell(or_dash(&drain.by)),
            cell(or_dash(&drain.message)),
        ];
        if asker.is_wide() {
            let ended = drain.ended_at.as_deref().map_or("-".to_owned(), |at| format!("{} ago", age(at)));
            row.extend([cell(ended), cell(or_dash(&pairs(&drain.meta)))]);
        }
        table.row(row);
    }
    table.print()
}

fn pairs(meta: &std::collections::BTreeMap<String, String>) -> String {
    meta.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

pub fn whole(drain: &DrainView) -> Outcome {
    let mut facts = vec![format!("started {} ago", age(&drain.created_at))];
    if let Some(at) = &drain.ended_at {
        facts.push(format!("ended {} ago", age(at)));
    }
    if !drain.by.is_empty() {
        facts.push(format!("by {}", drain.by));
    }
    if !drain.message.is_empty() {
        facts.push(format!("message {:?}", drain.message));
    }
    if !drain.meta.is_empty() {
        facts.push(pairs(&drain.meta));
    }
    out::line(format!("drain/{}: {}; {}", drain.epoch, drain.state, facts.join(", ")))?;
    for part in &drain.nodes {
        out::line("")?;
        node_part(part)?;
    }
    Ok(())
}

/// All that is known of one node's part.
pub fn node_part(part: &DrainStatusView) -> Outcome {
    out::line(one_line(part))?;
    if is_over(part) {
        return leftovers(part);
    }
    let counts = tally::counts(&part.remaining);
    // The classes of instances always, so that one need not guess what is not listed; others if there are any.
    let is_shown = |class: &str, count: u64| {
        count > 0 || matches!(class, "stateless" | "stateful" | "batch" | "system" | "unknown")
    };
    let by_class: Vec<String> = CLASSES
        .iter()
        .zip(counts)
        .filter(|(class, count)| is_shown(class, *count))
        .map(|(class, count)| format!("{class} {count}"))
        .collect();
    out::line(format!("  remaining: {}", by_class.join(", ")))?;
    if part.stalled {
        out::line("  stalled: nothing has left for a while")?;
    }
    blockers(part, "  ")?;
    for group in tally::wait_groups(part) {
        out::line(format!("  waits: {}", lines::group_text(&group, 3)))?;
    }
    units(part)
}

pub fn blockers(part: &DrainStatusView, indent: &str) -> Outcome {
    for blocker in &part.blockers {
        let since = blocker.since.as_deref().map(|at| format!(" ({})", age(at))).unwrap_or_default();
        let (code, name, message) = (&blocker.code, tally::name(&blocker.unit), &blocker.message);
        out::line(format!("{indent}blocked: {code} {name}: {message}{since}"))?;
        if !blocker.hint.is_empty() {
            out::line(format!("{indent}  what to do: {}", blocker.hint))?;
        }
    }
    Ok(())
}

/// What is said of the drain need not be said of its node again.
pub fn besides(reasons: &[ReasonView], part: Option<&DrainStatusView>) -> Vec<ReasonView> {
    let is_said = |reason: &ReasonView| {
        let mut blockers = part.iter().flat_map(|part| &part.blockers);
        blockers.any(|blocker| blocker.code == reason.code && reason.message.contains(&blocker.unit))
    };
    reasons.iter().filter(|reason| !is_said(reason)).cloned().collect()
}

fn units(part: &DrainStatusView) -> Outcome {
    if part.remaining.units.is_empty() {
        return Ok(());
    }
    out::line("")?;
    let mut table = Columns::new(&["unit", "class", "why", "what"]);
    for unit in &part.remaining.units {
        table.row(vec![
            cell(tally::name(&unit.unit)),
            cell(&unit.class),
            cell(&unit.code),
            cell(or_dash(&unit.message)),
        ]);
    }
    table.print()
}

/// `node-2: draining (drain 7), 7/12 done, 3 stateless, 1 system left; eta 14s (…); deadline in 59m`.
pub fn one_line(part: &DrainStatusView) -> String {
    let (node, epoch) = (&part.node, part.epoch);
    match part.state.as_str() {
        "queued" => format!("{node}: queued (drain {epoch}): closed, and waiting for its turn"),
        "draining" => {
            let deadline = tally::deadline(part).map(|text| format!("; {text}")).unwrap_or_default();
            format!("{node}: draining (drain {epoch}), {}{deadline}", lines::progress(part))
        }
        "cancelled" if part.started_at.is_none() => {
            format!("{node}: cancelled (drain {epoch}) before its turn came")
        }
        ending => {
            let ago = part.ended_at.as_deref().map(|at| format!(" {} ago", age(at))).unwrap_or_default();
            let deadline = if past_deadline(part) { "; the deadline was reached" } else { "" };
            format!("{node}: {ending}{ago} (drain {epoch}), {}/{} done{deadline}", part.done, part.total)
        }
    }
}

pub fn is_forced(part: &DrainStatusView) -> bool {
    part.options.deadline == "0s"
}

fn past_deadline(part: &DrainStatusView) -> bool {
    part.deadline_reached && !is_forced(part)
}

/// The last word: one line, and for what was left a line each.
pub fn ending(part: &DrainStatusView) -> Outcome {
    let (node, epoch) = (&part.node, part.epoch);
    let (units, done) = (tally::units(part.total), part.done);
    let took = took(part).map(|span| format!(" in {span}")).unwrap_or_default();
    let deadline =
        if past_deadline(part) { "; the deadline was reached: not everything had its time" } else { "" };
    let back = match (part.options.then.as_str(), part.options.back.as_str()) {
        ("stop", "restart") => {
            "its daemon stops once nothing is left; it takes work again when it is started".to_owned()
        }
        ("stop", _) => {
            format!(
                "its daemon stops once nothing is left; it takes work again after: tidegate node enable {node}"
            )
        }
        (_, "restart") => "it takes work again when its daemon is restarted".to_owned(),
        _ => format!("bring it back with: tidegate node enable {node}"),
    };
    let text = match part.state.as_str() {
        "drained" => format!("{node} drained{took}: {units} gone{deadline}"),
        "drained_except" => {
            format!("{node} drained{took} except for {}: {done} of {units} gone{deadline}", part.left.len())
        }
        "cancelled" if part.started_at.is_none() => {
            format!(
                "{node} not drained: drain {epoch} was cancelled before its turn came; it takes work again"
            )
        }
        "cancelled" => {
            format!(
                "{node} not drained: drain {epoch} was cancelled after {done} of {units}; it takes work again"
            )
        }
        "node_lost" => format!(
            "{node} not drained: it went offline after {done} of {units}; what could move was started elsewhere"
        ),
        "failed" => format!("{node} not drained: its turn came and it was refused; it takes work again"),
        other => format!("{node} ended {other}: {done} of {units} gone{deadline}"),
    };
    out::line(text)?;
    leftovers(part)?;
    if matches!(part.state.as_str(), "drained" | "drained_except") {
        out::note(back);
    }
    Ok(())
}

fn leftovers(part: &DrainStatusView) -> Outcome {
    for left in &part.left {
        let code = model::ALL_CODES.iter().find(|code| code.as_str() == left.code);
        let why = code.map(|code| format!(" — {}", code.meaning().trim())).unwrap_or_default();
        out::line(format!("  left running: {} {}{why}", left.unit, left.code))?;
    }
    Ok(())
}

fn took(part: &DrainStatusView) -> Option<String> {
    let (started, ended) = (out::until(part.started_at.as_deref()?)?, out::until(part.ended_at.as_deref()?)?);
    Some(out::span(ended - started))
}
