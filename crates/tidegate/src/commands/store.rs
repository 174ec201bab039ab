//! `store …`, `store-group …`, and what `scale`, `remove` and `status` do with a store group.

use model::units::{format_bytes, format_duration};
use reqwest::Method;
use serde_json::{Value, json};
use server::view::{List, StoreGroupView, StoreMemberView};

use super::{Asker, tables};
use crate::{
    cli::{StoreCommand, StoreGroupCommand},
    client::{encode, shape},
    failure::{Failure, Outcome},
    out::{self, Columns, age, cell, or_dash, state},
    target::{self, Kind},
};

pub async fn store_command(asker: &Asker, command: StoreCommand) -> Outcome {
    match command {
        StoreCommand::List { group } => list(asker, group.as_deref()).await,
        StoreCommand::Status { store } => status(asker, target::expect(Kind::Store, &store)?).await,
        StoreCommand::Mark { store } => {
            act(asker, &store, Method::PUT, "mark", "is marked: it goes first when its group gets smaller")
                .await
        }
        StoreCommand::Unmark { store } => {
            act(asker, &store, Method::DELETE, "mark", "is not marked any more").await
        }
        StoreCommand::Restart { store, cancel: false } => {
            let said = "restarts once its leaders have left; watch it with: tidegate store status";
            act(asker, &store, Method::POST, "restart", said).await
        }
        StoreCommand::Restart { store, cancel: true } => {
            act(asker, &store, Method::DELETE, "restart", "does not restart; leaders may come back").await
        }
        StoreCommand::EvictLeader { store, cancel: false } => {
            let said = "loses its leaders, and gets none until: tidegate store evict-leader --cancel";
            act(asker, &store, Method::PUT, "evict-leader", said).await
        }
        StoreCommand::EvictLeader { store, cancel: true } => {
            act(asker, &store, Method::DELETE, "evict-leader", "may have leaders again").await
        }
    }
}

pub async fn group_command(asker: &Asker, command: StoreGroupCommand) -> Outcome {
    match command {
        StoreGroupCommand::List => list_groups(asker).await,
        StoreGroupCommand::Status { group } => {
            group_status(asker, target::expect(Kind::StoreGroup, &group)?).await
        }
    }
}

async fn act(asker: &Asker, text: &str, method: Method, what: &str, said: &str) -> Outcome {
    let id = target::expect(Kind::Store, text)?;
    let path = format!("/v1/stores/{}/{what}", encode(id));
    let answer = asker.client.call(method, &path, None).await?;
    asker.done(&answer, format!("{id} {said}"))
}

async fn list(asker: &Asker, group: Option<&str>) -> Outcome {
    let answer = asker.client.get("/v1/stores").await?;
    let mut stores = shape::<List<StoreMemberView>>(&answer)?.items;
    if let Some(group) = group {
        stores.retain(|store| store.group == group);
    }
    if asker.is_json() {
        return out::json(&json!({ "items": stores }));
    }
    if stores.is_empty() {
        return out::line("no stores; a group of them is applied with: tidegate apply FILE");
    }
    table(asker, &stores)?;
    stores.iter().try_for_each(worry)
}

fn table(asker: &Asker, stores: &[StoreMemberView]) -> Outcome {
    let mut header =
        vec!["store", "node", "state", "process", "leaders", "data", "offlining", "left", "doing"];
    if asker.is_wide() {
        header.extend(["identity", "instance", "evictor", "rate", "marked"]);
    }
    let mut table = Columns::new(&header);
    for store in stores {
        let mut row = vec![
            cell(&store.id),
            cell(store.node.as_deref().unwrap_or("-")),
            state(&store.state),
            state(store.process.as_deref().unwrap_or("-")),
            cell(leaders(store)),
            cell(store.data_left.map_or("-".to_owned(), format_bytes)),
            cell(store.offlining.as_ref().map_or("-", |offlining| &offlining.reason)),
            cell(time_left(store)),
            cell(or_dash(&doing(store))),
        ];
        if asker.is_wide() {
            let evictor = store.evictor.as_ref().map(|evictor| if evictor.ours { "ours" } else { "foreign" });
            row.extend([
                cell(store.identity.as_deref().unwrap_or("-")),
                cell(store.instance.as_deref().unwrap_or("-")),
                cell(evictor.unwrap_or("-")),
                cell(store.rate.map_or("-".to_owned(), |rate| format!("{}/s", format_bytes(rate)))),
                cell(if store.marked { "yes" } else { "-" }),
            ]);
        }
        table.row(row);
    }
    table.print()
}

