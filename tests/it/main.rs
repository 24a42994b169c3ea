//! Tests of what the crate promises, through its public API. One binary, a module for each promise.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "a test may stop, and looks at real files and real time"
)]

mod beside;
mod broadcast;
mod catalogue;
mod cli;
mod cli_damage;
mod cli_store;
mod crash;
mod differential;
mod examples;
mod faults;
mod import;
mod kill;
mod log;
mod model;
mod recovery;
mod reference;
mod store_damage;
mod tidy;
