//! Mistakes in a TOML file, told with their line, column and key.
//!
//! Shared by the service file and the daemon's configuration. What serde says about a value is put
//! into the words of the file: keys and tables, not fields and structs.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A file's text and its tree, which knows where everything stands.
pub struct Document<'t> {
    /// As the messages call it.
    name: &'t str,
    text: &'t str,
    tree: Spanned<DeTable<'t>>,
}

/// A step on the way to a value: a key, or a place in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Key(String),
    At(usize),
}

/// What is wrong, and where, before it is written as one line.
#[derive(Debug)]
pub struct Mistake {
    pub offset: usize,
    /// The way to the key or value; empty if the place is not inside any.
    pub path: Vec<Step>,
    pub message: String,
}

impl<'t> Document<'t> {
    /// Reads the syntax. The error is the whole line, place included.
    pub fn parse(name: &'t str, text: &'t str) -> Result<Document<'t>, String> {
        match DeTable::parse(text) {
            Ok(tree) => Ok(Document { name, text, tree }),
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                let message = error.message().replace(", expected literal string", "").replace('`', "\"");
                Err(format!("{}: {}", place(name, text, offset), one_line(&message)))
            }
        }
    }

    /// Fills a structure; unknown keys, missing keys and wrong types are mistakes.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Mistake> {
        T::deserialize(toml::de::Deserializer::from(self.tree.clone())).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let path = self.path_to(&span);
            let message = reword(error.message(), &path);
            Mistake { offset: span.start, path, message }
        })
    }

    /// `web.toml:12:3`.
    pub fn place(&self, offset: usize) -> String {
        place(self.name, self.text, offset)
    }

    /// Where a dotted key stands, below the item `base`; where it is missing, the nearest table above it.
    pub fn offset_of(&self, base: &[Step], dotted: &str) -> usize {
        let keys = base.iter().cloned().chain(dotted.split('.').map(|key| Step::Key(key.to_owned())));
        let mut found = 0;
        let mut here: Option<&DeValue<'_>> = None;
        for step in keys {
            let next = match &step {
                Step::Key(key) => {
                    let table = match here {
                        None => Some(self.tree.get_ref()),
                        Some(value) => value.as_table(),
                    };
                    table.and_then(|table| entry(table, key)).map(|(at, value)| (at, value.get_ref()))
                }
                Step::At(index) => here
                    .and_then(DeValue::as_array)
                    .and_then(|items| items.get(*index))
                    .map(|item| (item.span().start, item.get_ref())),
            };
            let Some((at, value)) = next else { break };
            (found, here) = (at, Some(value));
        }
        found
    }

    /// A text at a path, if there is one: names for messages.
    pub fn text_at(&self, path: &[Step], key: &str) -> Option<&str> {
        let mut here: Option<&DeValue<'_>> = None;
        for step in path.iter().cloned().chain([Step::Key(key.to_owned())]) {
            here = Some(match (&step, here) {
                (Step::Key(key), None) => self.tree.get_ref().get(key.as_str())?.get_ref(),
                (Step::Key(key), Some(value)) => value.as_table()?.get(key.as_str())?.get_ref(),
                (Step::At(index), Some(value)) => value.as_array()?.get(*index)?.get_ref(),
                (Step::At(_), None) => return None,
            });
        }
        here.and_then(DeValue::as_str)
    }

    fn path_to(&self, span: &Range<usize>) -> Vec<Step> {
        let mut path = Vec::new();
        search_table(self.tree.get_ref(), span, &mut path);
        path
    }
}

/// `check.port`, `command[1]`; without what stands before `from`.
pub fn dotted(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.push_str(&format!(".{key}")),
            Step::At(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

fn entry<'a, 't>(table: &'a DeTable<'t>, key: &str) -> Option<(usize, &'a Spanned<DeValue<'t>>)> {
    let (found, value) = table.get_key_value(key)?;
    Some((found.span().start, value))
}

/// The span of a `[table]` is its header alone, so what lies below it is searched whatever it says.
fn search_table(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<Step>) -> bool {
    for (key, value) in table.iter() {
        path.push(Step::Key(key.get_ref().to_string()));
        if within(span, &key.span()) || search_value(value, span, path) {
            return true;
        }
        path.pop();
    }
    false
}

fn search_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut Vec<Step>) -> bool {
    match value.get_ref() {
        DeValue::Table(table) if search_table(table, span, path) => return true,
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                path.push(Step::At(index));
                if search_value(item, span, path) {
                    return true;
                }
                path.pop();
            }
        }
        _ => {}
    }
    within(span, &value.span())
}

fn within(inner: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end && !outer.is_empty()
}

fn place(name: &str, text: &str, offset: usize) -> String {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("{name}:{line}:{column}")
}

fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Serde's sentence in the words of the file.
fn reword(message: &str, path: &[Step]) -> String {
    let message = message.strip_suffix('\n').unwrap_or(message);
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (unknown, expected) = rest.split_once('`').unwrap_or((rest, ""));
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        return unknown_key(unknown, &known);
    }
    if let Some(rest) = message.strip_prefix("missing field `") {
        return format!("missing key {:?}", rest.trim_end_matches('`'));
    }
    if let Some(rest) = message.strip_prefix("invalid type: ")
        && let Some((found, expected)) = rest.split_once(", expected ")
    {
        let single = path.len() == 1 && found == "map" && expected == "a sequence";
        if let (true, Some(Step::Key(key))) = (single, path.first()) {
            return format!("expected a list: write [[{key}]], with two brackets");
        }
        return format!("expected {}, found {}", expected_words(expected), found_words(found));
    }
    one_line(&message.replace('`', "\""))
}

fn expected_words(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "a map" => "a table",
        "i64" | "u64" | "u32" | "u16" => "a whole number",
        _ if expected.starts_with("struct ") => "a table",
        _ => expected,
    }
}

fn found_words(found: &str) -> String {
    match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        _ => found.trim_end_matches(" as i128").replace('`', "").replace("floating point", "number"),
    }
}

/// Names the key that was probably meant, or all that exist.
pub fn unknown_key(unknown: &str, known: &[&str]) -> String {
    let near = known.iter().map(|key| (distance(unknown, key), key)).min();
    match near {
        Some((steps, key)) if steps <= 1 + unknown.len() / 4 => {
            format!("unknown key {unknown:?} (did you mean {key:?}?)")
        }
        Some(_) => format!("unknown key {unknown:?} (known: {})", known.join(", ")),
        None => format!("unknown key {unknown:?}"),
    }
}

/// How many letters have to be put in, taken out or changed.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = corner + usize::from(a != *b);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_near_and_another_word_is_not() {
        assert_eq!(distance("comand", "command"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(unknown_key("mem", &["name", "command"]), "unknown key \"mem\" (known: name, command)");
    }

    #[test]
    fn columns_count_letters_not_bytes() {
        assert_eq!(place("f", "a = 1\nö = x", 12), "f:2:6");
    }
}
