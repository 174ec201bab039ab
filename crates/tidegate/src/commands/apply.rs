//! `apply`: all files are right, or nothing is sent.

use std::time::Duration;

use model::spec::file::SpecFile;
use reqwest::Method;
use server::view::{AppliedView, ApplyView, ServiceView};

use super::Asker;
use crate::{
    cli::{ApplyArgs, Global},
    client::{encode, shape},
    failure::{Failure, Outcome},
    out, service_file,
};

const LOOK_EVERY: Duration = Duration::from_millis(300);

pub async fn apply(global: &Global, args: ApplyArgs) -> Outcome {
    let file = service_file::load(&args.files)?;
    let asker = Asker::new(global)?;
    let applied = send(&asker, &file).await?;
    if args.wait { wait(&asker, &applied).await } else { Ok(()) }
}

/// Returns the names that were applied.
pub async fn send(asker: &Asker, file: &SpecFile) -> Outcome<Vec<String>> {
    let body =
        serde_json::to_value(file).map_err(|error| Failure::error(format!("cannot write JSON: {error}")))?;
    let answer = asker.client.call(Method::POST, "/v1/apply", Some(body)).await?;
    if asker.is_json() {
        out::json(&answer)?;
    } else {
        for applied in shape::<ApplyView>(&answer)?.items {
            out::line(describe(&applied, count_of(file, &applied.name)))?;
        }
    }
    Ok(file.service.iter().map(|service| service.name.clone()).collect())
}

fn count_of(file: &SpecFile, name: &str) -> Option<i64> {
    let service = file.service.iter().find(|service| service.name == name)?;
    match service.kind.as_str() {
        "system" => None,
        _ => Some(service.count.unwrap_or(1)),
    }
}

fn describe(applied: &AppliedView, count: Option<i64>) -> String {
    let name = &applied.name;
    let scaled = applied.count.map(|count| format!("scaled {} -> {}", count.from, count.to));
    match applied.outcome.as_str() {
        "created" if applied.kind == "feed" => format!("{name} created (feed)"),
        "created" if applied.kind == "store-group" => format!("{name} created (store group)"),
        "created" => match count {
            None => format!("{name} created (one instance on every node)"),
            Some(1) => format!("{name} created (1 instance)"),
            Some(n) => format!("{name} created ({n} instances)"),
        },
        "updated" => {
            let release = applied.release.map(|release| format!(" to release {release}")).unwrap_or_default();
            let scaled = scaled.map(|text| format!(", {text}")).unwrap_or_default();
            format!("{name} updated{release}{scaled}")
        }
        "scaled" => format!("{name} {}", scaled.unwrap_or_else(|| "scaled".to_owned())),
        other => format!("{name} {other}"),
    }
}

/// Follows until all of it runs, or a release has failed.
async fn wait(asker: &Asker, names: &[String]) -> Outcome {
    for name in names {
        let mut last = String::new();
        loop {
            let answer = asker.client.get(&format!("/v1/services/{}", encode(name))).await?;
            let service: ServiceView = shape(&answer)?;
            let rollout = &service.rollout;
            let line = format!(
                "{name}: release {} {}, {}/{} ready",
                rollout.release, rollout.state, service.ready, service.count
            );
            if line != last {
                out::note(&line);
                last = line;
            }
            match rollout.state.as_str() {
                "failed" => {
                    let code = rollout.reason.as_deref().unwrap_or("unknown");
                    let why = rollout.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
                    let release = rollout.release;
                    return Err(Failure::otherwise(format!("{name}: release {release} failed: {code}{why}")));
                }
                "complete" if service.state == "ok" => break,
                _ => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}
