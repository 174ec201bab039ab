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

    /// What stands before and after `user:password@`, and that itself. Everything up to the last `@` counts as secret:
    /// a password with a `/` in it makes no URL, and must not be shown for that.
    fn parts(&self) -> (&str, Option<&str>, &str) {
        let start = self.0.find("://").map_or(0, |at| at + 3);
        match self.0.rfind('@').filter(|at| *at >= start) {
            Some(at) => (&self.0[..start], Some(&self.0[start..at]), &self.0[at..]),
            None => (&self.0[..start], None, &self.0[start..]),
        }
    }

    /// The text without this endpoint's password, as it is written in the URL or as it is meant.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let (_, credentials, _) = self.parts();
        let password = credentials.and_then(|credentials| credentials.split_once(':')).map(|(_, word)| word);
        let Some(password) = password.filter(|password| !password.is_empty()) else { return text.to_owned() };
        text.replace(password, "***").replace(&decode(password), "***")
    }
}

/// `%40` is `@`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| *first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, credentials, rest) = self.parts();
        let hidden = if credentials.is_some() { "***" } else { "" };
        write!(f, "{scheme}{hidden}{rest}")
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
    fn a_password_that_makes_no_url_or_is_written_otherwise_is_not_shown_either() {
        let odd = Endpoint::new("redis://me:hunter2/#?@host:1/");
        assert_eq!(odd.to_string(), "redis://***@host:1/");
        let coded = Endpoint::new("redis://me:p%40ss%2fword@host:1/");
        assert_eq!(coded.scrub("p@ss/word and p%40ss%2fword"), "*** and ***");
    }

    #[test]
    fn an_address_without_a_password_is_shown_as_it_is() {
        assert_eq!(Endpoint::new("redis://host:1/").to_string(), "redis://host:1/");
    }
}
