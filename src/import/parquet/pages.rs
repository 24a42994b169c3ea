//! What the footer and the headers of pages announce, compared with limits before any of it is
//! decoded.
//!
//! The decoder makes room for what they say, and decompresses a page to whatever it grows to. Here
//! they are read without that; and a page whose codec has no bound of its own is decompressed into
//! nothing first.

use std::io::{self, Read};

use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader as _, Length as _};

use super::blocks::VerifiedFile;
use super::thrift::{Field, I32, LIST, STRUCT, Walk};

/// Memory that the pages of a column may take at once: as they are in the file, decompressed, and
/// the dictionary.
pub(super) const PAGES_BYTES_MAX: u64 = 96 << 20;

/// Longest footer: some 60,000 column chunks.
const FOOTER_BYTES_MAX: u32 = 16 << 20;

/// Most columns of single values, row groups and column chunks together.
const FOOTER_ITEMS_MAX: u64 = 1 << 17;

/// Most items of all other lists of structures in a footer.
const FOOTER_OTHERS_MAX: u64 = 1 << 20;

/// Longest header of a page, statistics included.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// Bytes of a header that are looked at first.
const HEADER_BYTES: u64 = 256;

/// Why a file is not decoded.
#[derive(Debug)]
pub(super) enum Fault {
    /// Its bytes are no Parquet.
    Damaged,
    /// It asks for more than there is room for.
    Limit(String),
}

pub(super) type Looked<T> = Result<T, Fault>;

/// What kind of page a header is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Dictionary,
    /// None that is decoded.
    Other,
}

/// A page as its header announces it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) kind: Kind,
    /// Bytes once decompressed.
    pub(super) plain: u64,
    /// Bytes in the file.
    pub(super) stored: u64,
    pub(super) values: u64,
    /// As the format numbers them.
    pub(super) encoding: i64,
    /// Bytes of levels, which are not compressed, in front of the values.
    levels: u64,
    is_compressed: bool,
    /// Where its bytes begin.
    at: u64,
}

/// Compares the footer with limits.
pub(super) fn check_footer(file: &VerifiedFile) -> Looked<()> {
    const TAIL: u64 = 8;
    let end = file.len().checked_sub(TAIL).ok_or(Fault::Damaged)?;
    let tail = file.get_bytes(end, 8).map_err(damaged)?;
    let len = tail.first_chunk::<4>().map_or(u32::MAX, |len| u32::from_le_bytes(*len));
    let start = end.checked_sub(u64::from(len)).ok_or(Fault::Damaged)?;
    if len > FOOTER_BYTES_MAX {
        let what = format!("the footer is longer than {FOOTER_BYTES_MAX} bytes");
        return Err(Fault::Limit(what));
    }
    let footer = file.get_bytes(start, len as usize).map_err(damaged)?;
    let (mut items, mut others, mut is_known) = (0_u64, 0_u64, true);
    let walked = Walk::new(&footer).structure(&mut |field| {
        let count = field.value.cast_unsigned();
        match (field.depth, field.parent, field.id) {
            (0, 0, 2 | 4) | (1, 4, 1) => {
                is_known = field.kind == LIST;
                items = items.saturating_add(count);
            }
            _ if field.kind == LIST => others = others.saturating_add(count),
            _ => {}
        }
        is_known && items <= FOOTER_ITEMS_MAX && others <= FOOTER_OTHERS_MAX
    });
    if items > FOOTER_ITEMS_MAX {
        let what =
            format!("more than {FOOTER_ITEMS_MAX} columns, row groups and chunks of columns");
        return Err(Fault::Limit(what));
    }
    if others > FOOTER_OTHERS_MAX {
        return Err(Fault::Limit(format!("more than {FOOTER_OTHERS_MAX} entries in the footer")));
    }
    walked.ok_or(Fault::Damaged)
}

/// Tells each page of a column chunk to `each`, in order.
pub(super) fn walk(
    file: &VerifiedFile,
    chunk: &ColumnChunkMetaData,
    each: &mut dyn FnMut(&Page) -> Looked<()>,
) -> Looked<()> {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let at = u64::try_from(start).map_err(|_negative| Fault::Damaged)?;
    let len = u64::try_from(chunk.compressed_size()).map_err(|_negative| Fault::Damaged)?;
    let end = at.checked_add(len).filter(|end| *end <= file.len()).ok_or(Fault::Damaged)?;
    let mut at = at;
    while at < end {
        let page = page_at(file, at, end)?;
        each(&page)?;
        at = page.at + page.stored;
    }
    Ok(())
}

