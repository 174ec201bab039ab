//! What may be written in files and arguments.

use crate::{cli, config, service_file, target};

/// Where keys stand is remembered for messages.
const PLACES_MEMORY: u64 = 1 << 20;

#[test]
fn a_file_is_refused_in_words_or_understood() {
    hostile::throw!("files", memory = PLACES_MEMORY, inputs = 500, |bytes: &[u8]| {
        drop(service_file::check_text("a file", &String::from_utf8_lossy(bytes)));
    });
}

#[test]
fn a_configuration_is_refused_in_words_or_understood() {
    hostile::throw!("configurations", memory = PLACES_MEMORY, inputs = 500, |bytes: &[u8]| {
        drop(config::parse("node.toml", &String::from_utf8_lossy(bytes), true));
    });
}

#[test]
fn an_argument_is_refused_or_understood() {
    hostile::throw!("arguments", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        drop(target::parse(&text));
        drop(cli::pair(&text));
        drop(cli::deadline(&text));
        drop(cli::node_and_hosts(&text));
    });
}
