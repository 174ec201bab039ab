//! What was found broken, with the number of its invariant in the design.

use std::fmt;

use model::{Desired, FeedName, InstanceId, NodeId, ProcessEpoch, ServiceName, StoreId, VolumeId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A feed might have two maintainers that act.
    Feed { feed: FeedName, what: String },
    /// The memory a node is booked with is not the sum of what is on it.
    MemoryMiscounted { node: NodeId, booked: u64, sum: u64 },
    /// A placement took a node over its capacity.
    OverCapacity { node: NodeId, instance: InstanceId, used: u64, capacity: u64 },
    /// Placed on a node that takes nothing new.
    PlacedWhereItMayNot { node: NodeId, instance: InstanceId, why: &'static str },
    /// Two instances that are not over fill one numbered place.
    SlotTwice { service: ServiceName, slot: u32, one: InstanceId, other: InstanceId },
    /// A stateful instance is not where its volume is.
    AwayFromHome { instance: InstanceId, node: NodeId, volume: VolumeId, home: NodeId },
    /// An instance that is not over runs a release whose specification is gone.
    SpecificationGone { service: ServiceName, instance: InstanceId, release: u32 },
    /// More is on the move than its limit allows.
    TooManyMoves { what: String, in_flight: usize, limit: usize },
    /// Another node that might have been chosen has less to do; `scores` of both, the chosen first.
    NotLeastLoaded { what: String, node: NodeId, better: NodeId, scores: String },
    /// A maintainer goes to a node that is closed, or that has not acknowledged which nodes are.
    NotTold { feed: FeedName, node: NodeId, what: String },
    /// A maintainer is handed over for a drain's sake while the coordinator's own node is closed.
    HandedOverInPause { feed: FeedName, node: NodeId },
    /// What an instance replaces is younger than itself, or it replaces itself.
    ReplacesLater { instance: InstanceId, replaces: InstanceId },
    /// Two instances take over the scratch data of one.
    ScratchTwice { from: InstanceId, one: InstanceId, other: InstanceId },
    /// An index disagrees with the records.
    IndexDisagrees { what: String },
    /// An instance id that was used before.
    IdReused { instance: InstanceId },
    /// What is wanted of an instance went back.
    DesiredWentBack { instance: InstanceId, from: Desired, to: Desired },
    /// An order's revision went back, or stayed while the order changed.
    OrderWentBack { instance: InstanceId, from: u32, to: u32 },
    /// A process epoch went back.
    EpochWentBack { node: NodeId, from: ProcessEpoch, to: ProcessEpoch },
    /// A service's release went back.
    ReleaseWentBack { service: ServiceName, from: u32, to: u32 },
    /// An instance changed what it never changes: its service, node, release or slot.
    InstanceMoved { instance: InstanceId },
    /// An available instance was retired with fewer than the count left.
    AvailableLowered { service: ServiceName, instance: InstanceId, left: usize, count: u32 },
    /// More nodes drain at a time than may.
    TooManyDraining { draining: usize, allowed: usize },
    /// A node's part of a drain went where it may not go.
    Drain { invariant: u32, epoch: u64, node: NodeId, what: &'static str },
    /// A store's record says what cannot be.
    Store { store: StoreId, what: &'static str },
}

impl Violation {
    /// The number of the invariant in section 10 of the design.
    pub fn invariant(&self) -> u32 {
        match self {
            Violation::MemoryMiscounted { .. }
            | Violation::OverCapacity { .. }
            | Violation::PlacedWhereItMayNot { .. } => 1,
            Violation::TooManyDraining { .. } => 2,
            Violation::Feed { .. } => 3,
            Violation::Drain { invariant, .. } => *invariant,
            Violation::TooManyMoves { .. } => 5,
            Violation::NotTold { .. } => 7,
            Violation::NotLeastLoaded { .. } => 8,
            Violation::HandedOverInPause { .. } => 9,
            Violation::Store { .. } => 16,
            Violation::SlotTwice { .. }
            | Violation::AwayFromHome { .. }
            | Violation::SpecificationGone { .. }
            | Violation::ReplacesLater { .. }
            | Violation::ScratchTwice { .. }
            | Violation::IdReused { .. }
            | Violation::InstanceMoved { .. } => 11,
            Violation::AvailableLowered { .. } => 12,
            Violation::IndexDisagrees { .. }
            | Violation::DesiredWentBack { .. }
            | Violation::OrderWentBack { .. }
            | Violation::EpochWentBack { .. }
            | Violation::ReleaseWentBack { .. } => 14,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Feed { feed, what } => write!(f, "feed {feed}: {what}"),
            Violation::MemoryMiscounted { node, booked, sum } => {
                write!(f, "{node} is booked with {booked} bytes, its instances take {sum}")
            }
            Violation::OverCapacity { node, instance, used, capacity } => {
                write!(f, "{instance} was placed on {node}, which has {capacity} bytes and now {used} in use")
            }
            Violation::PlacedWhereItMayNot { node, instance, why } => {
                write!(f, "{instance} was placed on {node}, which {why}")
            }
            Violation::SlotTwice { service, slot, one, other } => {
                write!(f, "slot {slot} of {service} holds both {one} and {other}")
            }
            Violation::AwayFromHome { instance, node, volume, home } => {
                write!(f, "{instance} is on {node}, its volume {volume} on {home}")
            }
            Violation::SpecificationGone { service, instance, release } => {
                write!(f, "{instance} runs release {release} of {service}, which is not kept")
            }
            Violation::TooManyMoves { what, in_flight, limit } => {
                write!(f, "{what}: {in_flight} are on the move, {limit} at most may be")
            }
            Violation::NotLeastLoaded { what, node, better, scores } => {
                write!(f, "{what} went to {node}, and {better} has less to do: {scores}")
            }
            Violation::NotTold { feed, node, what } => {
                write!(f, "the maintainer of {feed} goes to {node}, which {what}")
            }
            Violation::HandedOverInPause { feed, node } => {
                write!(f, "the maintainer of {feed} is handed over by {node} while drains pause")
            }
            Violation::ReplacesLater { instance, replaces } => {
                write!(f, "{instance} replaces {replaces}, which is not older")
            }
            Violation::ScratchTwice { from, one, other } => {
                write!(f, "both {one} and {other} take over the scratch data of {from}")
            }
            Violation::IndexDisagrees { what } => write!(f, "an index disagrees: {what}"),
            Violation::IdReused { instance } => write!(f, "the id {instance} was used before"),
            Violation::DesiredWentBack { instance, from, to } => {
                write!(f, "{instance} went from {} back to {}", from.as_str(), to.as_str())
            }
            Violation::OrderWentBack { instance, from, to } => {
                write!(f, "the order of {instance} went from {from} to {to}")
            }
            Violation::EpochWentBack { node, from, to } => {
                write!(f, "the process epoch of {node} went from {from} to {to}")
            }
            Violation::ReleaseWentBack { service, from, to } => {
                write!(f, "the release of {service} went from {from} to {to}")
            }
            Violation::InstanceMoved { instance } => {
                write!(f, "{instance} changed its service, node, release or slot")
            }
            Violation::AvailableLowered { service, instance, left, count } => {
                write!(f, "{instance} of {service} was retired while available; {left} of {count} are left")
            }
            Violation::TooManyDraining { draining, allowed } => {
                write!(f, "{draining} nodes drain at a time, {allowed} at most may")
            }
            Violation::Store { store, what } => write!(f, "store {store} {what}"),
            Violation::Drain { epoch, node, what, .. } => write!(f, "{node} in drain {epoch} {what}"),
        }
    }
}
