//! What a feed's command may print.

use super::message::Said;

#[test]
fn a_line_of_a_command_is_refused_or_understood() {
    hostile::throw!("said", |bytes: &[u8]| drop(serde_json::from_slice::<Said>(bytes)));
}
