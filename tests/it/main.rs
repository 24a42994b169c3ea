//! Tests of what the crate promises, through its public API. One binary, a module for each promise;
//! those of the program and of import are left out where the feature `cli` is.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "a test may stop, and looks at real files and real time"
)]

mod backup;
mod beside;
mod broadcast;
#[cfg(feature = "cli")]
mod catalogue;
#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod cli_backup;
#[cfg(feature = "cli")]
mod cli_chunks;
#[cfg(feature = "cli")]
mod cli_corpus;
#[cfg(feature = "cli")]
mod cli_damage;
#[cfg(feature = "cli")]
mod cli_once;
#[cfg(feature = "cli")]
mod cli_store;
#[cfg(feature = "cli")]
mod cli_verbs;
#[cfg(feature = "cli")]
mod cli_work;
mod crash;
mod damage;
mod differential;
#[cfg(feature = "cli")]
mod examples;
mod faults;
mod figures;
mod image;
#[cfg(feature = "cli")]
mod import;
#[cfg(feature = "cli")]
mod kill;
mod log;
mod made;
mod model;
mod pass_on;
mod recovery;
mod reference;
mod retention;
#[cfg(feature = "cli")]
mod serve;
mod spans;
#[cfg(feature = "cli")]
mod store_damage;
mod ticks;
mod tidy;
