//! The commands that ask a running cluster.

mod apply;
mod drain;
mod events;
mod feed;
mod instance;
mod node;
mod status;
mod store;
mod tables;
mod tls;
mod token;
mod volume;

use reqwest::Method;
use serde_json::{Value, json};
use server::view::DoctorView;

use crate::{
    cli::{Command, DrainCommand, Format, Global, InstanceCommand, NodeCommand, VolumeCommand},
    client::{Client, encode, shape},
    failure::{Failure, Outcome},
    out, target,
};

pub use apply::send;
pub use tables::{nodes, reason_line, services};
pub use tls::tls;

/// A client and how its answers are printed.
pub struct Asker {
    pub client: Client,
    pub format: Format,
}

impl Asker {
    pub fn new(global: &Global) -> Outcome<Asker> {
        Ok(Asker { client: Client::new(global)?, format: global.output })
    }

    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    pub fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// The answer to a change: the server's words for programs, one line for people.
    fn done(&self, answer: &Value, text: String) -> Outcome {
        match self.is_json() {
            true => out::json(answer),
            false => out::line(text),
        }
    }
}

/// Carries out a command that needs nothing but the API.
pub async fn run(global: &Global, command: Command) -> Outcome {
    // A file that is wrong is told whether or not there is a server.
    if let Command::Apply(args) = command {
        return apply::apply(global, args).await;
    }
    let asker = Asker::new(global)?;
    match command {
        Command::Remove { target, destroy_data } => remove(&asker, &target, destroy_data).await,
        Command::Scale { target, count } => scale(&asker, &target, count).await,
        Command::Status { target } => status::status(&asker, target.as_deref()).await,
        Command::Node(command) => node_command(&asker, command).await,
        Command::Drain(command) => drain_command(&asker, command).await,
        Command::Instance(command) => instance_command(&asker, command).await,
        Command::Volume(command) => volume_command(&asker, command).await,
        Command::Feed(command) => feed::feed_command(&asker, command).await,
        Command::Store(command) => store::store_command(&asker, command).await,
        Command::StoreGroup(command) => store::group_command(&asker, command).await,
        Command::Events { follow, since } => events::events(&asker, follow, since).await,
        Command::Token(command) => token::token_command(&asker, command).await,
        Command::Audit { limit } => token::audit(&asker, limit).await,
        Command::Doctor => doctor(&asker).await,
        Command::Apply(_)
        | Command::Dev(_)
        | Command::Run(_)
        | Command::Tls(_)
        | Command::Completions { .. }
        | Command::Shim { .. }
        | Command::Shims { .. }
        | Command::Guard { .. }
        | Command::Leash { .. }
        | Command::Demo(_) => Err(Failure::usage("this command does not ask a cluster")),
    }
}

async fn node_command(asker: &Asker, command: NodeCommand) -> Outcome {
    match command {
        NodeCommand::List => node::list(asker).await,
        NodeCommand::Status { node } => node::status(asker, target::expect(target::Kind::Node, &node)?).await,
        NodeCommand::Drain(args) => drain::start(asker, args).await,
        NodeCommand::Cancel { node } => drain::cancel_node(asker, &node).await,
        NodeCommand::Enable { node } => node::set_intent(asker, &node, "active").await,
        NodeCommand::Disable { node } => node::set_intent(asker, &node, "disabled").await,
        NodeCommand::ConfirmDead { node } => node::confirm_dead(asker, &node).await,
    }
}

async fn drain_command(asker: &Asker, command: DrainCommand) -> Outcome {
    match command {
        DrainCommand::List => drain::list(asker).await,
        DrainCommand::Status { epoch } => drain::status(asker, &epoch).await,
        DrainCommand::Cancel { epoch } => drain::cancel(asker, &epoch).await,
    }
}

async fn instance_command(asker: &Asker, command: InstanceCommand) -> Outcome {
    match command {
        InstanceCommand::List { service, node, all } => instance::list(asker, service, node, all).await,
        InstanceCommand::Status { id } => {
            instance::status(asker, target::expect(target::Kind::Instance, &id)?).await
        }
        InstanceCommand::Logs { id, follow, lines } => instance::logs(asker, &id, follow, lines).await,
        InstanceCommand::Stop { id } => instance::stop(asker, &id).await,
    }
}

async fn volume_command(asker: &Asker, command: VolumeCommand) -> Outcome {
    match command {
        VolumeCommand::List => volume::list(asker).await,
        VolumeCommand::Status { volume } => {
            volume::status(asker, target::expect(target::Kind::Volume, &volume)?).await
        }
        VolumeCommand::Attach { volume, node } => volume::attach(asker, &volume, &node).await,
    }
}

async fn remove(asker: &Asker, text: &str, destroy_data: bool) -> Outcome {
    match target::parse(text)? {
        (Some(target::Kind::StoreGroup), name) => return store::remove(asker, name, destroy_data).await,
        _ if destroy_data => {
            return Err(Failure::usage("--destroy-data is for store groups: write store-group/NAME"));
        }
        (Some(target::Kind::Feed), name) => return feed::remove(asker, name).await,
        _ => {}
    }
    let name = target::expect(target::Kind::Service, text)?;
    let path = format!("/v1/services/{}", encode(name));
    let answer = asker.client.call(Method::DELETE, &path, None).await?;
    asker.done(&answer, format!("{name} removed; its instances are stopping"))
}

async fn scale(asker: &Asker, text: &str, count: u32) -> Outcome {
    if let (Some(target::Kind::StoreGroup), name) = target::parse(text)? {
        return store::scale(asker, name, count).await;
    }
    let name = target::expect(target::Kind::Service, text)?;
    let path = format!("/v1/services/{}", encode(name));
    let before = asker.client.get(&path).await?.get("count").and_then(Value::as_u64);
    let body = Some(json!({ "count": count }));
    let answer = asker.client.call(Method::PUT, &format!("{path}/count"), body).await?;
    asker.done(
        &answer,
        match before {
            Some(before) if before == u64::from(count) => format!("{name} unchanged ({count} instances)"),
            Some(before) => format!("{name} scaled {before} -> {count}"),
            None => format!("{name} scaled to {count}"),
        },
    )
}

async fn doctor(asker: &Asker) -> Outcome {
    let answer = asker.client.get("/v1/doctor").await?;
    let found: DoctorView = shape(&answer)?;
    if asker.is_json() {
        out::json(&answer)?;
    } else {
        for violation in &found.items {
            out::line(&violation.message)?;
        }
    }
    match found.items.len() {
        0 if asker.is_json() => Ok(()),
        0 => out::line(format!("all invariants hold ({} instances looked at)", found.instances)),
        1 => Err(Failure::otherwise("an invariant is violated; please report it with the output above")),
        n => Err(Failure::otherwise(format!(
            "{n} invariants are violated; please report them with the output above"
        ))),
    }
}
