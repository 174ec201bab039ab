//! What may be found in the files of a run.

use super::record::{ExitRecord, LaunchRecord, RunRecord, parse};

#[test]
fn a_file_of_a_run_is_refused_in_words_or_read_as_what_is_written_again() {
    hostile::throw!("run_records", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(launch) = parse::<LaunchRecord>(&text) {
            assert_eq!(parse(&serde_json::to_string(&launch).unwrap()), Ok(launch));
        }
        if let Ok(run) = parse::<RunRecord>(&text) {
            assert_eq!(parse(&serde_json::to_string(&run).unwrap()), Ok(run));
        }
        if let Ok(exit) = parse::<ExitRecord>(&text) {
            drop(exit.describe());
            assert_eq!(parse(&serde_json::to_string(&exit).unwrap()), Ok(exit));
        }
    });
}
