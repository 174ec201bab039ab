//! Ports that no other test uses, below those that Linux gives to outgoing connections.

use std::{
    net::{Ipv4Addr, TcpListener},
    ops::RangeInclusive,
    sync::atomic::{AtomicU16, Ordering},
};

const LISTENERS: RangeInclusive<u16> = 10_000..=19_999;
const INSTANCES: RangeInclusive<u16> = 22_000..=31_999;
/// For the instances of one node.
const PER_NODE: u16 = 50;

/// Another run of these tests at the same time begins elsewhere.
fn first_step() -> u16 {
    (std::process::id() % 97) as u16 * 100
}

/// For a listener. Nobody listens there, and nobody else is given it.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of several in a row, as [`free_port`]: `dev` takes those after the one it is given.
pub fn free_ports(count: u16) -> u16 {
    static STEPS: AtomicU16 = AtomicU16::new(0);
    for _ in LISTENERS {
        let step = STEPS.fetch_add(count, Ordering::Relaxed) + first_step();
        let first = LISTENERS.start() + step % (LISTENERS.len() as u16 - count);
        if (first..first + count).all(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()) {
            return first;
        }
    }
    panic!("no {count} ports in a row are free in {LISTENERS:?}");
}

/// For the instances of one node.
pub fn instance_ports() -> RangeInclusive<u16> {
    static STEPS: AtomicU16 = AtomicU16::new(0);
    let ranges = INSTANCES.len() as u16 / PER_NODE;
    let step = (STEPS.fetch_add(1, Ordering::Relaxed) + first_step() / 10) % ranges;
    let first = INSTANCES.start() + step * PER_NODE;
    first..=first + PER_NODE - 1
}
