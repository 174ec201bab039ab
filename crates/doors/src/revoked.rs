//! Certificates that count no more: a file beside the authority's certificate, which `tidegate tls revoke` writes.
//!
//! A line each: the SHA-256 of the certificate in hexadecimal, and words for people behind it. There need not be such
//! a file. One that cannot be read is an error: who is on it is not guessed.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use ring::digest;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use crate::keys::KeysError;

const FILE: &str = "revoked.txt";
/// Longer ones are none of ours: room for ten thousand certificates.
const BYTES_MAX: u64 = 2 << 20;

/// The SHA-256 of a certificate.
pub type Fingerprint = [u8; 32];

pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    let mut print = [0; 32];
    print.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    print
}

/// Where it is kept, beside the authority's certificate.
pub(crate) fn path(ca: &Path) -> PathBuf {
    ca.with_file_name(FILE)
}

/// Those of a file; none if there is no file.
pub(crate) fn read(ca: &Path) -> Result<BTreeSet<Fingerprint>, KeysError> {
    let path = path(ca);
    let text = match fs::metadata(&path).map(|meta| meta.len()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Ok(length) if length > BYTES_MAX => Err(io::Error::other("it is too long")),
        Ok(_) | Err(_) => fs::read_to_string(&path),
    };
    let text = text.map_err(|source| KeysError::Read { path: path.clone(), source })?;
    parse(&text).map_err(|line| KeysError::List { path, line })
}

/// Otherwise the number of the line that is none.
pub(crate) fn parse(text: &str) -> Result<BTreeSet<Fingerprint>, usize> {
    let mut all = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            let word = line.split_ascii_whitespace().next().unwrap_or_default();
            all.insert(from_hex(word).ok_or(at + 1)?);
        }
    }
    Ok(all)
}

fn from_hex(word: &str) -> Option<Fingerprint> {
    let mut print = [0; 32];
    if word.len() != 2 * print.len() || !word.is_ascii() {
        return None;
    }
    for (byte, digits) in print.iter_mut().zip(word.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(print)
}

/// A line of the file.
pub(crate) fn line(print: &Fingerprint, name: &str) -> String {
    let hex: String = print.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}  {name}\n")
}

/// Believes whom `inner` believes, but for those on the list.
#[derive(Debug)]
pub(crate) struct But<V: ?Sized> {
    pub revoked: Arc<BTreeSet<Fingerprint>>,
    pub inner: Arc<V>,
}

impl<V: ?Sized> But<V> {
    fn look(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match self.revoked.contains(&fingerprint(shown)) {
            true => Err(Error::InvalidCertificate(CertificateError::Revoked)),
            false => Ok(()),
        }
    }
}

impl ClientCertVerifier for But<dyn ClientCertVerifier> {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(shown, between, now)?;
        self.look(shown).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl ServerCertVerifier for But<dyn ServerCertVerifier> {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(shown, between, name, ocsp, now)?;
        self.look(shown).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
