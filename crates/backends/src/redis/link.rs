//! Connections to the nodes of a cluster, for the time of one call.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline, Value};

use crate::contract::StoreId;
use crate::error::BackendError;
use crate::redis::RedisConfig;
use crate::redis::view::{self, Survey};
use crate::secret::Endpoint;

/// The name of connections that change who leads what.
const MOVER: &str = "tidegate-mover";

/// A connection to one node.
#[derive(Clone)]
pub struct Link {
    pub address: String,
    operation: &'static str,
    connection: MultiplexedConnection,
    secret: Endpoint,
}

/// User and password for every node of the cluster, and for nodes among themselves (`MIGRATE`).
#[derive(Clone, Default)]
pub struct Credentials {
    pub user: Option<String>,
    pub password: Option<String>,
}

impl Link {
    async fn open(
        seed: &Endpoint,
        address: &str,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<Link, BackendError> {
        let failed = |why: String| BackendError::Unreachable {
            operation,
            whom: address.to_owned(),
            why: seed.scrub(&why),
        };
        let wrong = |why: &str| BackendError::NotPossible { operation, why: format!("{seed}: {why}") };
        let (host, port) = address.rsplit_once(':').ok_or_else(|| wrong("host:port is missing"))?;
        let port = port.parse().map_err(|_| wrong("the port is no number"))?;
        let info = seed.reveal().into_connection_info().map_err(|_| wrong("no redis:// address"))?;
        if !matches!(info.addr(), ConnectionAddr::Tcp(..)) {
            return Err(wrong("only redis:// is spoken here, without TLS"));
        }
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings).set_addr(ConnectionAddr::Tcp(host.to_owned(), port));
        let client = Client::open(info).map_err(|error| failed(error.to_string()))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout));
        // A paused process still accepts, and then says nothing to the handshake.
        let connecting =
            tokio::time::timeout(timeout, client.get_multiplexed_async_connection_with_config(&config));
        let connection = match connecting.await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) if error.is_io_error() => return Err(failed(error.to_string())),
            // it answered: to a wrong password, say
            Ok(Err(error)) => {
                let words = seed.scrub(&error.to_string());
                return Err(BackendError::Refused { operation, whom: address.to_owned(), words });
            }
            Err(_) => return Err(failed("it does not answer".to_owned())),
        };
        Ok(Link { address: address.to_owned(), operation, connection, secret: seed.clone() })
    }

    /// One answer per command; those of the server's that are errors stay among them.
    pub async fn many(&self, commands: &Pipeline) -> Result<Vec<Value>, BackendError> {
        let count = commands.len();
        let mut connection = self.connection.clone();
        connection.send_packed_commands(commands, 0, count).await.map_err(|error| self.fault(&error))
    }

    pub async fn one(&self, command: &Cmd) -> Result<Value, BackendError> {
        let mut connection = self.connection.clone();
        let answer = connection.send_packed_command(command).await.map_err(|error| self.fault(&error))?;
        match answer {
            Value::ServerError(words) => Err(self.refused(&words.to_string())),
            answer => Ok(answer),
        }
    }

    pub async fn text(&self, command: &Cmd) -> Result<String, BackendError> {
        let answer = self.one(command).await?;
        redis::from_redis_value(answer).map_err(|_| self.refused("an answer that is no text"))
    }

    fn fault(&self, error: &redis::RedisError) -> BackendError {
        match error.code() {
            Some(_) => self.refused(&error.to_string()),
            None => BackendError::Unreachable {
                operation: self.operation,
                whom: self.address.clone(),
                why: self.secret.scrub(&error.to_string()),
            },
        }
    }

    pub fn refused(&self, words: &str) -> BackendError {
        BackendError::Refused {
            operation: self.operation,
            whom: self.address.clone(),
            words: self.secret.scrub(words),
        }
    }

    /// A number of `INFO`; 0 where it is not told.
    pub async fn info(&self, section: &str, fields: &[&str]) -> Result<Vec<String>, BackendError> {
        let text = self.text(redis::cmd("INFO").arg(section)).await?;
        let find = |field: &&str| {
            let value = text.lines().find_map(|line| line.strip_prefix(*field)?.strip_prefix(':'));
            value.unwrap_or_default().trim().to_owned()
        };
        Ok(fields.iter().map(find).collect())
    }

    pub async fn config(&self, name: &str) -> Result<String, BackendError> {
        let answer = self.one(redis::cmd("CONFIG").arg("GET").arg(name)).await?;
        let pairs: Vec<String> = redis::from_redis_value(answer).unwrap_or_default();
        Ok(pairs.into_iter().nth(1).unwrap_or_default())
    }

    pub async fn configure(&self, name: &str, value: &str) -> Result<(), BackendError> {
        self.one(redis::cmd("CONFIG").arg("SET").arg(name).arg(value)).await.map(|_| ())
    }
}

/// All the connections of one call.
pub struct Session {
    pub operation: &'static str,
    pub survey: Survey,
    pub links: BTreeMap<StoreId, Link>,
    pub credentials: Credentials,
}