/// `12`, or `12?` while the backend itself is not sure.
fn leaders(store: &StoreMemberView) -> String {
    match (store.leaders, store.leaders_complete) {
        (None, _) => "-".to_owned(),
        (Some(leaders), true) => leaders.to_string(),
        (Some(leaders), false) => format!("{leaders}?"),
    }
}

fn time_left(store: &StoreMemberView) -> String {
    let left = store.eta_seconds.map(|seconds| model::Millis((seconds * 1000.0).max(0.0) as u64));
    left.map_or("-".to_owned(), |left| format_duration(model::Millis(left.0 / 1000 * 1000)))
}

fn doing(store: &StoreMemberView) -> String {
    let work = store.restart.as_ref().map(|work| work.mode.clone());
    work.or_else(|| store.marked.then(|| "marked".to_owned())).unwrap_or_default()
}

/// What a store waits for, indented below it.
fn worry(store: &StoreMemberView) -> Outcome {
    match &store.wait {
        Some(wait) => tables::reasons(&store.id, std::slice::from_ref(wait)),
        None => Ok(()),
    }
}

pub async fn status(asker: &Asker, id: &str) -> Outcome {
    let answer = asker.client.get(&format!("/v1/stores/{}", encode(id))).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let store: StoreMemberView = shape(&answer)?;
    let place = store.node.as_deref().map_or("on no node".to_owned(), |node| format!("on {node}"));
    let process = store.process.as_deref().unwrap_or("none");
    out::line(format!("store/{}: {} {place}, process {process}", store.id, store.state))?;
    let identity = store.identity.as_deref().unwrap_or("not known to its backend yet");
    out::line(format!(
        "  of {}; {identity}; instance {}",
        store.group,
        or_dash(store.instance.as_deref().unwrap_or(""))
    ))?;
    let data = store.data_left.map_or("-".to_owned(), format_bytes);
    let mut line = format!("  leaders {}; data {data}", leaders(&store));
    if let Some(progress) = store.progress {
        line.push_str(&format!("; {:.0} % gone", progress * 100.0));
    }
    if let Some(rate) = store.rate {
        line.push_str(&format!(", {}/s", format_bytes(rate)));
    }
    if store.eta_seconds.is_some() {
        line.push_str(&format!(", {} left", time_left(&store)));
    }
    out::line(line)?;
    if let Some(offlining) = &store.offlining {
        let since = age(&offlining.since);
        out::line(format!("  offlining {} for {since}: {}", offlining.reason, or_dash(&offlining.message)))?;
    }
    if let Some(work) = &store.restart {
        let created = work.created_at.as_ref().map_or("none".to_owned(), |at| format!("{} old", age(at)));
        let (mode, why, began) = (&work.mode, &work.why, age(&work.began_at));
        out::line(format!("  {mode} ({why}) began {began} ago; its process is {created}"))?;
    }
    if let Some(evictor) = &store.evictor {
        let whose = if evictor.ours { "ours" } else { "somebody else's: it is used and never removed" };
        out::line(format!("  leaders are kept away by {} ({whose})", or_dash(&evictor.names.join(", "))))?;
    }
    if store.marked {
        out::line("  marked: it goes first when its group gets smaller")?;
    }
    worry(&store)
}

pub async fn all_groups(asker: &Asker) -> Outcome<Vec<StoreGroupView>> {
    Ok(shape::<List<StoreGroupView>>(&asker.client.get("/v1/store-groups").await?)?.items)
}

