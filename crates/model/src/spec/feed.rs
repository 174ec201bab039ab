//! What a feed is: its pipeline as it is kept, and as people write it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{SPEC_BYTES_MAX, file::SpecError, is_valid_name};
use crate::FeedName;

/// More idle spans than this are taken for a slip of the finger.
pub const IDLE_SPANS_MAX: i64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedSpec {
    pub pipeline: PipelineSpec,
    /// Labels of the nodes that may host its maintainer and its dispatchers.
    pub constraints: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PipelineSpec {
    Copy {
        source: Source,
        sink: Sink,
    },
    /// A process of the user's, one per node, that lists spans and hosts dispatchers.
    Command {
        command: Vec<String>,
        env: BTreeMap<String, String>,
    },
    /// Spans that do nothing: to try drains at scale.
    Idle {
        spans: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Every table of the publication is a span.
    Postgres { url: String, publication: String },
    /// Every `*.log` file in the directory is a span; a line is a row.
    Log { path: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sink {
    Postgres {
        url: String,
    },
    /// Newline-delimited JSON, in one directory per span.
    File {
        path: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedFile {
    pub name: String,
    /// `copy` (from source to sink), `command` or `idle`.
    #[serde(default = "kind_default")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<SinkFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spans: Option<i64>,
    #[serde(default)]
    pub constraints: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkFile {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

type Checked<T> = Result<T, SpecError>;

fn wrong<T>(key: &str, message: impl Into<String>) -> Checked<T> {
    Err(SpecError { key: key.to_owned(), message: message.into() })
}

fn kind_default() -> String {
    "copy".to_owned()
}

impl FeedFile {
    /// The checked specification, with the feed's name.
    pub fn check(&self) -> Checked<(FeedName, FeedSpec)> {
        if !is_valid_name(&self.name) {
            return wrong(
                "name",
                format!(
                    "{:?} is not a name: lower-case letters, digits and dashes, a letter first, 63 at most",
                    self.name
                ),
            );
        }
        let size: usize = self.command.iter().flatten().map(String::len).sum::<usize>()
            + self.env.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if size > SPEC_BYTES_MAX {
            return wrong(
                "name",
                format!("the specification of {:?} is larger than {SPEC_BYTES_MAX} bytes", self.name),
            );
        }
        if self.constraints.keys().any(String::is_empty) {
            return wrong("constraints", "a label's name is empty");
        }
        let pipeline = match self.kind.as_str() {
            "copy" => self.checked_copy()?,
            "command" => self.checked_command()?,
            "idle" => self.checked_idle()?,
            other => {
                return wrong("kind", format!("{other:?} is not a kind of feed (copy, command or idle)"));
            }
        };
        Ok((FeedName::new(&self.name), FeedSpec { pipeline, constraints: self.constraints.clone() }))
    }

    /// Keys of one kind of feed are mistakes in another.
    fn only(&self, allowed: &[&str]) -> Checked<()> {
        let there = [
            ("source", self.source.is_some()),
            ("sink", self.sink.is_some()),
            ("command", self.command.is_some()),
            ("env", !self.env.is_empty()),
            ("spans", self.spans.is_some()),
        ];
        match there.iter().find(|(key, there)| *there && !allowed.contains(key)) {
            Some((key, _)) => wrong(key, format!("does not belong to a feed of kind {:?}", self.kind)),
            None => Ok(()),
        }
    }

    fn checked_copy(&self) -> Checked<PipelineSpec> {
        self.only(&["source", "sink"])?;
        let Some(source) = &self.source else { return wrong("source", "is missing: where rows come from") };
        let Some(sink) = &self.sink else { return wrong("sink", "is missing: where rows go") };
        Ok(PipelineSpec::Copy { source: source.check()?, sink: sink.check()? })
    }

    fn checked_command(&self) -> Checked<PipelineSpec> {
        self.only(&["command", "env"])?;
        let command = self.command.clone().unwrap_or_default();
        if command.first().is_none_or(String::is_empty) {
            return wrong("command", "is empty: it names the program to run and its arguments");
        }
        if command.iter().any(|part| part.contains('\0')) {
            return wrong("command", "holds a zero byte");
        }
        for (key, value) in &self.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return wrong(&format!("env.{key}"), "is not an environment variable");
            }
        }
        Ok(PipelineSpec::Command { command, env: self.env.clone() })
    }

    fn checked_idle(&self) -> Checked<PipelineSpec> {
        self.only(&["spans"])?;
        match self.spans.unwrap_or(1) {
            spans @ 0..=IDLE_SPANS_MAX => Ok(PipelineSpec::Idle { spans: spans as u32 }),
            spans => wrong("spans", format!("{spans} is not between 0 and {IDLE_SPANS_MAX}")),
        }
    }

    /// Writes a checked specification out again, as nodes are sent it.
    pub fn of(name: &FeedName, spec: &FeedSpec) -> FeedFile {
        let mut file = FeedFile {
            name: name.to_string(),
            kind: kind_default(),
            source: None,
            sink: None,
            command: None,
            env: BTreeMap::new(),
            spans: None,
            constraints: spec.constraints.clone(),
        };
        match &spec.pipeline {
            PipelineSpec::Copy { source, sink } => {
                (file.source, file.sink) = (Some(SourceFile::of(source)), Some(SinkFile::of(sink)));
            }
            PipelineSpec::Command { command, env } => {
                file.kind = "command".to_owned();
                (file.command, file.env) = (Some(command.clone()), env.clone());
            }
            PipelineSpec::Idle { spans } => {
                file.kind = "idle".to_owned();
                file.spans = Some(i64::from(*spans));
            }
        }
        file
    }

    /// As people are shown it: without passwords.
    pub fn shown(name: &FeedName, spec: &FeedSpec) -> FeedFile {
        let mut file = FeedFile::of(name, spec);
        let urls = [file.source.as_mut().map(|s| &mut s.url), file.sink.as_mut().map(|s| &mut s.url)];
        for url in urls.into_iter().flatten().flatten() {
            *url = without_password(url);
        }
        file
    }
}

impl SourceFile {
    fn check(&self) -> Checked<Source> {
        match self.kind.as_str() {
            "postgres" => {
                if self.path.is_some() {
                    return wrong("source.path", "belongs to a source of kind \"log\"");
                }
                let publication = self.publication.clone().unwrap_or_default();
                if publication.is_empty() {
                    return wrong("source.publication", "is missing: every table of it becomes a span");
                }
                Ok(Source::Postgres { url: checked_url("source.url", self.url.as_deref())?, publication })
            }
            "log" => {
                if self.url.is_some() || self.publication.is_some() {
                    return wrong("source.kind", "a log has a path, and neither url nor publication");
                }
                Ok(Source::Log { path: checked_path("source.path", self.path.as_deref())? })
            }
            other => wrong("source.kind", format!("{other:?} is not a source (postgres or log)")),
        }
    }

    fn of(source: &Source) -> SourceFile {
        match source {
            Source::Postgres { url, publication } => SourceFile {
                kind: "postgres".to_owned(),
                url: Some(url.clone()),
                publication: Some(publication.clone()),
                path: None,
            },
            Source::Log { path } => {
                SourceFile { kind: "log".to_owned(), url: None, publication: None, path: Some(path.clone()) }
            }
        }
    }
}

impl SinkFile {
    fn check(&self) -> Checked<Sink> {
        match self.kind.as_str() {
            "postgres" => match &self.path {
                Some(_) => wrong("sink.path", "belongs to a sink of kind \"file\""),
                None => Ok(Sink::Postgres { url: checked_url("sink.url", self.url.as_deref())? }),
            },
            "file" => match &self.url {
                Some(_) => wrong("sink.url", "belongs to a sink of kind \"postgres\""),
                None => Ok(Sink::File { path: checked_path("sink.path", self.path.as_deref())? }),
            },
            other => wrong("sink.kind", format!("{other:?} is not a sink (postgres or file)")),
        }
    }

    fn of(sink: &Sink) -> SinkFile {
        match sink {
            Sink::Postgres { url } => {
                SinkFile { kind: "postgres".to_owned(), url: Some(url.clone()), path: None }
            }
            Sink::File { path } => SinkFile { kind: "file".to_owned(), url: None, path: Some(path.clone()) },
        }
    }
}

fn checked_url(key: &str, url: Option<&str>) -> Checked<String> {
    let url = url.unwrap_or_default();
    match url.starts_with("postgres://") || url.starts_with("postgresql://") {
        true => Ok(url.to_owned()),
        // The value may hold a password: it is not repeated.
        false => wrong(key, "is not a URL of PostgreSQL (like \"postgres://user@host/database\")"),
    }
}

fn checked_path(key: &str, path: Option<&str>) -> Checked<String> {
    match path {
        Some(path) if path.starts_with('/') && !path.contains('\0') => Ok(path.to_owned()),
        Some(path) => wrong(key, format!("{path:?} is not absolute: it is the same on every node")),
        None => wrong(key, "is missing: a directory that every node has"),
    }
}

/// Hides the password of a URL, in its authority or among its parameters.
pub(super) fn without_password(url: &str) -> String {
    let (before, query) = match url.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (url, None),
    };
    let mut out = match before.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((user, host)) => {
                let user = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
                format!("{scheme}://{user}@{host}")
            }
            None => before.to_owned(),
        },
        None => before.to_owned(),
    };
    if let Some(query) = query {
        let shown = query.split('&').map(|pair| match pair.split_once('=') {
            Some((key, _)) if key.contains("password") => format!("{key}=***"),
            Some(_) | None => pair.to_owned(),
        });
        out.push('?');
        out.push_str(&shown.collect::<Vec<_>>().join("&"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(url: &str) -> FeedFile {
        FeedFile {
            name: "orders".to_owned(),
            kind: kind_default(),
            source: Some(SourceFile {
                kind: "postgres".to_owned(),
                url: Some(url.to_owned()),
                publication: Some("orders_pub".to_owned()),
                path: None,
            }),
            sink: Some(SinkFile { kind: "file".to_owned(), url: None, path: Some("/out".to_owned()) }),
            command: None,
            env: BTreeMap::new(),
            spans: None,
            constraints: BTreeMap::new(),
        }
    }

    #[test]
    fn a_checked_feed_is_written_out_as_it_was_read() {
        let file = copy("postgres://me:secret@db/shop?sslmode=disable");
        let (name, spec) = file.check().expect("it is right");
        assert_eq!(FeedFile::of(&name, &spec), file);
    }

    #[test]
    fn people_are_never_shown_a_password() {
        for url in ["postgres://me:secret@db/shop", "postgres://me@db/shop?password=secret&x=1"] {
            let (name, spec) = copy(url).check().expect("it is right");
            let shown = format!("{:?}", FeedFile::shown(&name, &spec));
            assert!(!shown.contains("secret"), "{shown}");
            assert!(shown.contains("me"), "{shown}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key_and_without_secrets() {
        let check = |change: &dyn Fn(&mut FeedFile)| {
            let mut file = copy("postgres://me:secret@db/shop");
            change(&mut file);
            file.check().expect_err("it is wrong").to_string()
        };
        type Change = Box<dyn Fn(&mut FeedFile)>;
        let cases: Vec<(&str, Change)> = vec![
            (
                "source.url",
                Box::new(|f| f.source.as_mut().expect("copy").url = Some("mysql://x:secret@y".into())),
            ),
            ("source.publication", Box::new(|f| f.source.as_mut().expect("copy").publication = None)),
            ("sink.path", Box::new(|f| f.sink.as_mut().expect("copy").path = Some("relative".into()))),
            ("sink", Box::new(|f| f.sink = None)),
            ("command", Box::new(|f| f.command = Some(vec!["x".into()]))),
            ("kind", Box::new(|f| f.kind = "magic".into())),
        ];
        for (key, change) in cases {
            let message = check(&*change);
            assert!(message.starts_with(key), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
