//! Ports for instances, out of a range of the node.
//!
//! Handed out in turn, so that a port that was just given back is the last to be used again: connections
//! meant for the earlier owner have time to die. A port is given only if it can be bound at this moment,
//! because strangers use ports too; between this test and the instance's own bind one may still come in
//! between, and then the instance fails and is started anew with another.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::RangeInclusive;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no {wanted} free ports in {first}–{last}: {taken} are taken by instances, {in_use} by other processes; \
     widen the range of the node"
)]
pub struct NoPorts {
    pub wanted: usize,
    pub first: u16,
    pub last: u16,
    pub taken: usize,
    pub in_use: usize,
}

#[derive(Debug)]
pub struct Ports {
    range: RangeInclusive<u16>,
    next: u16,
}

impl Ports {
    /// `seed` spreads where several nodes on one machine begin; their ranges may be the same.
    pub fn new(range: RangeInclusive<u16>, seed: u16) -> Self {
        let size = u32::from(range.end().saturating_sub(*range.start())) + 1;
        let next = range.start().saturating_add((u32::from(seed) % size) as u16);
        Self { range, next }
    }

    /// `count` ports that are neither in `taken` nor bound by anybody. All or none.
    pub fn allocate(&mut self, count: usize, taken: &BTreeSet<u16>) -> Result<Vec<u16>, NoPorts> {
        let mut found = Vec::new();
        let (mut skipped, mut in_use) = (0, 0);
        let mut port = self.next;
        for _ in self.range.clone() {
            if found.len() == count {
                break;
            }
            let candidate = port;
            port = self.after(port);
            if taken.contains(&candidate) {
                skipped += 1;
            } else if is_free(candidate) {
                found.push(candidate);
            } else {
                in_use += 1;
            }
        }
        if found.len() < count {
            let (first, last) = (*self.range.start(), *self.range.end());
            return Err(NoPorts { wanted: count, first, last, taken: skipped, in_use });
        }
        self.next = port;
        Ok(found)
    }

    fn after(&self, port: u16) -> u16 {
        if port >= *self.range.end() { *self.range.start() } else { port + 1 }
    }
}

/// Bound without SO_REUSEADDR, which std always sets: with it a port in use may look free.
pub fn is_free(port: u16) -> bool {
    [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED].into_iter().all(|address| {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        socket.is_ok_and(|socket| bind(&socket, &SocketAddrV4::new(address, port)).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A range in which this machine has ports to spare.
    fn ports(first: u16, size: u16) -> Ports {
        Ports::new(first..=first + size - 1, 0)
    }

    #[test]
    fn ports_are_handed_out_in_turn_and_not_again_at_once() {
        let mut ports = ports(21_500, 50);
        let none = BTreeSet::new();
        let first = ports.allocate(2, &none).unwrap();
        let second = ports.allocate(2, &none).unwrap();
        assert!(first.iter().all(|p| !second.contains(p)));
        assert!(second[0] > first[1]);
    }

    #[test]
    fn a_port_in_use_is_passed_over_whichever_address_it_is_bound_to() {
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).unwrap();
            assert!(!is_free(listener.local_addr().unwrap().port()), "{address}");
        }
    }

    #[test]
    fn taken_ports_are_not_given_and_the_error_says_what_is_wrong() {
        let mut ports = ports(21_600, 3);
        let taken = BTreeSet::from([21_600, 21_601]);
        assert_eq!(ports.allocate(1, &taken), Ok(vec![21_602]));
        let error = ports.allocate(2, &taken).unwrap_err();
        assert_eq!((error.wanted, error.taken, error.in_use), (2, 2, 0));
        assert!(error.to_string().starts_with("no 2 free ports in 21600–21602"));
        assert_eq!(ports.allocate(0, &taken), Ok(vec![]));
    }

    #[test]
    fn the_end_of_all_ports_is_no_overflow() {
        let mut ports = Ports::new(65_535..=65_535, 7);
        let given = ports.allocate(1, &BTreeSet::new());
        assert!(given == Ok(vec![65_535]) || given.is_err());
    }
}
