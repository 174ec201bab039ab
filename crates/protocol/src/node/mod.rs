//! A node as a pure state machine: what runs here, what is reported, and what is stopped at the fence.