impl Session {
    /// Asks every node that anybody knows for its view of the cluster.
    pub async fn open(
        config: &RedisConfig,
        operation: &'static str,
        timeout: Duration,
    ) -> Result<Session, BackendError> {
        let timeout = timeout.min(config.timeout);
        let (seed, base) = best_seed(config, operation, timeout).await?;
        let opened = base.values().map(|node| async {
            let link = Link::open(seed, &node.address, operation, timeout).await?;
            let view = nodes(&link).await?;
            Ok::<_, BackendError>((link, view))
        });
        let mut survey = Survey::default();
        let mut links = BTreeMap::new();
        for (node, result) in base.values().zip(join_all(opened).await) {
            match result {
                Ok((link, view)) if view.get(&node.id).is_some_and(|seen| seen.myself) => {
                    links.insert(node.id.clone(), link);
                    survey.views.insert(node.id.clone(), view);
                }
                // the address has somebody else by now: of this one nothing is known
                Ok(_) => {
                    let why = "another node answers at its address".to_owned();
                    survey.silent.insert(node.id.clone(), (node.clone(), why));
                }
                Err(error) => {
                    survey.silent.insert(node.id.clone(), (node.clone(), error.to_string()));
                }
            }
        }
        let info = seed.reveal().into_connection_info().ok();
        let credentials = info.map(|info| Credentials {
            user: info.redis_settings().username().map(str::to_owned),
            password: info.redis_settings().password().map(str::to_owned),
        });
        Ok(Session { operation, survey, links, credentials: credentials.unwrap_or_default() })
    }

    /// Asks those again who answered.
    pub async fn look_again(&mut self) -> Result<(), BackendError> {
        let asked = self.links.iter().map(|(id, link)| async { (id.clone(), nodes(link).await) });
        for (id, view) in join_all(asked).await {
            self.survey.views.insert(id, view?);
        }
        Ok(())
    }

    pub fn link(&self, id: &StoreId) -> Result<&Link, BackendError> {
        self.links.get(id).ok_or_else(|| match self.survey.silent.get(id) {
            Some((node, why)) => BackendError::Unreachable {
                operation: self.operation,
                whom: node.address.clone(),
                why: why.clone(),
            },
            None => BackendError::NotFound { operation: self.operation, store: id.clone() },
        })
    }

    /// Cuts the connections that earlier calls have left: commands that they sent and that a node has not read yet
    /// would be carried out in the middle of this call. Also those for other stores: a slot may be on its way from one
    /// that leaves to another that leaves.
    pub async fn fence(&self) -> Result<(), BackendError> {
        let fenced = self.links.values().map(|link| async {
            let clients = link.text(redis::cmd("CLIENT").arg("LIST")).await?;
            let mut kill = redis::pipe();
            for client in clients.lines().filter(|line| line.contains(&format!(" name={MOVER} "))) {
                let id = client.split_whitespace().find_map(|word| word.strip_prefix("id="));
                kill.cmd("CLIENT").arg("KILL").arg("ID").arg(id.unwrap_or_default());
            }
            kill.cmd("CLIENT").arg("SETNAME").arg(MOVER);
            link.many(&kill).await.map(|_| ())
        });
        join_all(fenced).await.into_iter().collect()
    }
}

async fn nodes(link: &Link) -> Result<BTreeMap<StoreId, view::Node>, BackendError> {
    Ok(view::parse(&link.text(redis::cmd("CLUSTER").arg("NODES")).await?))
}

/// The seed that knows the most nodes: one that was removed knows itself alone.
async fn best_seed<'a>(
    config: &'a RedisConfig,
    operation: &'static str,
    timeout: Duration,
) -> Result<(&'a Endpoint, BTreeMap<StoreId, view::Node>), BackendError> {
    let asked = config.seeds.iter().map(|seed| async move {
        let link = Link::open(seed, &address_of(seed, operation)?, operation, timeout).await?;
        Ok((seed, nodes(&link).await?))
    });
    let mut best: Option<(&Endpoint, BTreeMap<StoreId, view::Node>)> = None;
    let mut fault = BackendError::NotPossible { operation, why: "no address of the cluster is given".into() };
    for answer in join_all(asked).await {
        match answer {
            Ok((seed, view)) if best.as_ref().is_none_or(|(_, best)| best.len() < view.len()) => {
                best = Some((seed, view));
            }
            Ok(_) => {}
            Err(error) => fault = error,
        }
    }
    best.ok_or(fault)
}

fn address_of(seed: &Endpoint, operation: &'static str) -> Result<String, BackendError> {
    let info = seed.reveal().into_connection_info();
    match info.as_ref().map(|info| info.addr()) {
        Ok(ConnectionAddr::Tcp(host, port)) => Ok(format!("{host}:{port}")),
        Ok(_) | Err(_) => Err(BackendError::NotPossible {
            operation,
            why: format!("{seed}: only redis://host:port is spoken here, without TLS"),
        }),
    }
}

/// Which node answers at an address that is in nobody's view yet.
pub async fn identify(config: &RedisConfig, address: &str) -> Result<(Link, StoreId), BackendError> {
    let operation = "identify";
    let none = BackendError::NotPossible { operation, why: "no address of the cluster is given".into() };
    let seed = config.seeds.first().ok_or(none)?;
    let link = Link::open(seed, address, operation, config.timeout).await?;
    let id = StoreId(link.text(redis::cmd("CLUSTER").arg("MYID")).await?);
    Ok((link, id))
}
