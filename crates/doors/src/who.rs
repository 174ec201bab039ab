//! Whom a certificate speaks for.

use std::fmt;

use model::Access;
use x509_parser::{extensions::GeneralName, prelude::X509Certificate};

use crate::limits::NAME_BYTES_MAX;

const SCHEME: &str = "tidegate://";

/// Written into a certificate as a URI among its other names: `tidegate://node/n1`,
/// `tidegate://operator/alice`, `tidegate://viewer/bob`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    Node(String),
    Person { name: String, access: Access },
}

impl Who {
    pub fn uri(&self) -> String {
        match self {
            Who::Node(name) => format!("{SCHEME}node/{name}"),
            Who::Person { name, access } => format!("{SCHEME}{}/{name}", access.as_str()),
        }
    }

    pub fn node(&self) -> Option<&str> {
        match self {
            Who::Node(name) => Some(name),
            Who::Person { .. } => None,
        }
    }

    /// Exactly one of ours is among the certificate's names, or it speaks for nobody.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Option<Who> {
        let names = certificate.subject_alternative_name().ok().flatten()?;
        let mut ours = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => uri.strip_prefix(SCHEME),
            _ => None,
        });
        let only = ours.next().filter(|_| ours.next().is_none())?;
        let (kind, name) = only.split_once('/')?;
        if !is_name(name) {
            return None;
        }
        let name = name.to_owned();
        match kind {
            "node" => Some(Who::Node(name)),
            "operator" => Some(Who::Person { name, access: Access::Operator }),
            "viewer" => Some(Who::Person { name, access: Access::Viewer }),
            _ => None,
        }
    }
}

/// In the words of messages and of the audit log: `node:n1`, `cert:alice`.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Node(name) => write!(f, "node:{name}"),
            Who::Person { name, .. } => write!(f, "cert:{name}"),
        }
    }
}

/// Lower-case letters, digits, dashes and dots, as for nodes; nothing that a log or a path could misread.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= NAME_BYTES_MAX
        && name.bytes().all(plain)
        && ends(name.bytes().next())
        && ends(name.bytes().last())
}
