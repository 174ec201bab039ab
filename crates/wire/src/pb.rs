//! What `build.rs` makes of `proto/tidegate.proto`.
#![allow(clippy::all, clippy::unwrap_used, missing_docs)]

tonic::include_proto!("tidegate.v1");
