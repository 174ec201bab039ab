//! A daemon's own certificate and whom it trusts, read from files and read again when they change.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
    time::{Duration, SystemTime},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{Resumption, WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{
    limits::CERTIFICATE_WARNING,
    revoked::{self, But, Fingerprint},
    who::Who,
};

/// Where the three are kept, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// Whose signatures count. May hold two while one takes over from the other.
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("{} cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no {what} in PEM", path.display())]
    Empty { path: PathBuf, what: &'static str },
    #[error("{} is not the key of {}", key.display(), cert.display())]
    Mismatch { cert: PathBuf, key: PathBuf },
    #[error("{} has expired; make another with `tidegate tls`", .0.display())]
    Expired(PathBuf),
    #[error("{} is not valid yet: is this machine's clock right?", .0.display())]
    NotYet(PathBuf),
    #[error("{} was revoked; make another with `tidegate tls`", .0.display())]
    Revoked(PathBuf),
    #[error("{}: line {line} is no fingerprint of a certificate", path.display())]
    List { path: PathBuf, line: usize },
    #[error("{} is not signed by the authority in {}", cert.display(), ca.display())]
    Stranger { cert: PathBuf, ca: PathBuf },
    #[error("{} speaks for no node and for no person; it was not made by `tidegate tls`", .0.display())]
    Nobody(PathBuf),
    #[error("{} speaks for {found}, this is {wanted}", path.display())]
    Other { path: PathBuf, found: String, wanted: String },
    #[error("{} cannot be used", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub who: Option<Who>,
    /// Where its holder may be dialled.
    pub hosts: Vec<String>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
}

impl Certificate {
    /// The first of a file.
    pub fn read(path: &Path) -> Result<Certificate, KeysError> {
        let first = certificates(path)?.swap_remove(0);
        Certificate::parse(&first).ok_or_else(|| empty(path, "certificate"))
    }

    pub(crate) fn parse(der: &[u8]) -> Option<Certificate> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let host = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        };
        Some(Certificate {
            who: Who::of(&parsed),
            hosts: names.iter().filter_map(host).collect(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
        })
    }

    /// How long it is still good; nothing if it has expired.
    pub fn lives(&self) -> Duration {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Duration::from_secs(u64::try_from(self.not_after).unwrap_or(0)).saturating_sub(now)
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from);
    v4.or(v6).ok().map(|address| address.to_string())
}

/// What is made of the files, all at once.
pub(crate) struct Material {
    pub certificate: Certificate,
    pub who: Option<Who>,
    /// Asks every caller for a certificate.
    pub nodes: Arc<ServerConfig>,
    /// Takes one if the caller has it.
    pub anyone: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    pub revoked: Arc<BTreeSet<Fingerprint>>,
}

/// Tells one state of the files from another.
type Stamps = [Option<(u64, u64, SystemTime)>; 4];

struct Held {
    material: Arc<Material>,
    loaded: Stamps,
    /// Of the last look: files that still change are not read.
    seen: Stamps,
    generation: u64,
}

/// Cheap to clone; all clones follow the files together.
#[derive(Clone)]
pub struct Keys {
    files: Arc<KeyFiles>,
    held: Arc<RwLock<Held>>,
}

impl Keys {
    /// A certificate of ours, which speaks for a node or for a person.
    pub fn load(files: KeyFiles) -> Result<Keys, KeysError> {
        let keys = Keys::load_any(files)?;
        match keys.who() {
            Some(_) => Ok(keys),
            None => Err(KeysError::Nobody(keys.files.cert.clone())),
        }
    }

    /// Any certificate, as others ask for who know nothing of nodes and people.
    pub fn load_any(files: KeyFiles) -> Result<Keys, KeysError> {
        let loaded = stamps(&files);
        let material = Arc::new(read(&files)?);
        let held = Held { material, loaded, seen: loaded, generation: 1 };
        Ok(Keys { files: Arc::new(files), held: Arc::new(RwLock::new(held)) })
    }

    pub fn files(&self) -> &KeyFiles {
        &self.files
    }

    pub fn who(&self) -> Option<Who> {
        self.material().who.clone()
    }

    pub fn certificate(&self) -> Certificate {
        self.material().certificate.clone()
    }

    /// Whether its end is so near that somebody should be told.
    pub fn ends_soon(&self) -> bool {
        self.certificate().lives() < CERTIFICATE_WARNING
    }

    /// Looks at the files. Those that changed, and have settled since the last look or are wanted `at_once`,
    /// are what connections from then on use. If they cannot be used, everything stays as it is.
    pub fn look(&self, at_once: bool) -> Result<bool, KeysError> {
        let found = stamps(&self.files);
        let who = {
            let Ok(mut held) = self.held.write() else { return Ok(false) };
            let settled = std::mem::replace(&mut held.seen, found) == found;
            if !at_once && (found == held.loaded || !settled) {
                return Ok(false);
            }
            held.loaded = found;
            held.material.who.clone()
        };
        let material = read(&self.files)?;
        if material.who != who {
            let words = |who: Option<Who>| who.map_or_else(|| "nobody".to_owned(), |who| who.to_string());
            let (found, wanted) = (words(material.who), words(who));
            return Err(KeysError::Other { path: self.files.cert.clone(), found, wanted });
        }
        if let Ok(mut held) = self.held.write() {
            held.material = Arc::new(material);
            held.generation += 1;
        }
        Ok(true)
    }

