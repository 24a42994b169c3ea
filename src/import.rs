//! Bulk import.

mod csv;
mod format;
mod json;
mod parquet;
mod partition;
mod place;
mod read;
mod replay;
mod sizer;
mod slice;
mod source;
mod stream;

pub use self::format::Format;
