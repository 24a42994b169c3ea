//! Bulk import: every row of some files in a collection, exactly once, whatever is killed.
//!
//! An import is a broadcast that starts a job ([`Imports::submit`]); the job reads its files twice
//! and ends with a broadcast of its own, which alone makes its rows visible:
//!
//! 1. *Look.* Each file is read once: types, rows, digest, primary keys. What is wrong with a row
//!    is found here, before one is appended.
//! 2. *Plan.* What will be done is recorded: files as they were, slices, where they can stand.
//! 3. *Append.* The slices that do not stand yet are appended, each whole or not at all.
//! 4. *End.* `CommitImport` or `AbortImport` to every vchannel; the first verdict counts.
//!
//! [`replay`] writes what is visible to a file that others read, from the channels alone.
//!
//! Memory is that of a few slices and of the pages that are decoded, 256 MiB at most, whatever the
//! files are and expand to; what would take more is refused. A primary key is checked for
//! presence and type; that no two rows have the same one is not.
//!
//! | where | what |
//! | --- | --- |
//! | `read`, and `csv`, `json`, `numpy`, `parquet` below it | rows of one file, or of the columns of a set, in two passes |
//! | `decoder` | calls into other crates' decoders, panics caught |
//! | `roots` | which files a request may name |
//! | `stream`, `source` | a file read from start to end, hashed, and compared with its plan |
//! | `sizer`, `slice`, `slices`, `partition` | rows to slices, slices to payloads of messages |
//! | `request`, `plan`, `driver`, `jobs`, `kind` | the job, from the request to its verdict |
//! | `verdict`, `replay` | which rows a reader may see, and as what |

mod asking;
mod csv;
mod decoder;
mod driver;
mod format;
mod jobs;
mod json;
mod kind;
mod numpy;
mod parquet;
mod partition;
mod place;
mod plan;
mod read;
#[cfg(feature = "testing")]
mod reading;
mod replay;
mod request;
mod roots;
mod sizer;
mod slice;
mod slices;
mod source;
mod stream;
mod verdict;

#[cfg(feature = "gateway")]
pub(crate) use self::asking::{
    is_of_collection, is_resource_of_import, is_under_way, key_scope, known, paths_of_machine,
    principal_of,
};
pub use self::decoder::is_decoding;
pub use self::format::Format;
pub use self::jobs::{
    ImportCall, ImportFile, ImportJob, ImportPage, ImportProgress, ImportReport, Imports, JobLook,
};
#[cfg(feature = "gateway")]
pub(crate) use self::kind::is_of_import;
#[cfg(feature = "testing")]
pub use self::reading::read_file;
pub use self::replay::{ReplayReport, ReplaySelection, replay};
pub use self::request::{COLLECTION_NAME_LEN_MAX, COLLECTION_VCHANNELS_MAX, ImportRequest};
pub use self::roots::ImportRoots;
