//! What the log may cost, as counts: allocations, bytes and reads, never times.
//!
//! A binary of its own, because the allocator that counts is that of a whole process. It counts the
//! calling thread alone, so no log here has a thread of its own.

#![allow(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::allow_attributes,
    reason = "a test may stop, and looks at real files"
)]

mod bounds;
#[cfg(feature = "import")]
mod imports;
mod jobs;
mod limits;
mod steady;
mod window;

#[path = "../it"]
#[allow(dead_code, reason = "what the other binary of tests uses besides")]
mod shared {
    pub(crate) mod figures;
    pub(crate) mod image;
}

/// The writer of segments that shares no code with the library.
#[path = "../it/reference"]
#[allow(dead_code, reason = "the reader of them is not wanted here")]
mod reference {
    pub(crate) mod bytes;
    pub(crate) mod forge;

    const FRAMES_AT: usize = 12_288;

    fn wide(size: usize) -> u64 {
        size as u64
    }
}

#[path = "../it/damage/seal.rs"]
#[allow(dead_code, reason = "no structure is sealed here")]
mod seal;

#[path = "../../fuzz/src/directory.rs"]
#[allow(dead_code, reason = "no seed is made here")]
mod directory;

use shared::{figures, image};
