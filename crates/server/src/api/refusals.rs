//! Refused requests, for the audit log: the first of a minute is told as it was, the others like it are counted.
//!
//! Whoever knocks all night makes a few entries an hour, not one for each knock; and the log keeps refusals apart from
//! what was done, so that they push out nothing but each other.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use protocol::coordinator::{Asked, Request};

use super::state::ApiState;

const MINUTE: Duration = Duration::from_secs(60);
/// Told apart within a minute, by who asks, from which host, and how it was refused; what is beyond is counted together.
const KINDS_MAX: usize = 16;
/// Of a path this much is told.
const PATH_CHARS: usize = 200;

/// One that was refused.
pub(super) struct Refusal {
    pub who: String,
    pub from: String,
    pub method: String,
    pub path: String,
    pub status: StatusCode,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    who: String,
    host: String,
    status: u16,
}

/// Who, from where, and what to say of it.
type Note = (String, String, String);

#[derive(Default)]
struct Book {
    since: Option<Instant>,
    /// How many more there were than have been told.
    more: BTreeMap<Kind, u64>,
}

impl Book {
    /// What is to be written down, with this one.
    fn add(&mut self, refusal: &Refusal, now: Instant) -> Vec<Note> {
        let mut notes = Vec::new();
        if self.since.is_none_or(|since| now.duration_since(since) >= MINUTE) {
            notes = self.settle();
            self.more.clear();
            self.since = Some(now);
        }
        let Refusal { who, from, method, path, status } = refusal;
        let status = status.as_u16();
        let kind = Kind { who: who.clone(), host: host(from), status };
        let known = self.more.contains_key(&kind);
        let kind = match known || self.more.len() < KINDS_MAX {
            true => kind,
            false => Kind { who: "others".to_owned(), host: "several hosts".to_owned(), status: 0 },
        };
        match self.more.get_mut(&kind) {
            Some(more) => *more += 1,
            None => {
                let path: String = path.chars().take(PATH_CHARS).collect();
                notes.push((kind.who.clone(), kind.host.clone(), format!("{status} {method} {path}")));
                self.more.insert(kind, 0);
            }
        }
        notes
    }

    /// What has been counted and not been told.
    fn settle(&mut self) -> Vec<Note> {
        let counted = self.more.iter_mut().filter(|(_, more)| **more > 0);
        let note = |(kind, more): (&Kind, &mut u64)| {
            let more = std::mem::take(more);
            let like = if kind.status == 0 { String::new() } else { format!(" with {}", kind.status) };
            (kind.who.clone(), kind.host.clone(), format!("{more} more{like}"))
        };
        counted.map(note).collect()
    }
}

/// Without the port, which is another one for every connection.
fn host(from: &str) -> String {
    let (addr, rest) = from.split_once(' ').map_or((from, None), |(addr, rest)| (addr, Some(rest)));
    let host = addr.parse::<SocketAddr>().map_or_else(|_| addr.to_owned(), |addr| addr.ip().to_string());
    rest.map_or_else(|| host.clone(), |rest| format!("{host} {rest}"))
}

#[derive(Default)]
pub(super) struct Refusals(Mutex<Book>);

impl Refusals {
    /// Returns at once: nobody who is refused waits for the store.
    pub fn note(&self, state: &ApiState, refusal: &Refusal) {
        let notes = self.book().add(refusal, Instant::now());
        let Some(office) = state.acting().cloned() else {
            // The coordinator has not heard of it.
            for (who, from, what) in notes {
                tracing::warn!(who, from, "refused: {what}");
            }
            return;
        };
        if !notes.is_empty() {
            tokio::spawn(async move { write(&office, notes).await });
        }
    }

    /// Writes down what has been counted, for somebody who is about to look.
    pub async fn settle(&self, state: &ApiState) {
        let notes = self.book().settle();
        if let Some(office) = state.acting() {
            write(office, notes).await;
        }
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn write(office: &crate::OfficeHandle, notes: Vec<Note>) {
    for (who, from, what) in notes {
        let asked = Asked { who, from, request: Request::NoteRefusal { what } };
        // A coordinator that leaves office takes it along: nothing depends on it.
        let _unheard = office.ask(asked).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(who: &str, from: &str, status: StatusCode) -> Refusal {
        let (who, from) = (who.to_owned(), from.to_owned());
        Refusal { who, from, method: "GET".to_owned(), path: "/v1/nodes".to_owned(), status }
    }

    fn nobody(from: &str) -> Refusal {
        refusal("nobody", from, StatusCode::UNAUTHORIZED)
    }

    #[test]
    fn the_first_of_a_minute_is_told_and_the_others_like_it_are_counted() {
        let (mut book, now) = (Book::default(), Instant::now());
        let first = book.add(&nobody("10.0.0.9:1"), now);
        assert_eq!(first, [("nobody".into(), "10.0.0.9".into(), "401 GET /v1/nodes".into())]);
        for port in 2..=1000 {
            assert!(book.add(&nobody(&format!("10.0.0.9:{port}")), now).is_empty());
        }
        let other = refusal("token:eve", "10.0.0.9:1 via n2", StatusCode::FORBIDDEN);
        assert_eq!(book.add(&other, now).len(), 1, "another kind is told");
        let next = book.add(&nobody("10.0.0.9:5"), now + MINUTE);
        let said: Vec<&str> = next.iter().map(|(_, _, what)| what.as_str()).collect();
        assert_eq!(said, ["999 more with 401", "401 GET /v1/nodes"]);
    }

    #[test]
    fn a_flood_from_everywhere_is_told_in_a_few_words() {
        let (mut book, now) = (Book::default(), Instant::now());
        let told: usize = (0..10_000u32)
            .map(|n| book.add(&nobody(&format!("10.0.{}.{}:1", n / 250, n % 250)), now).len())
            .sum();
        assert_eq!(told, KINDS_MAX + 1);
        let rest = book.settle();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert_eq!(rest[0].2, format!("{} more", 10_000 - KINDS_MAX - 1));
        assert!(book.settle().is_empty(), "it is told once");
    }
}
