//! Log.

pub mod io;

/// What tests of this crate and of its users need: a file system in memory that loses what was not
/// synced, and faults at chosen calls.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    pub use crate::io::fault::{
        CallKind, Dice, EDQUOT, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Which, is_stopped,
    };
    pub use crate::io::mem::{Machine, MemIo, Unsynced, survivors};
}
