//! `/v1/events`: what happens, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as Sse, KeepAlive, KeepAliveStream};
use futures_util::{Stream, stream};
use model::Term;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::IntoParams;

use super::error::{Answer, ApiFailure};
use super::extract::InQuery;
use super::state::ApiState;
use crate::OfficeHandle;
use crate::events::Next;
use crate::view::{ErrorView, EventView, ResetView};

/// A comment is sent in silence, so that both ends notice a dead connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Where to begin.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Since {
    /// After this number. Left out, and without `Last-Event-ID`: everything that is kept.
    since: Option<u64>,
    /// `false` ends after what is there already.
    #[serde(default = "yes")]
    follow: bool,
}

fn yes() -> bool {
    true
}

/// Server-sent events: `id:` is the number, `event:` the kind, `data:` an `EventView`. Resumes after
/// `Last-Event-ID`, or after `since`. An event `reset` says that some in between are gone: read the
/// state anew. Ends when the coordinator changes; connect again.
#[utoipa::path(get, path = "/v1/events", tag = "cluster", operation_id = "follow_events",
    params(Since, ("Last-Event-ID" = Option<u64>, Header, description = "as `since`, and before it")),
    responses((status = 200, body = EventView, content_type = "text/event-stream"),
        (status = 400, body = ErrorView)))]
pub(super) async fn events(
    State(state): State<ApiState>,
    InQuery(query): InQuery<Since>,
    headers: HeaderMap,
) -> Answer<axum::response::Sse<KeepAliveStream<impl Stream<Item = Result<Sse, Infallible>>>>> {
    let office = state.office()?.clone();
    let last = match headers.get("last-event-id") {
        None => None,
        Some(value) => {
            let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
            Some(number.ok_or_else(|| ApiFailure::invalid("Last-Event-ID is not a number"))?)
        }
    };
    let (oldest, term) = office.events().oldest();
    // 0 is no event's number: whoever says it has seen none, and misses none that it knew of.
    let seen = last.or(query.since).filter(|seen| *seen > 0).unwrap_or(oldest);
    let reader = Reader {
        changes: office.events().changes(),
        office,
        term,
        seen,
        follow: query.follow,
        ready: VecDeque::new(),
    };
    let stream = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok(event), reader))
    });
    Ok(axum::response::Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// One that follows along, with its own place in the ring.
struct Reader {
    office: OfficeHandle,
    changes: watch::Receiver<u64>,
    term: Term,
    seen: u64,
    follow: bool,
    ready: VecDeque<Sse>,
}

impl Reader {
    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.changes.borrow_and_update();
            match self.office.events().after(self.seen, self.term) {
                Next::Events(events) => {
                    for (number, event) in events {
                        let view = EventView::new(number, &event);
                        self.ready.push_back(message(&view.kind, number, &view));
                        self.seen = number;
                    }
                }
                Next::Gone { resume } => {
                    let asked = std::mem::replace(&mut self.seen, resume);
                    return Some(message("reset", resume, &ResetView { asked, resume }));
                }
                Next::Wait if !self.follow => return None,
                Next::Wait => self.changes.changed().await.ok()?,
                Next::Ended => return None,
            }
        }
    }
}

fn message<T: Serialize>(kind: &str, number: u64, data: &T) -> Sse {
    // Strings and numbers always make JSON, which has no line breaks of its own.
    let data = serde_json::to_string(data).unwrap_or_default();
    Sse::default().event(kind).id(number.to_string()).data(data)
}