    pub(crate) fn material(&self) -> Arc<Material> {
        // A lock is never held while anything can fail: it is not poisoned.
        let held = self.held.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(&held.material)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.held.read().unwrap_or_else(std::sync::PoisonError::into_inner).generation
    }
}

fn stamps(files: &KeyFiles) -> Stamps {
    use std::os::unix::fs::MetadataExt;
    let stamp = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.modified().ok()?))
    };
    [stamp(&files.ca), stamp(&files.cert), stamp(&files.key), stamp(&revoked::path(&files.ca))]
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Those whose signatures count.
pub(crate) fn roots(ca: &Path) -> Result<RootCertStore, KeysError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|source| KeysError::Unusable { path: ca.to_owned(), source })?;
    }
    Ok(roots)
}

fn unusable(path: &Path) -> impl FnOnce(rustls::Error) -> KeysError {
    let path = path.to_owned();
    move |source| KeysError::Unusable { path, source }
}

/// Callers that must show a certificate, and callers that may.
type Verifiers = [Arc<dyn ClientCertVerifier>; 2];

fn of_callers(ca: &Path, revoked: &Arc<BTreeSet<Fingerprint>>) -> Result<Verifiers, KeysError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider());
    let offered = verifier.clone().allow_unauthenticated().build();
    let [asked, offered] = [verifier.build(), offered];
    let but = |inner: Result<Arc<dyn ClientCertVerifier>, _>| match inner {
        Ok(inner) => {
            let but: Arc<dyn ClientCertVerifier> = Arc::new(But { revoked: Arc::clone(revoked), inner });
            Ok(but)
        }
        Err(error) => Err(unusable(ca)(rustls::Error::General(format!("{error}")))),
    };
    Ok([but(asked)?, but(offered)?])
}

/// Of those who are dialled.
pub(crate) fn of_servers(ca: &Path) -> Result<Arc<dyn ServerCertVerifier>, KeysError> {
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(ca)?), provider()).build();
    let inner = inner.map_err(|error| unusable(ca)(rustls::Error::General(format!("{error}"))))?;
    let inner: Arc<dyn ServerCertVerifier> = inner;
    Ok(Arc::new(But { revoked: Arc::new(revoked::read(ca)?), inner }))
}

fn read(files: &KeyFiles) -> Result<Material, KeysError> {
    let KeyFiles { ca, cert, key } = files;
    let chain = certificates(cert)?;
    let revoked = Arc::new(revoked::read(ca)?);
    let [verifier, offered] = of_callers(ca, &revoked)?;
    check(files, &chain, &*verifier)?;
    let certificate = Certificate::parse(&chain[0]).ok_or_else(|| empty(cert, "certificate"))?;
    let who = certificate.who.clone();
    let mismatch = |source: rustls::Error| match source {
        rustls::Error::InconsistentKeys(_) => KeysError::Mismatch { cert: cert.clone(), key: key.clone() },
        source => KeysError::Unusable { path: cert.clone(), source },
    };
    let server = |verifier: Arc<dyn ClientCertVerifier>, protocol: &[u8]| -> Result<_, KeysError> {
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable(cert))?;
        let config = config.with_client_cert_verifier(verifier);
        let mut config = config.with_single_cert(chain.clone(), private_key(key)?).map_err(mismatch)?;
        // A session that goes on from an earlier one would not look at certificates again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Arc::new(config))
    };
    let client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable(cert))?
        .dangerous()
        .with_custom_certificate_verifier(of_servers(ca)?);
    let mut client = client.with_client_auth_cert(chain.clone(), private_key(key)?).map_err(mismatch)?;
    client.resumption = Resumption::disabled();
    Ok(Material {
        nodes: server(verifier, b"h2")?,
        anyone: server(offered, b"http/1.1")?,
        client: Arc::new(client),
        certificate,
        who,
        revoked,
    })
}

/// Whether others would believe our certificate, said before they have to.
fn check(
    files: &KeyFiles,
    chain: &[CertificateDer<'static>],
    verifier: &dyn ClientCertVerifier,
) -> Result<(), KeysError> {
    use rustls::CertificateError as Fault;
    let cert = files.cert.clone();
    match verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(Fault::Expired | Fault::ExpiredContext { .. })) => {
            Err(KeysError::Expired(cert))
        }
        Err(rustls::Error::InvalidCertificate(Fault::NotValidYet | Fault::NotValidYetContext { .. })) => {
            Err(KeysError::NotYet(cert))
        }
        Err(rustls::Error::InvalidCertificate(Fault::Revoked)) => Err(KeysError::Revoked(cert)),
        Err(rustls::Error::InvalidCertificate(Fault::UnknownIssuer | Fault::BadSignature)) => {
            Err(KeysError::Stranger { cert, ca: files.ca.clone() })
        }
        Err(source) => Err(KeysError::Unusable { path: cert, source }),
    }
}

/// One at least.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KeysError> {
    let bytes = bytes(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) | Err(_) => Err(empty(path, "certificate")),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, KeysError> {
    PrivateKeyDer::from_pem_slice(&bytes(path)?).map_err(|_| empty(path, "private key"))
}

fn bytes(path: &Path) -> Result<Vec<u8>, KeysError> {
    fs::read(path).map_err(|source| KeysError::Read { path: path.to_owned(), source })
}

fn empty(path: &Path, what: &'static str) -> KeysError {
    KeysError::Empty { path: path.to_owned(), what }
}
