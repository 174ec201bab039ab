//! What comes over a stream, as bytes.

use proptest::strategy::Strategy;
use prost::Message;
use protocol::message::{Down, Up, feed::Peer};
use wire::pb;

use crate::arbitrary;

/// So many of each kind, drawn once and kept.
const EXAMPLES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn examples<T: std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Vec<(&'static str, Vec<u8>)> {
    let drawn = arbitrary::examples(strategy, EXAMPLES.len());
    EXAMPLES.into_iter().zip(drawn.iter().map(encode)).collect()
}

#[test]
fn what_a_daemon_sends_is_refused_or_taken_as_what_it_would_send_again() {
    hostile::keep!("up", &examples(arbitrary::up(), |up| pb::Up::from(up).encode_to_vec()));
    hostile::throw!("up", |bytes: &[u8]| {
        let Some(up) = pb::Up::decode(bytes).ok().and_then(|up| Up::try_from(up).ok()) else { return };
        let again = pb::Up::decode(pb::Up::from(&up).encode_to_vec().as_slice()).unwrap();
        assert_eq!(Up::try_from(again).unwrap(), up);
    });
}

#[test]
fn what_the_coordinator_sends_is_refused_or_taken_as_what_it_would_send_again() {
    hostile::keep!("down", &examples(arbitrary::down(), |down| pb::Down::from(down).encode_to_vec()));
    hostile::throw!("down", |bytes: &[u8]| {
        let Some(down) = pb::Down::decode(bytes).ok().and_then(|down| Down::try_from(down).ok()) else {
            return;
        };
        let again = pb::Down::decode(pb::Down::from(&down).encode_to_vec().as_slice()).unwrap();
        assert_eq!(Down::try_from(again).unwrap(), down);
    });
}

#[test]
fn what_a_node_sends_to_another_is_refused_or_taken_as_what_it_would_send_again() {
    let encode = |peer: &Peer| pb::PeerMessage::from(peer).encode_to_vec();
    hostile::keep!("peer", &examples(arbitrary::feeds::peer(), encode));
    hostile::throw!("peer", |bytes: &[u8]| {
        let taken = pb::PeerMessage::decode(bytes).ok().and_then(|peer| Peer::try_from(peer).ok());
        let Some(peer) = taken else { return };
        let again = pb::PeerMessage::decode(pb::PeerMessage::from(&peer).encode_to_vec().as_slice()).unwrap();
        assert_eq!(Peer::try_from(again).unwrap(), peer);
    });
}
