//! Service files: read all, check all, and only then hand anything on.
//!
//! Every mistake is one line with file, line, column, service and key.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

use model::spec::{SPEC_BYTES_MAX, SpecError, file::SpecFile};

use crate::{
    failure::{Failure, Outcome},
    toml_at::{Document, Mistake, Step, dotted},
};

/// A larger file is refused before it is read to its end.
const FILE_BYTES_MAX: u64 = SPEC_BYTES_MAX as u64;

/// What one file holds, by the name messages call it.
#[derive(Debug)]
struct Source {
    name: String,
    text: String,
}

/// Checks a text that is part of the program.
pub fn check_text(name: &str, text: &str) -> Outcome<SpecFile> {
    check(&[Source { name: name.to_owned(), text: text.to_owned() }])
}

/// Reads and checks all files; `-` is standard input.
pub fn load(paths: &[PathBuf]) -> Outcome<SpecFile> {
    let sources: Vec<Source> = paths.iter().map(|path| read(path)).collect::<Outcome<_>>()?;
    check(&sources)
}

/// Checks all sources together: the same name twice is a mistake wherever the two stand.
fn check(sources: &[Source]) -> Outcome<SpecFile> {
    let mut all = SpecFile::default();
    let mut places: BTreeMap<(&'static str, String), String> = BTreeMap::new();
    for source in sources {
        let document = Document::parse(&source.name, &source.text).map_err(Failure::error)?;
        let file: SpecFile = document.read().map_err(|mistake| located(&document, mistake))?;
        if file.service.is_empty() && file.feed.is_empty() && file.store_group.is_empty() {
            return Err(Failure::error(format!(
                "{}: holds nothing: a service starts with [[service]], a feed with [[feed]], a store group with \
                 [[store_group]]",
                source.name
            )));
        }
        for (index, service) in file.service.into_iter().enumerate() {
            let place = Place { document: &document, kind: "service", index, name: &service.name };
            service.check().map_err(|error| place.wrong(&error))?;
            place.only(&mut places)?;
            all.service.push(service);
        }
        for (index, feed) in file.feed.into_iter().enumerate() {
            let place = Place { document: &document, kind: "feed", index, name: &feed.name };
            feed.check().map_err(|error| place.wrong(&error))?;
            place.only(&mut places)?;
            all.feed.push(feed);
        }
        for (index, group) in file.store_group.into_iter().enumerate() {
            let place = Place { document: &document, kind: "store_group", index, name: &group.name };
            group.check().map_err(|error| place.wrong(&error))?;
            place.only(&mut places)?;
            all.store_group.push(group);
        }
    }
    Ok(all)
}

/// One thing in a file.
struct Place<'a> {
    document: &'a Document<'a>,
    kind: &'static str,
    index: usize,
    name: &'a str,
}

impl Place<'_> {
    fn at(&self, key: &str) -> String {
        let base = [Step::Key(self.kind.to_owned()), Step::At(self.index)];
        self.document.place(self.document.offset_of(&base, key))
    }

    fn wrong(&self, error: &SpecError) -> Failure {
        let (kind, name) = (self.kind, self.name);
        Failure::error(format!("{}: {kind} {name:?}: {}: {}", self.at(&error.key), error.key, error.message))
    }

    /// Remembers where it stands; the second of a name is a mistake.
    fn only(&self, places: &mut BTreeMap<(&'static str, String), String>) -> Outcome {
        let (kind, name, at) = (self.kind, self.name, self.at("name"));
        match places.insert((kind, name.to_owned()), at.clone()) {
            None => Ok(()),
            Some(first) => {
                Err(Failure::error(format!("{at}: {kind} {name:?} is there twice; the first is at {first}")))
            }
        }
    }
}

/// `web.toml:12:3: service "web": check: unknown key …`.
fn located(document: &Document<'_>, mistake: Mistake) -> Failure {
    let at = document.place(mistake.offset);
    let (base, inner) = mistake.path.split_at(mistake.path.len().min(2));
    let thing = match base {
        [Step::Key(key), Step::At(index)] if ["service", "feed", "store_group"].contains(&key.as_str()) => {
            match document.text_at(base, "name") {
                Some(name) => format!("{key} {name:?}: "),
                None => format!("{key} number {}: ", index + 1),
            }
        }
        _ => String::new(),
    };
    // The path of an unknown key ends in that key, which the message names already.
    let inner = match inner {
        [above @ .., _] if mistake.message.starts_with("unknown key") => above,
        _ => inner,
    };
    let key = if inner.is_empty() { String::new() } else { format!("{}: ", dotted(inner)) };
    Failure::error(format!("{at}: {thing}{key}{}", mistake.message))
}

fn read(path: &Path) -> Outcome<Source> {
    let (name, bytes) = if path == Path::new("-") {
        let name = "standard input".to_owned();
        let mut bytes = Vec::new();
        let input = std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes);
        input.map_err(|error| Failure::error(format!("{name}: cannot be read: {error}")))?;
        (name, bytes)
    } else {
        let name = path.display().to_string();
        let bytes = read_file(path).map_err(|why| Failure::error(format!("{name}: {why}")))?;
        (name, bytes)
    };
    if bytes.len() as u64 >= FILE_BYTES_MAX {
        return Err(Failure::error(format!("{name}: has 1MiB or more; split it into several files")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::error(format!("{name}: is not a text file: byte {at} is not UTF-8"))
    })?;
    if text.trim().is_empty() {
        return Err(Failure::error(format!("{name}: is empty")));
    }
    Ok(Source { name, text })
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
        std::io::ErrorKind::IsADirectory => "is a directory; name the files in it".to_owned(),
        std::io::ErrorKind::PermissionDenied => "may not be read by this user".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}
