//! Replay: committed rows as data that others read.

pub(crate) mod cell;
pub(crate) mod output;
pub(crate) mod sink;
pub(crate) mod unify;
