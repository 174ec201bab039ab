//! Errors, in the one shape.

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use protocol::coordinator::{ApiError, ErrorKind};
use serde_json::{Map, Value};

use crate::NotCoordinator;
use crate::view::{ErrorBody, ErrorView};

/// When a client may try again where there is no coordinator. Elections take a lease at most.
const RETRY_AFTER_SECONDS: u32 = 1;

/// An answer that is not what was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiFailure {
    pub status: StatusCode,
    pub code: String,
    pub message: String,
    pub details: Map<String, Value>,
}

pub(super) type Answer<T> = Result<T, ApiFailure>;

impl ApiFailure {
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> ApiFailure {
        ApiFailure { status, code: code.to_owned(), message: message.into(), details: Map::new() }
    }

    pub fn invalid(message: impl Into<String>) -> ApiFailure {
        ApiFailure::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub fn not_found(code: &str, message: impl Into<String>) -> ApiFailure {
        ApiFailure::new(StatusCode::NOT_FOUND, code, message)
    }

    pub fn no_coordinator(message: impl Into<String>) -> ApiFailure {
        ApiFailure::new(StatusCode::SERVICE_UNAVAILABLE, "no_coordinator", message)
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> ApiFailure {
        self.details.insert(key.to_owned(), value.into());
        self
    }
}

impl From<ApiError> for ApiFailure {
    fn from(error: ApiError) -> ApiFailure {
        let status = match error.kind {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::NotNow => StatusCode::PRECONDITION_FAILED,
            ErrorKind::Refused => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiFailure::new(status, error.code, error.message)
    }
}

impl From<NotCoordinator> for ApiFailure {
    fn from(_: NotCoordinator) -> ApiFailure {
        // What was asked may or may not have been done: the coordinator went away in between.
        ApiFailure::no_coordinator("the coordinator left office before it answered; look again, then retry")
    }
}

impl IntoResponse for ApiFailure {
    fn into_response(self) -> Response {
        let body = ErrorBody { code: self.code, message: self.message, details: self.details };
        let mut response = (self.status, Json(ErrorView { error: body })).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(super) async fn no_such_path(uri: Uri) -> ApiFailure {
    ApiFailure::not_found("path_not_found", format!("there is nothing at {}", uri.path()))
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> ApiFailure {
    let message = format!("{method} is not possible at {}", uri.path());
    ApiFailure::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
