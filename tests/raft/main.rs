//! Tests of the log as the storage of a raft node. A binary of its own, because it builds openraft.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "a test may stop, prints its figures, and looks at real files and real time"
)]

mod bytes;
mod failures;
#[path = "../it/figures.rs"]
mod figures;
mod kill;
#[path = "../../examples/kv/main.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod kv;
mod model;
mod node;
#[cfg(planted)]
mod planted;
mod suite;
