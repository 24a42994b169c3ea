//! The log on real file systems and as a real process: power cuts, failing devices, limits of the
//! system. What needs root, a loop device or a tool says SKIP where it cannot get it.
//!
//! Built for itself and run by `scripts/machine`, as it mounts file systems.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::allow_attributes,
    reason = "a test may stop, says what it measured, and looks at real files"
)]

mod child;
mod disk;
mod failing;
#[path = "../it/figures.rs"]
mod figures;
mod ledger;
mod limits;
#[cfg(feature = "cli")]
mod outside;
mod owner;
mod power;
mod seam;
