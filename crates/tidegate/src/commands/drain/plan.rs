//! `node drain --plan`: what would happen.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};
use server::view::{DrainBody, List, NodeView, PlanView};

use super::{super::Asker, tally};
use crate::{
    client::{encode, shape},
    failure::{Failure, Outcome},
    out::{self, Columns, cell},
};

pub async fn preview(
    asker: &Asker,
    nodes: Vec<String>,
    selector: &BTreeMap<String, String>,
    body: &DrainBody,
) -> Outcome {
    let nodes = if nodes.is_empty() { matching(asker, selector).await? } else { nodes };
    let mut answers = Vec::new();
    for node in &nodes {
        let path = format!("/v1/nodes/{}/drain/plan", encode(node));
        answers.push(asker.client.call(Method::POST, &path, Some(json!(body))).await?);
    }
    if asker.is_json() {
        return match answers.as_slice() {
            [one] => out::json(one),
            several => out::json(&json!({ "items": several })),
        };
    }
    for (i, answer) in answers.iter().enumerate() {
        if i > 0 {
            out::line("")?;
        }
        print(&shape::<PlanView>(answer)?)?;
    }
    if nodes.len() > 1 {
        out::note(
            "\neach node is looked at alone: drained together none of them takes what leaves the others, \
             so places may differ",
        );
    }
    Ok(())
}

async fn matching(asker: &Asker, selector: &BTreeMap<String, String>) -> Outcome<Vec<String>> {
    let answer: Value = asker.client.get("/v1/nodes").await?;
    let nodes = shape::<List<NodeView>>(&answer)?.items;
    let has = |node: &NodeView| selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let names: Vec<String> = nodes.into_iter().filter(has).map(|node| node.id).collect();
    match names.is_empty() {
        true => Err(Failure::error("no node has these labels; see `tidegate node list -o wide`")),
        false => Ok(names),
    }
}

fn print(plan: &PlanView) -> Outcome {
    let node = &plan.node;
    out::line(headline(plan))?;
    if !plan.moves.is_empty() {
        out::line("")?;
        let mut table = Columns::new(&["wave", "unit", "from", "to"]);
        for step in &plan.moves {
            let to = step.to.as_deref().unwrap_or("(stops; nothing takes its place)");
            table.row(vec![cell(step.wave), cell(tally::name(&step.unit)), cell(node), cell(to)]);
        }
        table.print()?;
    }
    if !plan.blockers.is_empty() {
        out::line("\nblocked, a person is needed:")?;
        for blocker in &plan.blockers {
            out::line(format!("  {} {}: {}", blocker.code, tally::name(&blocker.unit), blocker.message))?;
            if !blocker.hint.is_empty() {
                out::line(format!("    what to do: {}", blocker.hint))?;
            }
        }
    }
    if !plan.waits.is_empty() {
        out::line("\nwaits:")?;
        let waits = plan.waits.iter().map(|w| (w.code.as_str(), w.unit.as_str(), w.message.as_str()));
        for group in tally::groups(waits) {
            out::line(format!("  {}", super::lines::group_text(&group, 3)))?;
        }
    }
    Ok(())
}

fn headline(plan: &PlanView) -> String {
    let node = &plan.node;
    if plan.moves.is_empty() && plan.blockers.is_empty() && plan.waits.is_empty() {
        return format!("{node} has nothing on it: it would be drained at once (nothing was changed)");
    }
    let waves = if plan.waves == 1 { "1 wave".to_owned() } else { format!("{} waves", plan.waves) };
    let moved = plan.moves.iter().filter(|step| step.to.is_some()).count();
    let mut parts = vec![format!("{moved} would move in {waves}")];
    let stops = plan.moves.len() - moved;
    if stops > 0 {
        parts.push(format!("{stops} would stop"));
    }
    if !plan.blockers.is_empty() {
        parts.push(format!("{} blocked", plan.blockers.len()));
    }
    if !plan.waits.is_empty() {
        parts.push(format!("{} would wait", plan.waits.len()));
    }
    let eta = tally::span_of(plan.eta_seconds);
    format!("{node}: {}; about {eta} ({}); nothing was changed", parts.join(", "), plan.eta_basis)
}
