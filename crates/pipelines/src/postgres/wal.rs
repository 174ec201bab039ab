//! The reader of a server's write-ahead log: a session in replication mode.
//!
//! Spoken by hand over `postgres-protocol`, for tokio-postgres has no COPY in both directions. Dropping it
//! closes the socket at once.

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use postgres_protocol::authentication::{self, sasl};
use postgres_protocol::message::backend::{ErrorResponseBody, Header, Message};
use postgres_protocol::message::frontend;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

use super::connect::{
    CONNECT_WITHIN, Endpoint, KEEPALIVE_EVERY, KEEPALIVE_IDLE, SESSION_SETTINGS, SILENT_FOR, Side, Words,
    unreachable,
};
use super::names::{literal, lsn, parse_lsn};
use crate::contract::Trouble;

/// What one read takes from the socket at most.
const READ_BYTES: usize = 256 * 1024;
/// How long a server may take to let go of the slot when told that we are done.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

trait Io: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Io for T {}

pub struct Wal {
    io: Box<dyn Io>,
    input: BytesMut,
    output: BytesMut,
}

/// A slot that was just made, with the snapshot of the moment that its changes follow.
#[derive(Debug)]
pub struct Fresh {
    pub position: u64,
    pub snapshot: String,
}

#[derive(Debug)]
pub enum Frame {
    /// One message of the output plugin.
    Data(Bytes),
    /// Everything before `end` that concerns us has been sent.
    KeepAlive { end: u64, reply: bool },
}

/// Why the session went wrong.
#[derive(Debug)]
pub enum Fault {
    Server(Box<Words>),
    Lost(String),
}

impl Fault {
    pub fn trouble(&self, doing: &str) -> Trouble {
        match self {
            Fault::Server(words) => words.trouble(Side::Source, doing),
            Fault::Lost(why) => unreachable(Side::Source, doing, why),
        }
    }

    pub fn is(&self, code: &str) -> bool {
        matches!(self, Fault::Server(words) if words.code == code)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Lost(error.to_string())
    }
}

fn unexpected(what: &str) -> Fault {
    Fault::Lost(format!("the server sent something unexpected: {what}"))
}

fn refusal(body: &ErrorResponseBody) -> Fault {
    use postgres_protocol::message::backend::ErrorField;
    let mut words = Words::default();
    let mut fields = body.fields();
    while let Ok(Some(field)) = fallible_next(&mut fields) {
        let value = |field: &ErrorField<'_>| String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => words.code = value(&field),
            b'M' => words.message = value(&field),
            b'D' => words.detail = Some(value(&field)),
            b'H' => words.hint = Some(value(&field)),
            _ => {}
        }
    }
    Fault::Server(Box::new(words))
}

fn fallible_next<'a>(
    fields: &mut postgres_protocol::message::backend::ErrorFields<'a>,
) -> io::Result<Option<postgres_protocol::message::backend::ErrorField<'a>>> {
    fallible_iterator::FallibleIterator::next(fields)
}

impl Wal {
    pub async fn connect(endpoint: &Endpoint, application: &str) -> Result<Wal, Trouble> {
        let opened = async {
            let mut wal = Wal::open(endpoint).await?;
            wal.log_in(endpoint, application).await?;
            wal.query(SESSION_SETTINGS).await?;
            Ok(wal)
        };
        let doing = "connecting for replication";
        match timeout(CONNECT_WITHIN, opened).await {
            Ok(opened) => opened.map_err(|fault: Fault| fault.trouble(doing)),
            Err(_) => Err(unreachable(Side::Source, doing, "no answer in time")),
        }
    }

