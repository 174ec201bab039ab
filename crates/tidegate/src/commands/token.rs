//! `token …` and `audit`.

use reqwest::Method;
use serde_json::json;
use server::api::{AuditView, NewTokenView, TokenView};
use server::view::List;

use super::Asker;
use crate::{
    cli::TokenCommand,
    client::{encode, shape},
    failure::Outcome,
    out::{self, Columns, age, cell},
};

pub async fn token_command(asker: &Asker, command: TokenCommand) -> Outcome {
    match command {
        TokenCommand::Create { name, role, expires_in } => create(asker, &name, &role, expires_in).await,
        TokenCommand::List => list(asker).await,
        TokenCommand::Revoke { name } => {
            let path = format!("/v1/tokens/{}", encode(&name));
            let answer = asker.client.call(Method::DELETE, &path, None).await?;
            asker.done(&answer, format!("token {name} revoked"))
        }
    }
}

async fn create(asker: &Asker, name: &str, role: &str, expires_in: Option<String>) -> Outcome {
    let body = json!({ "name": name, "access": role, "expires_in": expires_in });
    let answer = asker.client.call(Method::POST, "/v1/tokens", Some(body)).await?;
    let made: NewTokenView = shape(&answer)?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let end = made.expires_at.map_or_else(|| "until it is revoked".to_owned(), |at| format!("until {at}"));
    out::note(format!("token {name} for a(n) {role}, good {end}; it is shown this once:"));
    out::line(made.token)
}

async fn list(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/tokens").await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let tokens = shape::<List<TokenView>>(&answer)?.items;
    if tokens.is_empty() {
        return out::line("no tokens");
    }
    let mut columns = Columns::new(&["name", "role", "age", "made by", "expires"]);
    for token in tokens {
        let expires = match (token.expired, token.expires_at) {
            (true, _) => "expired".to_owned(),
            (false, Some(at)) => at,
            (false, None) => "-".to_owned(),
        };
        let made = age(&token.created_at);
        columns.row(vec![
            cell(token.name),
            cell(token.access),
            cell(made),
            cell(token.created_by),
            cell(expires),
        ]);
    }
    columns.print()
}

pub async fn audit(asker: &Asker, limit: u32) -> Outcome {
    let answer = asker.client.get(&format!("/v1/audit?limit={limit}")).await?;
    if asker.is_json() {
        return out::json(&answer);
    }
    let entries = shape::<List<AuditView>>(&answer)?.items;
    if entries.is_empty() {
        return out::line("nothing was changed yet");
    }
    let mut columns = Columns::new(&["at", "who", "from", "what"]);
    for entry in entries {
        columns.row(vec![cell(entry.at), cell(entry.who), cell(entry.from), cell(entry.what)]);
    }
    columns.print()
}
