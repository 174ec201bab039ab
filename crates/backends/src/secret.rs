//! Addresses that may hold a password.

use std::fmt;

/// A URL whose password nobody sees: `Debug` and `Display` leave it out, and [`Endpoint::scrub`] takes it out of
/// what others say.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    pub fn new(url: impl Into<String>) -> Endpoint {
        Endpoint(url.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// `user:password` of the URL, as they are written there.
    fn credentials(&self) -> Option<&str> {
        let rest = self.0.split_once("://").map_or(self.0.as_str(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        authority.rsplit_once('@').map(|(credentials, _)| credentials)
    }

    /// The text without this endpoint's password.
    pub(crate) fn scrub(&self, text: &str) -> String {
        match self.credentials().and_then(|credentials| credentials.split_once(':')) {
            Some((_, password)) if !password.is_empty() => text.replace(password, "***"),
            _ => text.to_owned(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.credentials() {
            Some(credentials) => f.write_str(&self.0.replacen(credentials, "***", 1)),
            None => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn a_password_is_shown_nowhere() {
        for url in ["redis://me:hunter2@host:1/", "redis://:hunter2@host:1", "http://me:hunter2@host/a?b=c"] {
            let endpoint = Endpoint::new(url);
            let shown = format!("{endpoint} {endpoint:?} {}", endpoint.scrub("no AUTH hunter2 here"));
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("host"), "{shown}");
        }
    }

    #[test]
    fn an_address_without_a_password_is_shown_as_it_is() {
        assert_eq!(Endpoint::new("redis://host:1/").to_string(), "redis://host:1/");
    }
}
