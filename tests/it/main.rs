//! Tests of what the crate promises, through its public API. One binary, a module for each promise.

#![expect(clippy::disallowed_methods, reason = "tests look at real files and real time")]

mod crash;
mod faults;
mod kill;
mod model;
mod recovery;
mod tidy;
