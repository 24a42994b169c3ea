//! Log.

pub mod io;
