//! What a server that is not ours, or not itself, may send.

use bytes::{Bytes, BytesMut};

use super::{copy_text, names, pgoutput, wal};
use crate::change::Cell;

#[test]
fn a_message_of_the_source_is_refused_or_read_and_its_counts_are_not_believed() {
    hostile::throw!("pgoutput", |bytes: &[u8]| {
        let read = pgoutput::decode(Bytes::copy_from_slice(bytes), |_| true);
        if read.is_ok() {
            assert!(pgoutput::decode(Bytes::copy_from_slice(bytes), |_| false).is_ok());
        }
    });
}

#[test]
fn a_frame_of_the_source_is_refused_or_read() {
    hostile::throw!("frames", |bytes: &[u8]| drop(wal::frame(Bytes::copy_from_slice(bytes))));
}

#[test]
fn a_row_of_a_copy_is_read_as_what_is_written_again() {
    hostile::throw!("copy_text", |bytes: &[u8]| {
        let row = copy_text::read(&Bytes::copy_from_slice(bytes));
        let mut line = BytesMut::new();
        copy_text::write(&row, &mut line);
        assert_eq!(copy_text::read(&line.freeze()), row);
    });
}

#[test]
fn every_row_reads_back_as_it_is_written() {
    let check = hostile::bolero::check!().with_iterations(hostile::INPUTS);
    check.with_type::<Vec<Option<Vec<u8>>>>().for_each(|cells| {
        let cell =
            |cell: &Option<Vec<u8>>| cell.as_ref().map_or(Cell::Null, |text| Cell::Text(text.clone().into()));
        let row: Vec<Cell> = cells.iter().map(cell).collect();
        let mut line = BytesMut::new();
        copy_text::write(&row, &mut line);
        // A row without columns is an empty line, which is also that of one empty value.
        if !row.is_empty() {
            assert_eq!(copy_text::read(&line.freeze()), row);
        }
    });
}

#[test]
fn a_position_is_refused_or_reads_back_as_it_is_written() {
    hostile::throw!("positions", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Some(position) = names::parse_lsn(&text) {
            assert_eq!(names::parse_lsn(&names::lsn(position)), Some(position));
        }
        let micros =
            bytes.iter().fold(0i64, |number, byte| number.wrapping_mul(256).wrapping_add(i64::from(*byte)));
        let _any = names::server_time(micros);
    });
}
