//! From and to [`protocol::message`]: [`up`] from daemons, [`down`] from the coordinator.
//!
//! `From<&…>` on the way out, which cannot fail; `TryFrom` on the way in, which trusts nothing.

mod down;
mod feed;
mod peer;
mod up;

use std::collections::BTreeMap;

use model::{ALL_CODES, Code, FeedName, NodeId, ServiceName, spec::is_valid_name};
use protocol::message::SetRevision;

use crate::{
    error::{Fault, WireError},
    limits::{ADDRESS_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX},
    pb,
};

type Checked<T> = Result<T, WireError>;

fn required<T>(field: &'static str, value: Option<T>) -> Checked<T> {
    value.ok_or_else(|| Fault::Missing.at(field))
}

fn text(field: &'static str, value: String, max: usize) -> Checked<String> {
    match value.len() {
        bytes if bytes > max => Err(Fault::TooLong { bytes, max }.at(field)),
        _ => Ok(value),
    }
}

fn count<T>(field: &'static str, list: &[T], max: usize) -> Checked<()> {
    match list.len() {
        count if count > max => Err(Fault::TooMany { count, max }.at(field)),
        _ => Ok(()),
    }
}

fn port(field: &'static str, number: u32) -> Checked<u16> {
    u16::try_from(number).map_err(|_| Fault::NotAPort(number).at(field))
}

fn address(field: &'static str, value: String) -> Checked<String> {
    text(field, value, ADDRESS_BYTES_MAX)
}

/// Services name directories on nodes, so a name that could lead out of one must not come in.
fn service(field: &'static str, name: &str) -> Checked<ServiceName> {
    match is_valid_name(name) {
        true => Ok(ServiceName::new(name)),
        false => Err(Fault::NotAName(clipped(name)).at(field)),
    }
}

fn feed_name(field: &'static str, name: &str) -> Checked<FeedName> {
    match is_valid_name(name) {
        true => Ok(FeedName::new(name)),
        false => Err(Fault::NotAName(clipped(name)).at(field)),
    }
}

/// A node's id stands in paths and on terminals.
pub(crate) fn node(field: &'static str, id: &str) -> Checked<NodeId> {
    let plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    if id.is_empty() || id.len() > NAME_BYTES_MAX || !id.chars().all(plain) {
        return Err(Fault::NotAName(clipped(id)).at(field));
    }
    Ok(NodeId::new(id))
}

fn labels(field: &'static str, labels: &BTreeMap<String, String>) -> Checked<()> {
    if labels.len() > LABELS_MAX {
        return Err(Fault::TooMany { count: labels.len(), max: LABELS_MAX }.at(field));
    }
    match labels.iter().map(|(name, value)| name.len().max(value.len())).max() {
        Some(bytes) if bytes > TEXT_BYTES_MAX => Err(Fault::TooLong { bytes, max: TEXT_BYTES_MAX }.at(field)),
        Some(_) | None => Ok(()),
    }
}

fn code_of(text: &str) -> Option<Code> {
    ALL_CODES.iter().copied().find(|code| code.as_str() == text)
}

/// As much of the text as a receiver takes, without half a character at the end.
fn clipped(words: &str) -> String {
    let mut end = words.len().min(TEXT_BYTES_MAX);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    words[..end].to_owned()
}

impl From<SetRevision> for pb::SetRevision {
    fn from(revision: SetRevision) -> pb::SetRevision {
        pb::SetRevision { term: revision.term.0, number: revision.number }
    }
}

impl From<pb::SetRevision> for SetRevision {
    fn from(revision: pb::SetRevision) -> SetRevision {
        SetRevision { term: model::Term(revision.term), number: revision.number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(clipped("short"), "short");
        let long = format!("x{}", "é".repeat(TEXT_BYTES_MAX));
        let cut = clipped(&long);
        assert_eq!(cut.len(), TEXT_BYTES_MAX - 1);
        assert!(long.starts_with(&cut));
    }
}
