//! What any request may be answered, said once for the whole document.
//!
//! Handlers list the answers that are theirs. Those of the layers around them (no token, no coordinator, a body that
//! is none) are the same everywhere, and would be left out somewhere if each handler had to list them.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

use super::admit;

/// Status, name in the document, why.
const ANSWERS: [(&str, &str, &str); 6] = [
    ("400", "NotUnderstood", "what was said is not understood"),
    ("401", "NoToken", "no token, or none that is known"),
    ("403", "MayNot", "an operator may, and no page of another site"),
    ("413", "TooLarge", "the body is too large"),
    ("421", "Misdirected", "the certificate of a person is believed by the coordinator alone"),
    ("503", "NoCoordinator", "no coordinator, or none that answers in time"),
];

/// Adds them wherever a handler has not said more itself.
pub(super) fn complete(mut document: OpenApi) -> OpenApi {
    for (path, item) in &mut document.paths.paths {
        if !admit::is_open(path) {
            operations(item).for_each(|(reads, operation)| add(path, reads, operation));
        }
    }
    let responses = &mut document.components.get_or_insert_default().responses;
    for (_, name, why) in ANSWERS {
        responses.insert(name.to_owned(), RefOr::T(error(why)));
    }
    document
}

/// With whether it only reads.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (bool, &mut Operation)> {
    let PathItem { get, put, post, delete, .. } = item;
    let changing = [put, post, delete].into_iter().flatten().map(|operation| (false, operation));
    get.iter_mut().map(|operation| (true, operation)).chain(changing)
}

fn add(path: &str, reads: bool, operation: &mut Operation) {
    let has_body = operation.request_body.is_some();
    let has_words = has_body || operation.parameters.is_some();
    for (status, name, _) in ANSWERS {
        let may_be = match status {
            "400" => has_words,
            "403" => !reads || path == "/v1/tokens",
            "413" => has_body,
            _ => true,
        };
        if may_be {
            let answers = &mut operation.responses.responses;
            let answer = || RefOr::Ref(Ref::from_response_name(name));
            answers.entry(status.to_owned()).or_insert_with(answer);
        }
    }
}

fn error(why: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorView"))).build();
    ResponseBuilder::new().description(why).content("application/json", content).build()
}