async fn list_groups(asker: &Asker) -> Outcome {
    if asker.is_json() {
        return out::json(&asker.client.get("/v1/store-groups").await?);
    }
    let groups = all_groups(asker).await?;
    if groups.is_empty() {
        return out::line("no store groups; one is applied with: tidegate apply FILE");
    }
    group_table(asker, &groups)?;
    groups.iter().try_for_each(group_worries)
}

pub fn group_table(asker: &Asker, groups: &[StoreGroupView]) -> Outcome {
    let mut header = vec!["store group", "state", "serving", "leaving", "backend", "release"];
    if asker.is_wide() {
        header.extend(["needs", "memory", "command"]);
    }
    let mut table = Columns::new(&header);
    for group in groups {
        let mut row = vec![
            cell(&group.name),
            state(&group.state),
            cell(format!("{}/{}", group.serving, group.replicas)),
            cell(group.leaving),
            cell(&group.backend),
            cell(group.release),
        ];
        if asker.is_wide() {
            row.extend([
                cell(group.replicas_needed.map_or("-".to_owned(), |needed| needed.to_string())),
                cell(&group.spec.memory),
                cell(group.spec.command.join(" ")),
            ]);
        }
        table.row(row);
    }
    table.print()
}

pub fn group_worries(group: &StoreGroupView) -> Outcome {
    tables::reasons(&group.name, &group.reasons)
}

pub async fn group_status(asker: &Asker, name: &str) -> Outcome {
    let answer = asker.client.get(&format!("/v1/store-groups/{}", encode(name))).await?;
    let stores = shape::<List<StoreMemberView>>(&asker.client.get("/v1/stores").await?)?.items;
    let stores: Vec<StoreMemberView> = stores.into_iter().filter(|store| store.group == name).collect();
    if asker.is_json() {
        let mut whole = answer;
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("stores".to_owned(), json!(stores));
        }
        return out::json(&whole);
    }
    let group: StoreGroupView = shape(&answer)?;
    let needs = group.replicas_needed.map_or("-".to_owned(), |needed| needed.to_string());
    out::line(format!(
        "store-group/{}: {}, {}/{} serving, {} leaving, backend {} (needs {needs}), release {}",
        group.name, group.state, group.serving, group.replicas, group.leaving, group.backend, group.release
    ))?;
    group_worries(&group)?;
    out::line("")?;
    if stores.is_empty() { out::line("no stores") } else { table(asker, &stores) }
}

pub async fn scale(asker: &Asker, name: &str, replicas: u32) -> Outcome {
    let path = format!("/v1/store-groups/{}", encode(name));
    let before = asker.client.get(&path).await?.get("replicas").and_then(Value::as_u64);
    let body = Some(json!({ "replicas": replicas }));
    let answer = asker.client.call(Method::PUT, &format!("{path}/replicas"), body).await?;
    let said = match before {
        Some(before) if before == u64::from(replicas) => format!("{name} unchanged ({replicas} stores)"),
        Some(before) if before > u64::from(replicas) => format!(
            "{name} scaled {before} -> {replicas}; data leaves first: tidegate store list. To take it back: tidegate scale store-group/{name} {before}"
        ),
        Some(before) => format!("{name} scaled {before} -> {replicas}"),
        None => format!("{name} scaled to {replicas}"),
    };
    asker.done(&answer, said)
}

pub async fn remove(asker: &Asker, name: &str, destroy_data: bool) -> Outcome {
    if !destroy_data {
        return Err(Failure::refused(format!(
            "store-group/{name} holds data: to destroy it with everything in it, say --destroy-data; to make it smaller, \
             tidegate scale store-group/{name} N"
        )));
    }
    let path = format!("/v1/store-groups/{}?destroy_data=true", encode(name));
    let answer = asker.client.call(Method::DELETE, &path, None).await?;
    asker.done(&answer, format!("{name} removed; its stores and their data are being destroyed"))
}
