//! Names and numbers as PostgreSQL writes them.

use model::{FeedName, SpanName, Time};

/// What PostgreSQL allows for the name of a slot.
const SLOT_NAME_MAX: usize = 63;
/// Milliseconds from 1970 to 2000, where the server's clock begins.
const EPOCH_2000_MS: i64 = 946_684_800_000;

/// FNV-1a: the name of a slot must be the same on every node and in every release.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What the names of all slots of a feed begin with.
pub fn slot_prefix(feed: &FeedName) -> String {
    format!("tidegate_{:016x}_", hash(feed.as_str()))
}

/// The one slot of a span: its hash tells, its readable end helps whoever looks into the database.
pub fn slot_name(feed: &FeedName, span: &SpanName) -> String {
    let mut name = format!("{}{:016x}_", slot_prefix(feed), hash(span.as_str()));
    let readable = span.as_str().chars().map(|c| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '_',
    });
    name.extend(readable.take(SLOT_NAME_MAX - name.len()));
    name
}

pub fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

pub fn quoted_table(schema: &str, table: &str) -> String {
    format!("{}.{}", quoted(schema), quoted(table))
}

/// Works whatever `standard_conforming_strings` says.
pub fn literal(text: &str) -> String {
    let escaped = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!(" E'{}'", escaped.replace('\\', "\\\\")),
        false => format!("'{escaped}'"),
    }
}

pub fn lsn(position: u64) -> String {
    format!("{:X}/{:X}", position >> 32, position & 0xffff_ffff)
}

pub fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |text| u64::from_str_radix(text, 16).ok().filter(|part| *part <= 0xffff_ffff);
    Some((part(high)? << 32) | part(low)?)
}

/// A time of the server (microseconds since 2000) as ours.
pub fn server_time(micros: i64) -> Time {
    Time(u64::try_from(micros.div_euclid(1000) + EPOCH_2000_MS).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_name_for_ever_and_it_fits() {
        let feed = FeedName::new("orders");
        let name = slot_name(&feed, &SpanName::new("public.Line Items"));
        assert_eq!(name, "tidegate_00125d9250be8b4c_d98f31d446ae805c_public_line_items");
        let long = slot_name(&feed, &SpanName::new(&"schema.täble".repeat(40)));
        assert!(long.len() <= SLOT_NAME_MAX && long.starts_with(&slot_prefix(&feed)), "{long}");
        assert!(long.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{long}");
    }

    #[test]
    fn positions_read_back_as_written() {
        for position in [0, 1, 0x16_B374_D848, u64::MAX] {
            assert_eq!(parse_lsn(&lsn(position)), Some(position));
        }
        assert_eq!(parse_lsn("16/B374D848"), Some(0x16_B374_D848));
        assert_eq!(parse_lsn("nonsense"), None);
    }

    #[test]
    fn quotes_cannot_be_left_from_within() {
        assert_eq!(quoted_table("a\"b", "c"), "\"a\"\"b\".\"c\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), " E'a\\\\''b'");
    }
}
