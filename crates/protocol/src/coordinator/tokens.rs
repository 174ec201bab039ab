//! Tokens: made and revoked like anything else, so that both are fenced, committed and in the audit log.

use model::{Change, Time, Token};

use super::{Answer, ApiError, Coordinator, ErrorKind};

/// Tokens that may be there at a time. Each is looked up in memory with every request.
pub const TOKENS_MAX: usize = 10_000;
/// Letters of a token's name.
pub const TOKEN_NAME_MAX: usize = 63;

impl Coordinator {
    pub(super) fn create_token(&mut self, token: Token, now: Time) -> Result<Answer, ApiError> {
        let name = &token.name;
        if !is_name(name) {
            let rule = "lower-case letters, digits, dashes and dots, 63 at most";
            let message = format!("{name:?} is not a name for a token: {rule}");
            return Err(ApiError::new(ErrorKind::Invalid, "token_name_invalid", message));
        }
        if self.cluster.token(name).is_some() {
            let message = format!("there is a token {name} already; revoke it first, or choose another name");
            return Err(ApiError::new(ErrorKind::Conflict, "token_exists", message));
        }
        if !token.is_good(now) {
            let message = format!("token {name} would have expired already");
            return Err(ApiError::new(ErrorKind::Invalid, "token_expired", message));
        }
        if self.cluster.tokens().len() >= TOKENS_MAX {
            let message = format!("there are {TOKENS_MAX} tokens, which is all there may be; revoke some");
            return Err(ApiError::new(ErrorKind::Refused, "too_many_tokens", message));
        }
        self.change(now, |txn, _| txn.put(Change::Token(token)));
        Ok(Answer::Done)
    }

    pub(super) fn revoke_token(&mut self, name: &str, now: Time) -> Result<Answer, ApiError> {
        if self.cluster.token(name).is_none() {
            return Err(ApiError::not_found("token_not_found", format!("there is no token {name}")));
        }
        self.change(now, |txn, _| txn.put(Change::TokenGone(name.to_owned())));
        Ok(Answer::Done)
    }
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= TOKEN_NAME_MAX
        && name.bytes().all(plain)
        && ends(name.bytes().next())
        && ends(name.bytes().last())
}
