//! Whatever is found where records, files and words of people should be, is refused in words or read as what it says.

#![allow(clippy::unwrap_used)]

mod records;

use model::{
    InstanceId, Millis,
    spec::{FeedFile, ServiceFile, StoreGroupFile, expand, file::SpecFile},
    units::{format_duration, parse_bytes, parse_duration},
};

/// What was taken is written out as what is taken again, and means the same.
fn written_again(file: &SpecFile) {
    for service in &file.service {
        let Ok((name, count, spec)) = service.check() else { continue };
        let again = ServiceFile::of(name.as_str(), count, &spec).check();
        assert_eq!(again, Ok((name, count, spec)), "{service:?}");
    }
    for feed in &file.feed {
        let Ok((name, spec)) = feed.check() else { continue };
        drop(FeedFile::shown(&name, &spec));
        assert_eq!(FeedFile::of(&name, &spec).check(), Ok((name, spec)), "{feed:?}");
    }
    for group in &file.store_group {
        let Ok((name, replicas, spec, process)) = group.check() else { continue };
        let replicas = replicas.unwrap_or(1);
        drop(StoreGroupFile::shown(name.as_str(), replicas, &spec, &process));
        let again = StoreGroupFile::of(name.as_str(), replicas, &spec, &process).check();
        assert_eq!(again, Ok((name, Some(replicas), spec, process)), "{group:?}");
    }
}

#[test]
fn a_body_that_says_what_to_run_is_refused_or_taken_as_it_is_written_again() {
    hostile::throw!("spec_json", |bytes: &[u8]| {
        if let Ok(file) = serde_json::from_slice::<SpecFile>(bytes) {
            written_again(&file);
        }
    });
}

#[test]
fn words_of_people_are_refused_or_mean_something() {
    hostile::throw!("words", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        for word in text.split(' ') {
            if let Ok(span) = parse_duration(word) {
                assert_eq!(parse_duration(&format_duration(span)), Ok(span), "{word:?}");
            }
            if let Ok(id) = word.parse::<InstanceId>() {
                assert_eq!(id.to_string().parse::<InstanceId>().ok(), Some(id), "{word:?}");
            }
            drop(parse_bytes(word));
        }
        drop(expand(&text, |name| Some(name.to_owned())));
        drop(expand(&text, |_| None));
    });
}

#[test]
fn every_duration_reads_back_as_it_is_written() {
    hostile::bolero::check!().with_iterations(hostile::INPUTS).with_type::<u64>().for_each(|ms| {
        let span = Millis(*ms);
        assert_eq!(parse_duration(&format_duration(span)), Ok(span));
    });
}
