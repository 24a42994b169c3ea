//! Bulk import.

mod csv;
mod format;
mod json;
mod parquet;
mod place;
mod read;
mod sizer;
mod source;
mod stream;

pub use self::format::Format;