    async fn open(endpoint: &Endpoint) -> Result<Wal, Fault> {
        let config = &endpoint.config;
        let ports = config.get_ports();
        let mut last = Fault::Lost("the URL names no host".to_owned());
        for (at, host) in config.get_hosts().iter().enumerate() {
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            let opened: Result<Box<dyn Io>, Fault> = match host {
                Host::Tcp(name) => Wal::open_tcp(endpoint, name, port).await,
                Host::Unix(path) => match UnixStream::connect(path.join(format!(".s.PGSQL.{port}"))).await {
                    Ok(socket) => Ok(Box::new(socket)),
                    Err(error) => Err(error.into()),
                },
            };
            match opened {
                Ok(io) => return Ok(Wal { io, input: BytesMut::new(), output: BytesMut::new() }),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    async fn open_tcp(endpoint: &Endpoint, host: &str, port: u16) -> Result<Box<dyn Io>, Fault> {
        let mut socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true).map_err(io::Error::from)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE).map_err(io::Error::from)?;
        sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_EVERY).map_err(io::Error::from)?;
        sockopt::set_tcp_user_timeout(&socket, SILENT_FOR.as_millis() as u32).map_err(io::Error::from)?;
        let Some(tls) = &endpoint.tls else { return Ok(Box::new(socket)) };
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        socket.write_all(&request).await?;
        if socket.read_u8().await? != b'S' {
            return Err(Fault::Lost(
                "the server does not speak TLS, which sslmode=require asks for".to_owned(),
            ));
        }
        let Ok(connect) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls.clone(), host);
        Ok(Box::new(connect.connect(socket).await?))
    }

    async fn log_in(&mut self, endpoint: &Endpoint, application: &str) -> Result<(), Fault> {
        let config = &endpoint.config;
        let user = config.get_user().unwrap_or("postgres");
        let parameters = [
            ("user", user),
            ("database", config.get_dbname().unwrap_or(user)),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("application_name", application),
        ];
        frontend::startup_message(parameters, &mut self.output)?;
        self.send().await?;
        let password = config.get_password().unwrap_or_default();
        loop {
            match self.message().await? {
                Message::AuthenticationOk => {}
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password, &mut self.output)?;
                    self.send().await?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = authentication::md5_hash(user.as_bytes(), password, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.output)?;
                    self.send().await?;
                }
                Message::AuthenticationSasl(_) => self.scram(password).await?,
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => return Err(refusal(&body)),
                Message::BackendKeyData(_) | Message::ParameterStatus(_) | Message::NoticeResponse(_) => {}
                _ => return Err(unexpected("a way to log in that is not known here")),
            }
        }
    }

    async fn scram(&mut self, password: &[u8]) -> Result<(), Fault> {
        let mut scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
        frontend::sasl_initial_response(sasl::SCRAM_SHA_256, scram.message(), &mut self.output)?;
        self.send().await?;
        match self.message().await? {
            Message::AuthenticationSaslContinue(body) => scram.update(body.data())?,
            Message::ErrorResponse(body) => return Err(refusal(&body)),
            _ => return Err(unexpected("in logging in")),
        }
        frontend::sasl_response(scram.message(), &mut self.output)?;
        self.send().await?;
        match self.message().await? {
            Message::AuthenticationSaslFinal(body) => Ok(scram.finish(body.data())?),
            Message::ErrorResponse(body) => Err(refusal(&body)),
            _ => Err(unexpected("in logging in")),
        }
    }

    async fn send(&mut self) -> Result<(), Fault> {
        self.io.write_all_buf(&mut self.output).await?;
        self.io.flush().await?;
        Ok(())
    }

    /// Reads what is there, or waits for something. Nothing is lost when it is dropped.
    pub async fn fill(&mut self) -> Result<(), Fault> {
        self.input.reserve(READ_BYTES);
        match self.io.read_buf(&mut self.input).await? {
            0 => Err(Fault::Lost("the server closed the connection".to_owned())),
            _ => Ok(()),
        }
    }

    async fn message(&mut self) -> Result<Message, Fault> {
        loop {
            match Message::parse(&mut self.input)? {
                Some(message) => return Ok(message),
                None => self.fill().await?,
            }
        }
    }

    /// The rows of the last answer, as texts.
    async fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, Fault> {
        frontend::query(sql, &mut self.output)?;
        self.send().await?;
        let mut rows = Vec::new();
        let mut fault = None;
        loop {
            match self.message().await? {
                Message::DataRow(body) => {
                    let mut row = Vec::new();
                    let mut ranges = body.ranges();
                    while let Some(range) = fallible_iterator::FallibleIterator::next(&mut ranges)? {
                        let text = |range| String::from_utf8_lossy(&body.buffer()[range]).into_owned();
                        row.push(range.map(text));
                    }
                    rows.push(row);
                }
                Message::ErrorResponse(body) => fault = Some(refusal(&body)),
                Message::ReadyForQuery(_) => return fault.map_or(Ok(rows), Err),
                _ => {}
            }
        }
    }

    /// Waits until the transactions that are open in the source have ended.
    pub async fn create_slot(&mut self, name: &str) -> Result<Fresh, Fault> {
        let sql = format!("CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput EXPORT_SNAPSHOT");
        let rows = self.query(&sql).await?;
        let field = |at: usize| rows.first()?.get(at)?.as_deref();
        match (field(1).and_then(parse_lsn), field(2)) {
            (Some(position), Some(snapshot)) => Ok(Fresh { position, snapshot: snapshot.to_owned() }),
            _ => Err(unexpected("a slot without snapshot")),
        }
    }

    /// Begins to read the changes of transactions that committed at or after `position`.
    pub async fn start(&mut self, slot: &str, position: u64, publication: &str) -> Result<(), Fault> {
        // The names of publications are themselves a list of identifiers.
        let names = literal(&format!("\"{}\"", publication.replace('"', "\"\"")));
        let sql = format!(
            "START_REPLICATION SLOT {slot} LOGICAL {} (proto_version '1', publication_names {names})",
            lsn(position)
        );
        frontend::query(&sql, &mut self.output)?;
        self.send().await?;
        let mut fault = None;
        loop {
            match Header::parse(&self.input)? {
                // CopyBothResponse, which the parser of ordinary sessions does not know
                Some(header) if header.tag() == b'W' && self.input.len() > header.len() as usize => {
                    self.input.advance(header.len() as usize + 1);
                    return Ok(());
                }
                Some(header) if header.tag() != b'W' => match Message::parse(&mut self.input)? {
                    Some(Message::ErrorResponse(body)) => fault = Some(refusal(&body)),
                    Some(Message::ReadyForQuery(_)) => {
                        return Err(fault.unwrap_or_else(|| unexpected("no stream")));
                    }
                    Some(_) => {}
                    None => self.fill().await?,
                },
                Some(_) | None => self.fill().await?,
            }
        }
    }

    /// The next frame that can be had without waiting.
    pub fn ready(&mut self) -> Result<Option<Frame>, Fault> {
        loop {
            let Some(message) = Message::parse(&mut self.input)? else {
                match self.fill().now_or_never() {
                    Some(read) => read?,
                    None => return Ok(None),
                }
                continue;
            };
            match message {
                Message::CopyData(body) => return frame(body.into_bytes()).map(Some),
                Message::ErrorResponse(body) => return Err(refusal(&body)),
                Message::CopyDone => return Err(Fault::Lost("the server ended the stream".to_owned())),
                _ => {}
            }
        }
    }

    /// Tells the server that everything before `position` is safe; zero tells nothing. `answer` asks for a
    /// keepalive in return.
    pub async fn confirm(&mut self, position: u64, answer: bool) -> Result<(), Fault> {
        let mut status = BytesMut::with_capacity(34);
        status.put_u8(b'r');
        (0..3).for_each(|_| status.put_u64(position));
        // Our clock: the server only shows it.
        status.put_i64(0);
        status.put_u8(u8::from(answer));
        frontend::CopyData::new(status.freeze())?.write(&mut self.output);
        self.send().await
    }

    /// Ends the stream in good order: afterwards the slot is free. What still comes is not looked at.
    pub async fn finish(mut self) {
        let ended = async {
            frontend::copy_done(&mut self.output);
            self.send().await?;
            loop {
                match self.message().await? {
                    Message::ReadyForQuery(_) => return Ok::<(), Fault>(()),
                    Message::ErrorResponse(body) => return Err(refusal(&body)),
                    _ => {}
                }
            }
        };
        match timeout(FINISH_WITHIN, ended).await {
            Ok(Ok(())) => {}
            // A successor ends what is left of it.
            other => tracing::debug!(?other, "the stream did not end in good order"),
        }
    }
}

pub(super) fn frame(mut data: Bytes) -> Result<Frame, Fault> {
    let kind = data.first().copied();
    match kind {
        Some(b'w') if data.len() >= 25 => Ok(Frame::Data(data.split_off(25))),
        Some(b'k') if data.len() >= 18 => {
            data.advance(1);
            let end = data.get_u64();
            let _time = data.get_u64();
            Ok(Frame::KeepAlive { end, reply: data.get_u8() != 0 })
        }
        _ => Err(unexpected("a frame of no known kind")),
    }
}
