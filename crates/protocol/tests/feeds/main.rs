//! Feeds by name: what the coordinator, the maintainers and the dispatchers do together, one case at a
//! time. The simulator runs the same machines under random faults.

mod asked;
mod bench;
mod deadlines;
mod goodbyes;
mod lessons;
mod properties;
mod recovery;
mod relays;
mod spans;
mod stuck;
