//! Where a command finds its cluster, and what it shows there: flags, then environment, then a file.

use std::path::{Path, PathBuf};

use doors::Trust;
use serde::Deserialize;

use crate::{
    cli::Global,
    failure::{Failure, Outcome},
    toml_at::Document,
};

const ADDR: &str = "http://127.0.0.1:7070";

/// `client.toml`. Relative paths are beside it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ClientFile {
    addr: Option<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

pub struct Access {
    pub addr: String,
    pub trust: Trust,
    pub token: Option<String>,
}

impl Access {
    pub fn of(global: &Global) -> Outcome<Access> {
        let file = ClientFile::find(global)?;
        let cert = match (global.cert.clone().or(file.cert), global.key.clone().or(file.key)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(Failure::usage("--cert needs --key (or TIDEGATE_KEY)")),
            (None, Some(_)) => return Err(Failure::usage("--key needs --cert (or TIDEGATE_CERT)")),
        };
        let token = match global.token.clone().filter(|token| !token.is_empty()) {
            Some(token) => Some(token),
            None => match global.token_file.clone().or(file.token_file) {
                Some(path) => Some(read_token(&path)?),
                None => None,
            },
        };
        Ok(Access {
            addr: global.addr.clone().or(file.addr).unwrap_or_else(|| ADDR.to_owned()),
            trust: Trust { ca: global.ca.clone().or(file.ca), cert },
            token,
        })
    }
}

impl ClientFile {
    /// The one that is named must be there, the usual one may be.
    fn find(global: &Global) -> Outcome<ClientFile> {
        let (path, named) = match (&global.client, usual()) {
            (Some(path), _) => (path.clone(), true),
            (None, Some(path)) => (path, false),
            (None, None) => return Ok(ClientFile::default()),
        };
        let name = path.display().to_string();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if !named && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(ClientFile::default());
            }
            Err(error) => return Err(Failure::error(format!("{name}: cannot be read: {error}"))),
        };
        let document = Document::parse(&name, &text).map_err(Failure::error)?;
        let mut file: ClientFile = document.read().map_err(|mistake| {
            Failure::error(format!("{}: {}", document.place(mistake.offset), mistake.message))
        })?;
        let beside = path.parent().unwrap_or(Path::new("."));
        for path in [&mut file.ca, &mut file.cert, &mut file.key, &mut file.token_file].into_iter().flatten()
        {
            *path = beside.join(&*path);
        }
        Ok(file)
    }
}

fn usual() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("tidegate/client.toml"))
}

fn read_token(path: &Path) -> Outcome<String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::error(format!("{}: the token cannot be read: {error}", path.display())))?;
    match text.trim() {
        "" => Err(Failure::error(format!("{}: holds no token", path.display()))),
        token => Ok(token.to_owned()),
    }
}
