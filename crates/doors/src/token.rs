//! Tokens: 256 random bits for whoever asks, their hash for the store.

use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};

use crate::limits::TOKEN_BYTES_MAX;

/// Lets people and scanners see what it is that they found.
const PREFIX: &str = "tidegate_";
const BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandom;

/// One that nobody can guess. It is shown once; only its [`hash`] is kept.
pub fn generate() -> Result<String, NoRandom> {
    let mut bytes = [0; BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandom)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{PREFIX}{hex}"))
}

/// A plain hash is enough: what is hashed cannot be guessed, so there is nothing to slow down.
pub fn hash(token: &str) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, token.as_bytes());
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    hash
}

/// The token of an `Authorization` header; nothing that could be none of ours.
pub fn of_header(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && token.starts_with(PREFIX) && token.len() <= TOKEN_BYTES_MAX)
        .then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_tokens_are_alike_and_each_fits_its_limit() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_ne!(one, other);
        assert_ne!(hash(&one), hash(&other));
        assert_eq!(one.len(), PREFIX.len() + 2 * BYTES);
        assert_eq!(of_header(format!("Bearer {one}").as_bytes()), Some(one.as_str()));
    }

    #[test]
    fn what_is_no_token_is_not_looked_at() {
        let long = format!("Bearer {PREFIX}{}", "a".repeat(TOKEN_BYTES_MAX));
        for header in ["", "Bearer", "Basic dXNlcjpwYXNz", "Bearer hunter2", "Bearer \u{fffd}", &long] {
            assert_eq!(of_header(header.as_bytes()), None, "{header}");
        }
        assert_eq!(of_header(b"Bearer \xff"), None);
    }
}
