//! Making certificates: one authority per cluster, kept by whoever runs it, away from the nodes.

use std::{
    fs,
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use crate::{
    keys::{KeysError, certificates},
    revoked,
    who::{Who, is_name},
};

/// Clocks of machines differ; a certificate is good on those that are a little behind.
const CLOCKS_DIFFER: Duration = Duration::from_secs(3600);
const AUTHORITY_LIVES: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";

#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("{} is there already: an authority is made once", .0.display())]
    Exists(PathBuf),
    #[error("there is no authority in {}; make one with `tidegate tls init {}`", .0.display(), .0.display())]
    NoAuthority(PathBuf),
    #[error("{0:?} is not a name: lower-case letters, digits, dashes and dots, 63 at most")]
    Name(String),
    #[error("{0:?} is not a host: an address or a name, without a port")]
    Host(String),
    #[error("cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot tell which certificate is meant")]
    Which(#[source] KeysError),
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

/// The files of a certificate that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Signs what a cluster's daemons and people show each other.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, in a directory that has none.
    pub fn init(dir: &Path) -> Result<Authority, IssueError> {
        fs::create_dir_all(dir).map_err(at(dir))?;
        for name in [CERTIFICATE, KEY] {
            if dir.join(name).exists() {
                return Err(IssueError::Exists(dir.join(name)));
            }
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named("Tidegate authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let now = SystemTime::now();
        (params.not_before, params.not_after) = (moment(now - CLOCKS_DIFFER), moment(now + AUTHORITY_LIVES));
        let certificate = params.self_signed(&key)?;
        write(&dir.join(KEY), &key.serialize_pem(), 0o600)?;
        write(&dir.join(CERTIFICATE), &certificate.pem(), 0o644)?;
        Ok(Authority { dir: dir.to_owned(), issuer: Issuer::new(params, key) })
    }

    pub fn open(dir: &Path) -> Result<Authority, IssueError> {
        let read = |name: &str| match fs::read_to_string(dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(IssueError::NoAuthority(dir.to_owned()))
            }
            other => other.map_err(at(&dir.join(name))),
        };
        let key = KeyPair::from_pem(&read(KEY)?)?;
        let issuer = Issuer::from_ca_cert_pem(&read(CERTIFICATE)?, key)?;
        Ok(Authority { dir: dir.to_owned(), issuer })
    }

    /// What everybody needs to know whom to trust.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join(CERTIFICATE)
    }

    /// For a daemon: to dial others, and to be dialled at any of `hosts`. Replaces the one that is there.
    pub fn node(&self, name: &str, hosts: &[String], until: SystemTime) -> Result<Issued, IssueError> {
        let who = Who::Node(name.to_owned());
        let uses = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(name, &who, hosts, &uses, until)
    }

    /// For a person: to ask the coordinator, and to be taken at their word there.
    pub fn person(&self, name: &str, access: model::Access, until: SystemTime) -> Result<Issued, IssueError> {
        let who = Who::Person { name: name.to_owned(), access };
        self.issue(name, &who, &[], &[ExtendedKeyUsagePurpose::ClientAuth], until)
    }

    /// Puts the certificate that `name` has at present on the list of those that count no more. Returns the list,
    /// which each daemon wants beside its `ca.pem`, or nothing if it was on it already.
    pub fn revoke(&self, name: &str) -> Result<Option<PathBuf>, IssueError> {
        if !is_name(name) || name == "ca" {
            return Err(IssueError::Name(name.to_owned()));
        }
        let shown = certificates(&self.dir.join(format!("{name}.pem"))).map_err(IssueError::Which)?;
        let print = revoked::fingerprint(&shown[0]);
        if revoked::read(&self.certificate()).map_err(IssueError::Which)?.contains(&print) {
            return Ok(None);
        }
        let list = revoked::path(&self.certificate());
        let before = match fs::read_to_string(&list) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other.map_err(at(&list))?,
        };
        let ended = before.is_empty() || before.ends_with('\n');
        let text = format!("{before}{}{}", if ended { "" } else { "\n" }, revoked::line(&print, name));
        write(&list, &text, 0o644)?;
        Ok(Some(list))
    }

    fn issue(
        &self,
        name: &str,
        who: &Who,
        hosts: &[String],
        uses: &[ExtendedKeyUsagePurpose],
        until: SystemTime,
    ) -> Result<Issued, IssueError> {
        // The authority's own files have such a name.
        if !is_name(name) || name == "ca" {
            return Err(IssueError::Name(name.to_owned()));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.subject_alt_names = vec![SanType::URI(who.uri().try_into()?)];
        for host in hosts {
            params.subject_alt_names.push(host_name(host)?);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = uses.to_vec();
        params.use_authority_key_identifier_extension = true;
        params.not_after = moment(until);
        params.not_before = moment(until.min(SystemTime::now()) - CLOCKS_DIFFER);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let files =
            Issued { cert: self.dir.join(format!("{name}.pem")), key: self.dir.join(format!("{name}.key")) };
        write(&files.key, &key.serialize_pem(), 0o600)?;
        write(&files.cert, &certificate.pem(), 0o644)?;
        Ok(files)
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn host_name(host: &str) -> Result<SanType, IssueError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let wrong = || IssueError::Host(host.to_owned());
    rustls::pki_types::DnsName::try_from(host.to_owned()).map_err(|_| wrong())?;
    Ok(SanType::DnsName(host.to_owned().try_into().map_err(|_| wrong())?))
}

/// As far as calendars go.
fn moment(at: SystemTime) -> OffsetDateTime {
    let since_1970 = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let at = i64::try_from(since_1970).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(at).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A daemon that looks meanwhile finds the file that was there, or this one whole.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), IssueError> {
    let half = path.with_extension("part");
    let written = (|| {
        let _ = fs::remove_file(&half);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&half)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&half, path)
    })();
    written.map_err(at(path))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> IssueError {
    let path = path.to_owned();
    move |source| IssueError::File { path, source }
}
