//! Extractors whose refusals have the one shape of errors.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::{StatusCode, request::Parts};
use serde::de::DeserializeOwned;

use super::{ApiFailure, BODY_BYTES_MAX};

/// Values of the path.
pub(super) struct InPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiFailure> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(InPath(value)),
            Err(error) => Err(ApiFailure::invalid(format!("in the path: {}", error.body_text()))),
        }
    }
}

/// Values of the query.
pub(super) struct InQuery<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for InQuery<T> {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiFailure> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(InQuery(value)),
            Err(error) => Err(ApiFailure::invalid(format!("in the query: {}", error.body_text()))),
        }
    }
}

/// A JSON body. Its content type is not asked for: `curl -d` sends another, and pages of other sites
/// are kept out elsewhere.
pub(super) struct InBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for InBody<T> {
    type Rejection = ApiFailure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiFailure> {
        parse(&read(request.into_body()).await?).map(InBody)
    }
}

/// As [`InBody`]; without a body it is as if all of it were left out.
pub(super) struct InBodyOrNone<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for InBodyOrNone<T> {
    type Rejection = ApiFailure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiFailure> {
        let bytes = read(request.into_body()).await?;
        match bytes.trim_ascii().is_empty() {
            true => Ok(InBodyOrNone(T::default())),
            false => parse(&bytes).map(InBodyOrNone),
        }
    }
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiFailure> {
    // A list would be taken for a shape's fields in their order.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first == b'[') {
        return Err(ApiFailure::invalid("the body is a list, not an object"));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let what = if error.is_data() { "does not have the right shape" } else { "is not JSON" };
        ApiFailure::invalid(format!("the body {what}: {error}"))
            .with("line", error.line())
            .with("column", error.column())
    })
}

async fn read(body: Body) -> Result<bytes::Bytes, ApiFailure> {
    to_bytes(body, BODY_BYTES_MAX).await.map_err(|error| {
        if is_too_long(&error) {
            let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
            return ApiFailure::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
                .with("max_bytes", BODY_BYTES_MAX);
        }
        ApiFailure::invalid(format!("the body could not be read: {error}"))
    })
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
