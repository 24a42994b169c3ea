//! The proof: the tests of crashes and of damage at full size, in one optimised build of the library
//! alone in which each known mistake can be put in, so that a figure counts only if the same run has
//! caught them.
//!
//! Built and run by `scripts/proof` with `--cfg planted`. Without that configuration it is empty.
//! The binary `it` runs the same tests, smaller, on the code that ships; of them `.ci/run` plays
//! there the sequences of calls of a log and of a broadcaster, and a sample of the matrix.

#![cfg(planted)]
#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "a test may stop, and looks at real time"
)]
#![allow(dead_code, reason = "what the modules share with the other binary is used there")]

mod backup;
mod broadcast;
mod crash;
mod damage;
mod differential;
mod faults;
mod figures;
mod image;
mod log;
mod made;
mod pass_on;
mod planted;
mod recovery;
mod reference;
mod retention;
mod ticks;
