//! Files that hold what others must not read: tokens, and keys of certificates.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::failure::Failure;

/// Largest such file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Permissions of others to read or write.
const OTHERS: u32 = 0o006;

/// Reads a file that others may neither read nor write: what they can read is no secret, and who
/// can write it says who may ask. What is looked at is what is read.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let usage = |message: String| Failure::Usage { message, path: Some(path.to_path_buf()) };
    let fail = |source| Failure::Stream {
        message: "cannot read a file of secrets".into(),
        path: Some(path.to_path_buf()),
        source,
    };
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    if !found.is_file() {
        return Err(usage("a file of secrets is no regular file".into()));
    }
    if found.mode() & OTHERS != 0 {
        let mode = found.mode() & 0o777;
        return Err(usage(format!("others can read or write it: expected 600, found {mode:o}")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes).map_err(fail)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= FILE_BYTES_MAX) {
        return Ok(bytes);
    }
    Err(usage(format!("expected at most {FILE_BYTES_MAX} bytes")))
}
