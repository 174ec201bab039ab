//! `feed …`.

use reqwest::Method;
use serde_json::json;
use server::view::{FeedView, List};

use super::{Asker, tables};
use crate::{
    cli::FeedCommand,
    client::{encode, shape},
    failure::Outcome,
    out::{self, Columns, age, cell, or_dash, state},
    target,
};

pub async fn feed_command(asker: &Asker, command: FeedCommand) -> Outcome {
    match command {
        FeedCommand::List => list(asker).await,
        FeedCommand::Status { feed } => status(asker, target::expect(target::Kind::Feed, &feed)?).await,
        FeedCommand::Pause { feed } => set_state(asker, &feed, "paused").await,
        FeedCommand::Resume { feed } => set_state(asker, &feed, "running").await,
        FeedCommand::Move { feed, span, to } => move_span(asker, &feed, &span, &to).await,
    }
}

pub async fn all(asker: &Asker) -> Outcome<Vec<FeedView>> {
    Ok(shape::<List<FeedView>>(&asker.client.get("/v1/feeds").await?)?.items)
}

async fn list(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/feeds").await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let feeds = shape::<List<FeedView>>(&answer)?.items;
    if feeds.is_empty() {
        return out::line("no feeds");
    }
    table(asker, &feeds)?;
    feeds.iter().try_for_each(worries)
}

pub fn table(asker: &Asker, feeds: &[FeedView]) -> Outcome {
    let mut header = vec!["feed", "state", "maintainer", "dispatchers", "moving", "lag"];
    if asker.is_wide() {
        header.extend(["phase", "position", "held back"]);
    }
    let mut table = Columns::new(&header);
    for feed in feeds {
        let maintainer = feed.maintainer.as_ref();
        let mut row = vec![
            cell(&feed.name),
            state(&feed.state),
            cell(maintainer.map_or("-", |maintainer| &maintainer.node)),
            cell(running(feed)),
            cell(feed.moving),
            cell(feed.checkpoint.as_ref().map_or("-".to_owned(), |checkpoint| age(&checkpoint.at))),
        ];
        if asker.is_wide() {
            let position = feed.checkpoint.as_ref().map(|checkpoint| checkpoint.position.to_string());
            row.extend([
                cell(or_dash(maintainer.map_or("", |maintainer| &maintainer.phase))),
                cell(or_dash(&position.unwrap_or_default())),
                cell(feed.held_back.map_or("-".to_owned(), model::units::format_bytes)),
            ]);
        }
        table.row(row);
    }
    table.print()
}

/// `5/5`; how many there should be is not known before the first look.
fn running(feed: &FeedView) -> String {
    let on: u32 = feed.dispatchers.values().sum();
    feed.spans.map_or("-".to_owned(), |spans| format!("{on}/{spans}"))
}

/// What is in a feed's way, indented below it.
pub fn worries(feed: &FeedView) -> Outcome {
    tables::reasons(&feed.name, &feed.reasons)?;
    for trouble in &feed.troubles {
        let about = trouble.span.as_ref().map_or(feed.name.clone(), |span| format!("{}/{span}", feed.name));
        out::line(format!(
            "  {about} on {}: {}: {} — {}",
            trouble.node, trouble.code, trouble.message, trouble.hint
        ))?;
    }
    Ok(())
}

pub async fn status(asker: &Asker, name: &str) -> Outcome {
    let answer = asker.client.get(&format!("/v1/feeds/{}", encode(name))).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let feed: FeedView = shape(&answer)?;
    let maintainer = match &feed.maintainer {
        Some(maintainer) => format!("maintained on {} ({})", maintainer.node, maintainer.phase),
        None => "maintained by nobody".to_owned(),
    };
    out::line(format!("feed/{}: {}, {maintainer}", feed.name, feed.state))?;
    let on: Vec<String> = feed.dispatchers.iter().map(|(node, count)| format!("{count} on {node}")).collect();
    let mut line = format!("  dispatchers {}: {}", running(&feed), or_dash(&on.join(", ")));
    if feed.moving > 0 {
        line.push_str(&format!("; {} on the move", feed.moving));
    }
    if feed.absent > 0 {
        line.push_str(&format!("; {} spans wait for one", feed.absent));
    }
    out::line(line)?;
    if let Some(checkpoint) = &feed.checkpoint {
        let (position, age) = (checkpoint.position, age(&checkpoint.at));
        out::line(format!("  everything up to {age} ago is in the sink (position {position})"))?;
    }
    if let Some(bytes) = feed.held_back {
        out::line(format!("  the source keeps {} for it", model::units::format_bytes(bytes)))?;
    }
    worries(&feed)
}

async fn set_state(asker: &Asker, text: &str, wanted: &str) -> Outcome {
    let name = target::expect(target::Kind::Feed, text)?;
    let path = format!("/v1/feeds/{}/state", encode(name));
    let answer = asker.client.call(Method::PUT, &path, Some(json!({ "state": wanted }))).await?;
    let said = match wanted {
        "paused" => format!("{name} paused; its dispatchers are stopping"),
        _ => format!("{name} runs"),
    };
    asker.done(&answer, said)
}

async fn move_span(asker: &Asker, feed: &str, span: &str, to: &str) -> Outcome {
    let name = target::expect(target::Kind::Feed, feed)?;
    let node = target::expect(target::Kind::Node, to)?;
    let path = format!("/v1/feeds/{}/move", encode(name));
    let body = json!({ "span": span, "node": node });
    let answer = asker.client.call(Method::POST, &path, Some(body)).await?;
    asker.done(&answer, format!("{name}: {span} moves to {node}"))
}

pub async fn remove(asker: &Asker, name: &str) -> Outcome {
    let path = format!("/v1/feeds/{}", encode(name));
    let answer = asker.client.call(Method::DELETE, &path, None).await?;
    asker.done(&answer, format!("{name} removed; its dispatchers are stopping"))
}
