//! Dialling with a certificate, and checking that of whoever answers.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint, Error, Uri};

use crate::{
    keys::{Certificate, Keys, KeysError, Material, of_servers, provider},
    limits::IDLE_MAX,
    watched::Watched,
    who::Who,
};

impl Keys {
    /// Opens an HTTP/2 connection whose other side must be a node reached at one of its own hosts, and, if
    /// `expected` says so, that very node.
    pub async fn dial(&self, endpoint: Endpoint, expected: Option<&str>) -> Result<Channel, Error> {
        let (keys, expected) = (self.clone(), expected.map(str::to_owned));
        let connector = tower::service_fn(move |uri: Uri| {
            let (keys, expected) = (keys.clone(), expected.clone());
            async move { connect(&keys, &uri, expected.as_deref()).await.map(TokioIo::new) }
        });
        endpoint.connect_with_connector(connector).await
    }

    /// As [`dial`](Self::dial), to a server that is not a daemon of ours, such as etcd: its certificate is of
    /// our authority and for the host that was dialled.
    pub async fn dial_server(&self, endpoint: Endpoint) -> Result<Channel, Error> {
        let material = self.material();
        let connector = tower::service_fn(move |uri: Uri| {
            let material = Arc::clone(&material);
            async move { handshake(&material, &uri).await.map(TokioIo::new) }
        });
        endpoint.connect_with_connector(connector).await
    }

    /// With which a client of HTTP is made.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.material().client)
    }
}

async fn handshake(material: &Material, uri: &Uri) -> io::Result<TlsStream<TcpStream>> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
    let tcp = TcpStream::connect((host.as_str(), port)).await?;
    tcp.set_nodelay(true)?;
    let mut config = (*material.client).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

async fn connect(
    keys: &Keys,
    uri: &Uri,
    expected: Option<&str>,
) -> io::Result<Watched<TlsStream<TcpStream>>> {
    let stream = handshake(&keys.material(), uri).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
    let stream = Watched::new(stream, keys, shown.as_deref());
    match (
        shown.and_then(|shown| Certificate::parse(&shown)).and_then(|certificate| certificate.who),
        expected,
    ) {
        (Some(Who::Node(node)), Some(expected)) if node != expected => {
            Err(io::Error::other(format!("the certificate there is {node}'s, {expected} was meant")))
        }
        (Some(Who::Node(_)), _) => Ok(stream),
        (Some(Who::Person { .. }) | None, _) => {
            Err(io::Error::other("the certificate there is not a node's"))
        }
    }
}

/// Whom a client without a daemon trusts, and what it shows of itself.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Without one, only plain connections are possible.
    pub ca: Option<PathBuf>,
    pub cert: Option<(PathBuf, PathBuf)>,
}

impl Trust {
    /// For a client that lives as long as one command.
    pub fn config(&self) -> Result<Option<ClientConfig>, KeysError> {
        let Some(ca) = &self.ca else { return Ok(None) };
        if let Some((cert, key)) = &self.cert {
            let files = crate::KeyFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() };
            return Ok(Some((*Keys::load(files)?.client_config()).clone()));
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|source| KeysError::Unusable { path: ca.clone(), source })?;
        let config = config.dangerous().with_custom_certificate_verifier(of_servers(ca)?);
        Ok(Some(config.with_no_client_auth()))
    }
}

/// A daemon's HTTP client: plain, or with its certificate, which it follows.
#[derive(Clone)]
pub struct Http {
    keys: Option<Keys>,
    connect_within: std::time::Duration,
    made: Arc<Mutex<(u64, reqwest::Client)>>,
}

impl Http {
    pub fn new(keys: Option<Keys>, connect_within: std::time::Duration) -> Result<Http, reqwest::Error> {
        let client = build(keys.as_ref(), connect_within)?;
        let generation = keys.as_ref().map_or(0, Keys::generation);
        Ok(Http { keys, connect_within, made: Arc::new(Mutex::new((generation, client))) })
    }

    /// The present one. A clone that is kept does not follow.
    pub fn client(&self) -> reqwest::Client {
        let mut made = self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let generation = self.keys.as_ref().map_or(0, Keys::generation);
        if made.0 != generation
            && let Ok(client) = build(self.keys.as_ref(), self.connect_within)
        {
            *made = (generation, client);
        }
        made.1.clone()
    }

    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// `host:port` or a URL, as a URL without a slash at its end.
    pub fn base_url(&self, address: &str) -> String {
        let address = address.trim_end_matches('/');
        match (address.contains("://"), &self.keys) {
            (true, _) => address.to_owned(),
            (false, Some(_)) => format!("https://{address}"),
            (false, None) => format!("http://{address}"),
        }
    }
}

fn build(
    keys: Option<&Keys>,
    connect_within: std::time::Duration,
) -> Result<reqwest::Client, reqwest::Error> {
    let builder = http()
        .connect_timeout(connect_within)
        .pool_idle_timeout(IDLE_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    match keys {
        Some(keys) => builder.tls_backend_preconfigured((*keys.client_config()).clone()).build(),
        None => builder.build(),
    }
}

/// A client that speaks plainly. Made in no other way: reqwest's own would look for the authorities of this
/// machine, and for a provider of cryptography that nobody has installed.
pub fn http() -> reqwest::ClientBuilder {
    reqwest::Client::builder().tls_backend_preconfigured(nobody())
}

impl Trust {
    /// Gives a client of a person this trust.
    pub fn applied(&self, builder: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder, KeysError> {
        Ok(match self.config()? {
            Some(config) => builder.tls_backend_preconfigured(config),
            None => builder,
        })
    }
}

/// Trusts nobody: for clients that speak plainly.
fn nobody() -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .map(|config| config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
        .unwrap_or_else(|_| unreachable!("the provider knows the versions it comes with"))
}
