//! From and to [`protocol::message`]: [`up`] from daemons, [`down`] from the coordinator.
//!
//! `From<&…>` on the way out, which cannot fail; `TryFrom` on the way in, which trusts nothing.

mod down;
mod up;

use model::{ServiceName, spec::is_valid_name};
use protocol::message::SetRevision;

use crate::{
    error::{Fault, WireError},
    limits::{ADDRESS_BYTES_MAX, TEXT_BYTES_MAX},
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