fn page_at(file: &VerifiedFile, at: u64, end: u64) -> Looked<Page> {
    let left = (end - at).min(HEADER_BYTES_MAX);
    let mut len = left.min(HEADER_BYTES);
    loop {
        let size = usize::try_from(len).map_err(|_large| Fault::Damaged)?;
        let bytes = file.get_bytes(at, size).map_err(damaged)?;
        if let Some((page, header)) = parsed(&bytes) {
            let page = Page { at: at + header, ..page };
            let is_whole = page.stored <= end - page.at && page.levels <= page.plain;
            return if is_whole { Ok(page) } else { Err(Fault::Damaged) };
        }
        if len == left {
            return Err(Fault::Damaged);
        }
        len = len.saturating_mul(8).min(left);
    }
}

/// The header in front of these bytes, and its length.
fn parsed(bytes: &[u8]) -> Option<(Page, u64)> {
    let (mut kind, mut plain, mut stored) = (None, None, None);
    let (mut values, mut encoding, mut levels, mut is_compressed) = (0, 0, 0_i64, true);
    let mut walk = Walk::new(bytes);
    walk.structure(&mut |field| {
        let value = field.value;
        match (field.parent, field.id) {
            (0, 1) => kind = Some(value),
            (0, 2) => plain = u64::try_from(value).ok(),
            (0, 3) => stored = u64::try_from(value).ok(),
            (5 | 7 | 8, 1) => values = value,
            (5 | 7, 2) | (8, 4) => encoding = value,
            (8, 5 | 6) => levels = levels.saturating_add(value),
            (8, 7) => is_compressed = value == 1,
            _ => {}
        }
        is_as_expected(field)
    })?;
    let kind = match kind? {
        0 | 3 => Kind::Data,
        2 => Kind::Dictionary,
        _ => Kind::Other,
    };
    let (values, levels) = (u64::try_from(values).ok()?, u64::try_from(levels).ok()?);
    let (plain, stored) = (plain?, stored?);
    let header = (bytes.len() - walk.left()) as u64;
    Some((Page { kind, plain, stored, values, encoding, levels, is_compressed, at: 0 }, header))
}

/// Whether a field is of the kind that the decoder takes it for; otherwise it would read on elsewhere.
fn is_as_expected(field: Field) -> bool {
    let is_bool = matches!(field.kind, 1 | 2);
    let is_i32 = field.kind == I32 && i32::try_from(field.value).is_ok();
    match (field.depth, field.parent, field.id) {
        (0, _, 1..=4) => is_i32,
        (0, _, 5..=8) | (1, 5, 5) | (1, 8, 8) => field.kind == STRUCT,
        (1, 7, 3) | (1, 8, 7) => is_bool,
        (1, 5, 1..=4) | (1, 7, 1 | 2) | (1, 8, 1..=6) => is_i32,
        _ => true,
    }
}

/// Fails when a page decompresses to more than its header says, where the decoder would go on.
pub(super) fn check_decompressed(
    file: &VerifiedFile,
    codec: Compression,
    page: &Page,
) -> Looked<()> {
    let is_bounded =
        !matches!(codec, Compression::GZIP(_) | Compression::BROTLI(_) | Compression::LZ4);
    if is_bounded || !page.is_compressed || page.kind == Kind::Other {
        return Ok(());
    }
    let size = usize::try_from(page.stored).map_err(|_large| Fault::Damaged)?;
    let bytes = file.get_bytes(page.at, size).map_err(damaged)?;
    let skipped = usize::try_from(page.levels).map_err(|_large| Fault::Damaged)?;
    let bytes = bytes.get(skipped..).ok_or(Fault::Damaged)?;
    let limit = page.plain.saturating_sub(page.levels);
    let found = match codec {
        Compression::GZIP(_) => counted(flate2::read::MultiGzDecoder::new(bytes), limit),
        Compression::BROTLI(_) => counted(brotli::Decompressor::new(bytes, 4096), limit),
        // Old writers put frames there, and the decoder takes them.
        _ => counted(lz4_flex::frame::FrameDecoder::new(bytes), limit),
    };
    if found > limit { Err(Fault::Damaged) } else { Ok(()) }
}

/// Bytes that come out, up to one more than the limit. What is no such stream the decoder refuses.
fn counted(decoder: impl Read, limit: u64) -> u64 {
    let mut counted = Counted(0);
    drop(io::copy(&mut decoder.take(limit.saturating_add(1)), &mut counted));
    counted.0
}

struct Counted(u64);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn damaged<E>(_why: E) -> Fault {
    // What the system did not let be read, the file remembers.
    Fault::Damaged
}
