//! Tokens: who may ask for what through the API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Time;

/// What somebody may do through the API.
///
/// | | read | change |
/// |---|---|---|
/// | viewer | yes, without secrets | no |
/// | operator | yes | yes |
///
/// Stored by number: more are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Access {
    Viewer,
    Operator,
}

impl Access {
    pub fn as_str(self) -> &'static str {
        match self {
            Access::Viewer => "viewer",
            Access::Operator => "operator",
        }
    }

    pub fn parse(text: &str) -> Option<Access> {
        [Access::Viewer, Access::Operator].into_iter().find(|access| access.as_str() == text)
    }
}

/// Whoever shows the token with this hash is `name`. The token itself is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub name: String,
    pub access: Access,
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    pub created_at: Time,
    pub created_by: String,
    pub expires_at: Option<Time>,
}

impl Token {
    pub fn is_good(&self, now: Time) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

/// Tokens by name and by hash.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenTable {
    all: BTreeMap<String, Token>,
    names: BTreeMap<[u8; 32], String>,
}

impl TokenTable {
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.all.values()
    }

    pub fn get(&self, name: &str) -> Option<&Token> {
        self.all.get(name)
    }

    pub fn with(&self, hash: &[u8; 32]) -> Option<&Token> {
        self.get(self.names.get(hash)?)
    }

    pub fn put(&mut self, token: &Token) {
        self.remove(&token.name);
        self.names.insert(token.hash, token.name.clone());
        self.all.insert(token.name.clone(), token.clone());
    }

    pub fn remove(&mut self, name: &str) {
        if let Some(old) = self.all.remove(name) {
            self.names.remove(&old.hash);
        }
    }
}
