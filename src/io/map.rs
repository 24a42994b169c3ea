//! Maps a sealed segment into memory: the one file with unsafe code.
//!
//! [`map_file`] hands out the bytes of a file without copying them; the map lives as long as any
//! slice of it. [`read_file`] is its safe twin: the same answer, read into memory of our own.
//! Neither looks at what the bytes mean.

#![expect(unsafe_code, reason = "a map of a file is unsafe; this module is all there is of it")]

use std::fs::File;
use std::io;
#[cfg(test)]
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use memmap2::MmapOptions;

/// The first `len` bytes of a file that nobody writes to any more, nor shortens while they live.
pub(super) fn map_file(file: &File, len: u64) -> io::Result<Bytes> {
    let Some(len) = checked_len(file, len)? else { return Ok(Bytes::new()) };
    let mut options = MmapOptions::new();
    options.len(len);
    // SAFETY: `checked_len` has compared `len` with the file's length, so no page of the map lies
    // behind the end. That the file keeps length and bytes while it is mapped is what `IoFile::map`
    // asks of its caller: no writer writes over the frames of a segment that has a successor;
    // `log/remove.rs` cuts none while the `InUse` that a reader puts beside the map is shared, nor
    // while any other log holds the shared `flock` of the directory, by the `MapGuard` that is put
    // beside it, too (`log/maps.rs`); and removing a name leaves the mapped file alone.
    let map = unsafe { options.map(file) }?;
    Ok(Bytes::from_owner(map))
}

/// The same without a map.
#[cfg(test)]
fn read_file(file: &File, len: u64) -> io::Result<Bytes> {
    let Some(len) = checked_len(file, len)? else { return Ok(Bytes::new()) };
    let mut buf = vec![0; len];
    file.read_exact_at(&mut buf, 0)?;
    Ok(Bytes::from(buf))
}

/// The length to map; `None` for no byte, which no map can hold.
fn checked_len(file: &File, len: u64) -> io::Result<Option<usize>> {
    if len == 0 {
        return Ok(None);
    }
    if file.metadata()?.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match usize::try_from(len) {
        Ok(len) => Ok(Some(len)),
        Err(_) => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(file: &File, len: u64) {
        match (map_file(file, len), read_file(file, len)) {
            (Ok(map), Ok(read)) => assert_eq!(map, read, "{len} bytes"),
            (Err(map), Err(read)) => assert_eq!(map.kind(), read.kind(), "{len} bytes"),
            (map, read) => panic!("{len} bytes: map {map:?}, read {read:?}"),
        }
    }

    #[test]
    fn map_and_read_agree_on_every_length_around_a_page() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
        file.write_all_at(&bytes, 0).unwrap();
        for len in (0..=70).chain(4090..=4100).chain(8190..=8195).chain(9990..=10_010) {
            check(&file, len);
        }
        check(&file, u64::MAX);
    }

    #[test]
    fn slices_outlive_the_file_and_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = File::options().read(true).open(&path).unwrap();
        let slice = map_file(&file, 10).unwrap().slice(3..5);
        drop(file);
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(slice, &b"34"[..]);
    }
}
