//! The log.
mod facts;
mod finding;
mod options;
mod recover;
mod scan;
mod survey;
pub use finding::*;
pub use options::*;
