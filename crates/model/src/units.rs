//! Sizes and durations as people write them: `64MiB`, `500ms`.

use crate::Millis;

const SIZES: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

const SPANS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads `64MiB`, `1.5GiB`, `200MB`, `4096B`. A bare number is refused: it never says which unit was meant.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let scale = SIZES.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    match (number.parse::<f64>(), scale) {
        (Ok(number), Some(scale)) if number >= 0.0 && number.is_finite() => {
            let bytes = number * scale as f64;
            if bytes > (1u64 << 60) as f64 {
                return Err(format!("{text:?} is more than any machine has"));
            }
            Ok(bytes as u64)
        }
        _ => Err(format!("{text:?} is not a size (write it like \"64MiB\" or \"2GiB\")")),
    }
}

/// Reads `500ms`, `10s`, `5m`, `1h`, `1h30m`.
pub fn parse_duration(text: &str) -> Result<Millis, String> {
    let bad = || format!("{text:?} is not a duration (write it like \"500ms\", \"10s\" or \"1h30m\")");
    let long = || format!("{text:?} is longer than anybody waits");
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0).ok_or_else(bad)?;
        let number: u64 = rest[..digits].parse().map_err(|_| long())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let scale = SPANS.iter().find(|(name, _)| *name == &rest[..unit_end]).ok_or_else(bad)?.1;
        total = number.checked_mul(scale).and_then(|ms| total.checked_add(ms)).ok_or_else(long)?;
        rest = &rest[unit_end..];
    }
    Ok(Millis(total))
}

/// The largest unit that writes the size exactly, or else one decimal of the one that fits.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, scale) in UNITS {
        if bytes >= scale {
            return match bytes % scale {
                0 => format!("{}{unit}", bytes / scale),
                _ if unit != "KiB" && bytes.is_multiple_of(scale >> 10) && bytes / (scale >> 10) < 10_000 => {
                    let smaller = UNITS[UNITS.iter().position(|u| u.0 == unit).unwrap_or(0) + 1];
                    format!("{}{}", bytes / smaller.1, smaller.0)
                }
                _ => format!("{:.1}{unit}", bytes as f64 / scale as f64),
            };
        }
    }
    format!("{bytes}B")
}

pub fn format_duration(span: Millis) -> String {
    if span.0 == 0 {
        return "0s".to_owned();
    }
    let mut rest = span.0;
    let mut text = String::new();
    for (unit, scale) in SPANS.iter().rev() {
        let whole = rest / scale;
        if whole > 0 {
            text.push_str(&format!("{whole}{unit}"));
            rest -= whole * scale;
        }
    }
    text
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_read_back_as_they_were_written() {
        for text in ["64MiB", "2GiB", "512B", "1536MiB", "3KiB"] {
            assert_eq!(format_bytes(parse_bytes(text).unwrap()), text);
        }
        for text in ["500ms", "10s", "5m", "1h30m", "1m500ms", "2d"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn what_is_no_size_or_duration_is_refused() {
        for text in ["", "64", "MiB", "-1MiB", "64mib", "1e300TiB", "NaNMiB", "99999999TiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for text in ["", "5", "s", "-5s", "1.5s", "10 parsecs", "99999999999999999999d", "99999999999999999d"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
