//! Connections, and what the database's errors mean to an operator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::Code;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::DbError;
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::contract::Trouble;

/// A database that does not answer within this is called unreachable.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A host that vanished without a word is noticed by its silence.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
pub const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
pub const SILENT_FOR: Duration = Duration::from_secs(60);

/// Which of a feed's two databases something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source,
    Sink,
}

impl Side {
    pub fn unreachable(self) -> Code {
        match self {
            Side::Source => Code::SourceUnreachable,
            Side::Sink => Code::SinkUnreachable,
        }
    }

    pub fn unfit(self) -> Code {
        match self {
            Side::Source => Code::SourceUnfit,
            Side::Sink => Code::SinkUnfit,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Sink => "sink",
        })
    }
}

/// A database by its URL. What it shows of itself holds no password.
#[derive(Clone)]
pub struct Endpoint {
    pub side: Side,
    pub config: Config,
    pub tls: Option<MakeRustlsConnect>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}/{:?}", self.side, self.config.get_hosts(), self.config.get_dbname())
    }
}

impl Endpoint {
    pub fn parse(side: Side, url: &str) -> Result<Endpoint, Trouble> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            // The cause is left out: it may quote a part of the URL.
            Trouble::lasting(side.unfit(), format!("the {side}'s URL cannot be read: {error}"))
        })?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        config.keepalives_idle(KEEPALIVE_IDLE).keepalives_interval(KEEPALIVE_EVERY).keepalives_retries(3);
        config.tcp_user_timeout(SILENT_FOR);
        let tls = match config.get_ssl_mode() {
            SslMode::Require => Some(tls(side)?),
            // Without a verified certificate, encryption keeps nobody out: it is asked for or it is not.
            _ => {
                config.ssl_mode(SslMode::Disable);
                None
            }
        };
        Ok(Endpoint { side, config, tls })
    }

    /// An ordinary session whose texts read the same whatever the server is set to.
    pub async fn connect(&self, application: &str) -> Result<Session, Trouble> {
        let mut config = self.config.clone();
        config.application_name(application);
        let doing = "connecting";
        let opened = async {
            let opened = match &self.tls {
                Some(tls) => {
                    let (client, connection) = config.connect(tls.clone()).await?;
                    (client, tokio::spawn(drive(connection)))
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    (client, tokio::spawn(drive(connection)))
                }
            };
            Ok(opened)
        };
        let (client, driver) = match tokio::time::timeout(2 * CONNECT_WITHIN, opened).await {
            Ok(opened) => opened.map_err(|error| trouble(self.side, doing, &error))?,
            Err(_) => return Err(unreachable(self.side, doing, "no answer in time")),
        };
        let session = Session { client, side: self.side, _driver: Driver(driver) };
        session.run("setting up the session", SESSION_SETTINGS).await?;
        Ok(session)
    }
}

/// What text forms depend on, in source and sink alike. Dates, intervals and floats read back exactly.
pub const SESSION_SETTINGS: &str = "SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; \
     SET extra_float_digits = 3; SET bytea_output = 'hex'; SET timezone = 'UTC'; \
     SET statement_timeout = 0; SET lock_timeout = 0";

fn tls(side: Side) -> Result<MakeRustlsConnect, Trouble> {
    // Refused where the process has chosen one already, which is as good.
    let _chosen = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    match MakeRustlsConnect::with_native_certs() {
        Ok((tls, _unreadable)) => Ok(tls),
        Err(_) => Err(Trouble::lasting(
            side.unfit(),
            format!(
                "the {side} is to be reached with TLS, and this node has no certificates of authorities: \
                 install ca-certificates or set SSL_CERT_FILE"
            ),
        )),
    }
}

async fn drive<S, T>(connection: tokio_postgres::Connection<S, T>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to PostgreSQL ended");
    }
}

/// Ends the connection with its owner: what was sent and not committed must not take effect later.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub struct Session {
    pub client: Client,
    side: Side,
    _driver: Driver,
}

impl Session {
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Statements without parameters and without answer.
    pub async fn run(&self, doing: &str, sql: &str) -> Result<(), Trouble> {
        self.client.batch_execute(sql).await.map_err(|error| trouble(self.side, doing, &error))
    }
}

/// One session that several share, opened when it is needed.
pub struct Shared {
    endpoint: Endpoint,
    application: String,
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
}

impl Shared {
    pub fn new(endpoint: Endpoint, application: String) -> Shared {
        Shared { endpoint, application, session: tokio::sync::Mutex::new(None) }
    }

    pub async fn get(&self) -> Result<Arc<Session>, Trouble> {
        let mut held = self.session.lock().await;
        match &*held {
            Some(session) if !session.is_closed() => Ok(Arc::clone(session)),
            Some(_) | None => {
                let session = Arc::new(self.endpoint.connect(&self.application).await?);
                *held = Some(Arc::clone(&session));
                Ok(session)
            }
        }
    }
}

/// What a database says about an error.
#[derive(Clone, Debug, Default)]
pub struct Words {
    pub code: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    pub context: Option<String>,
    pub column: Option<String>,
}

impl From<&DbError> for Words {
    fn from(error: &DbError) -> Words {
        Words {
            code: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
            hint: error.hint().map(str::to_owned),
            context: error.where_().map(str::to_owned),
            column: error.column().map(str::to_owned),
        }
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        for more in [&self.detail, &self.hint, &self.context].into_iter().flatten() {
            write!(f, "; {more}")?;
        }
        write!(f, " (SQLSTATE {})", self.code)
    }
}

/// Connection lost, resources short, shutting down, deadlock, lock not available, ended by somebody.
const PASSING: [&str; 9] = ["08", "53", "57", "58", "40", "55P03", "55006", "25P03", "XX"];

impl Words {
    /// Values that do not fit, and constraints.
    pub fn is_about_a_row(&self) -> bool {
        ["22", "23", "44"].iter().any(|class| self.code.starts_with(class)) || self.code == "P0001"
    }

    pub fn trouble(&self, side: Side, doing: &str) -> Trouble {
        let message = format!("{doing} in the {side}: {self}");
        match self.code.as_str() {
            // Slots and senders do not come back by waiting, unlike connections.
            "53400" => Trouble::lasting(side.unfit(), message),
            code if PASSING.iter().any(|class| code.starts_with(class)) => {
                Trouble::passing(side.unreachable(), message)
            }
            _ if self.is_about_a_row() && side == Side::Sink => Trouble::lasting(Code::RowRefused, message),
            _ => Trouble::lasting(side.unfit(), message),
        }
    }
}

pub fn unreachable(side: Side, doing: &str, why: impl fmt::Display) -> Trouble {
    Trouble::passing(side.unreachable(), format!("{doing} in the {side}: {why}"))
}

pub fn trouble(side: Side, doing: &str, error: &tokio_postgres::Error) -> Trouble {
    match error.as_db_error() {
        Some(words) => Words::from(words).trouble(side, doing),
        None => unreachable(side, doing, chain(error)),
    }
}

/// An error with its causes; the drivers' errors name hosts and reasons, never passwords.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
