//! `node drain --plan`: what would happen.

use reqwest::Method;
use serde_json::json;
use server::view::{DrainsBody, List, PlanView};

use super::{super::Asker, tally};
use crate::{
    client::{encode, shape},
    failure::Outcome,
    out::{self, Columns, cell},
};

pub async fn preview(asker: &Asker, body: DrainsBody) -> Outcome {
    let (answer, plans) = match body.nodes.as_slice() {
        [node] => {
            let path = format!("/v1/nodes/{}/drain/plan", encode(node));
            let answer = asker.client.call(Method::POST, &path, Some(json!(body.options))).await?;
            let plan: PlanView = shape(&answer)?;
            (answer, vec![plan])
        }
        _ => {
            let answer = asker.client.call(Method::POST, "/v1/drains/plan", Some(json!(body))).await?;
            let plans: List<PlanView> = shape(&answer)?;
            (answer, plans.items)
        }
    };
    if asker.is_json() {
        return out::json(&answer);
    }
    for (i, plan) in plans.iter().enumerate() {
        if i > 0 {
            out::line("")?;
        }
        print(plan)?;
    }
    if plans.len() > 1 {
        out::note("\nall would be closed at once and take their turns; each is timed from its own turn on");
    }
    Ok(())
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
