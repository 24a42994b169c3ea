//! Bulk import.

mod csv;
mod driver;
mod format;
mod jobs;
mod json;
mod kind;
mod parquet;
mod partition;
mod place;
mod plan;
mod read;
mod replay;
mod request;
mod sizer;
mod slice;
mod slices;
mod source;
mod stream;
mod verdict;

pub use self::format::Format;
pub use self::jobs::{ImportCall, ImportProgress, ImportReport, Imports};
pub use self::replay::{ReplayReport, ReplaySelection, replay};
pub use self::request::{COLLECTION_NAME_LEN_MAX, COLLECTION_VCHANNELS_MAX, ImportRequest};
