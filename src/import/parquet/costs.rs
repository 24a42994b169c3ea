//! What rows cost once they are decoded, known before they are: an upper bound for each column of a
//! row group.
//!
//! Encoded bytes say little of it. A dictionary of one long text and a run of its index stand for
//! gigabytes, and so does a run of the levels of a list. So the longest entry of a dictionary is
//! looked up, and levels are counted by rows.

use std::sync::Arc;

use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{Compression, ConvertedType, Encoding, Type as Physical};
use parquet::column::page::{Page as Decoded, PageReader as _};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::blocks::VerifiedFile;
use super::pages::{self, Fault, Kind, Looked, PAGES_BYTES_MAX, Page};
use super::runs::{RowLevels, delta_count};
use crate::import::decoder;
use crate::import::stream::ROW_BYTES_MAX;

/// Bytes of a step of one column, at most, as estimated here.
pub(super) const STEP_BYTES_MAX: u64 = 64 << 20;

/// Bytes of one row of a column, at most, as estimated here: more than a row may have, because an
/// estimate is one.
const ROW_COST_MAX: u64 = 112 << 20;

/// Most lengths of a page that are unpacked at once.
const DELTA_VALUES_MAX: u64 = 4 << 20;

/// As the format numbers them.
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;

/// What a column costs in a row group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Memory of its pages.
    pub(super) pages: u64,
    /// Of a row, beside `fixed` of all of them.
    per_row: u64,
    fixed: u64,
    /// Of one row by itself.
    row: u64,
}

impl Cost {
    /// Bytes that so many rows decode to, at most.
    pub(super) fn of_rows(&self, rows: u64) -> u64 {
        let by_pages = self.fixed.saturating_add(self.per_row.saturating_mul(rows));
        by_pages.min(self.row.saturating_mul(rows))
    }

    const fn add(&mut self, other: Self) {
        self.pages = self.pages.saturating_add(other.pages);
        self.per_row = self.per_row.saturating_add(other.per_row);
        self.fixed = self.fixed.saturating_add(other.fixed);
        self.row = self.row.saturating_add(other.row);
    }
}

/// A column that is not decoded, and in which row of its row group, from 1, or 0.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) column: usize,
    pub(super) row: u64,
    pub(super) fault: Fault,
}

/// What the columns of a row group cost. `is_first` is the pass that knows nothing of the rows yet.
pub(super) fn of_group(
    file: &VerifiedFile,
    metadata: &ArrowReaderMetadata,
    group: usize,
    is_first: bool,
) -> Result<Vec<Cost>, Refused> {
    let schema = metadata.parquet_schema();
    let mut costs = vec![Cost::default(); schema.root_schema().get_fields().len()];
    let Some(group) = metadata.metadata().row_groups().get(group) else { return Ok(costs) };
    for (leaf, chunk) in group.columns().iter().enumerate() {
        let column = schema.get_column_root_idx(leaf);
        let mut row = 0;
        let cost = of_chunk(file, chunk, group.num_rows(), is_first, &mut row);
        let cost = cost.map_err(|fault| Refused { column, row, fault })?;
        if let Some(all) = costs.get_mut(column) {
            all.add(cost);
        }
    }
    for (column, cost) in costs.iter().enumerate() {
        let refused = |what| Refused { column, row: 0, fault: Fault::Limit(what) };
        if cost.pages > PAGES_BYTES_MAX {
            let what = format!(
                "its pages take {} bytes of memory, more than {PAGES_BYTES_MAX}",
                cost.pages
            );
            return Err(refused(what));
        }
        if cost.of_rows(1) > ROW_COST_MAX {
            let what =
                format!("a row may take {} bytes, more than {ROW_COST_MAX}", cost.of_rows(1));
            return Err(refused(what));
        }
    }
    Ok(costs)
}

/// The cost of a chunk; where a row is at fault it is put into `row`.
pub(super) fn of_chunk(
    file: &VerifiedFile,
    chunk: &ColumnChunkMetaData,
    rows: i64,
    is_first: bool,
    row: &mut u64,
) -> Looked<Cost> {
    let (width, least) = widths(chunk)?;
    let mut announced = Announced::default();
    pages::walk(file, chunk, &mut |page| announced.add(file, chunk, page, is_first))?;
    let mut cost = Cost { pages: announced.pages(), ..Cost::default() };
    if cost.pages > PAGES_BYTES_MAX || !is_first {
        return Ok(cost);
    }
    let is_text = chunk.column_type() == Physical::BYTE_ARRAY;
    let is_repeated = chunk.column_descr().max_rep_level() > 0;
    let mut within = Within::default();
    if is_repeated || (is_text && (announced.has_dictionary || announced.has_deltas)) {
        within = Within::of(file, chunk, rows, is_repeated || announced.has_deltas)?;
    }
    let (levels, at) = if is_repeated { within.levels.most } else { (1, 0) };
    if is_repeated && levels.saturating_mul(least) > ROW_BYTES_MAX as u64 {
        *row = at;
        return Err(Fault::Limit(format!("a row is longer than {ROW_BYTES_MAX} bytes")));
    }
    let mut each = width;
    if is_text {
        each = each.saturating_add(within.entry);
        if announced.has_deltas {
            each = each.saturating_add(announced.plain);
        }
        cost.fixed = announced.plain.saturating_mul(2);
        cost.row = if is_repeated { cost.fixed } else { announced.plain };
    }
    cost.row = cost.row.saturating_add(levels.saturating_mul(each));
    if is_repeated && is_text {
        cost.row = cost.row.saturating_add(levels.saturating_mul(announced.per_value));
    }
    if is_text {
        each = each.saturating_add(announced.per_value);
    }
    cost.per_row = levels.saturating_mul(each);
    Ok(cost)
}

/// Bytes of a value and its levels while it is decoded, and bytes of one in a row, at least.
fn widths(chunk: &ColumnChunkMetaData) -> Looked<(u64, u64)> {
    let column = chunk.column_descr();
    let (width, least) = match column.physical_type() {
        Physical::BOOLEAN => (1, 1),
        // Of numbers of 32 bits some are of 8.
        Physical::INT32 => (4, 1),
        Physical::FLOAT => (4, 4),
        Physical::INT64 | Physical::DOUBLE => (8, 8),
        Physical::INT96 => (20, 8),
        Physical::BYTE_ARRAY => (4, 4),
        Physical::FIXED_LEN_BYTE_ARRAY => {
            let len = u64::try_from(column.type_length()).map_err(|_negative| Fault::Damaged)?;
            if len > ROW_BYTES_MAX as u64 {
                return Err(Fault::Limit(format!("a row is longer than {ROW_BYTES_MAX} bytes")));
            }
            (len.saturating_mul(2), len.clamp(1, 8))
        }
    };
    let is_decimal = column.converted_type() == ConvertedType::DECIMAL;
    let levels = if column.max_rep_level() > 0 { 8 } else { 2 };
    Ok((width + levels + if is_decimal { 32 } else { 0 }, least))
}

/// What the headers of a chunk announce.
#[derive(Debug, Default)]
struct Announced {
    /// The largest page of data, decompressed.
    plain: u64,
    /// The same, with what is in the file.
    data: u64,
    dictionary: u64,
    has_dictionary: bool,
    has_deltas: bool,
    /// Most bytes of a value of a page, on average.
    per_value: u64,
}

impl Announced {
    fn add(
        &mut self,
        file: &VerifiedFile,
        chunk: &ColumnChunkMetaData,
        page: &Page,
        is_first: bool,
    ) -> Looked<()> {
        let codec = chunk.compression();
        let packed = if codec == Compression::UNCOMPRESSED { 0 } else { page.stored };
        let plain = if packed == 0 { page.plain.max(page.stored) } else { page.plain };
        let bytes = plain.saturating_add(packed);
        match page.kind {
            Kind::Data => {
                self.data = self.data.max(bytes);
                self.plain = self.plain.max(plain);
                self.per_value = self.per_value.max(plain.div_ceil(page.values.max(1)));
                self.has_deltas |=
                    matches!(page.encoding, DELTA_LENGTH_BYTE_ARRAY | DELTA_BYTE_ARRAY);
            }
            Kind::Dictionary => {
                let least = match chunk.column_type() {
                    Physical::INT64 | Physical::DOUBLE => 8,
                    Physical::INT96 => 12,
                    Physical::BOOLEAN => return Err(Fault::Damaged),
                    Physical::FIXED_LEN_BYTE_ARRAY => {
                        u64::try_from(chunk.column_descr().type_length()).unwrap_or(0).max(1)
                    }
                    _ => 4,
                };
                // The decoder makes room for all that are announced.
                if page.values.saturating_mul(least) > plain {
                    return Err(Fault::Damaged);
                }
                self.has_dictionary = true;
                let decoded = page.values.saturating_mul(8).saturating_add(plain);
                self.dictionary = self.dictionary.max(bytes.saturating_add(decoded));
            }
            Kind::Other => {}
        }
        if self.pages() <= PAGES_BYTES_MAX && is_first {
            pages::check_decompressed(file, codec, page)?;
        }
        Ok(())
    }

    const fn pages(&self) -> u64 {
        self.data.saturating_add(self.dictionary)
    }
}

/// What the pages of a chunk have within.
#[derive(Debug, Default)]
struct Within {
    /// The longest entry of a dictionary.
    entry: u64,
    levels: RowLevels,
}

impl Within {
    /// Decompresses the dictionary, and all pages if `is_whole`, one after the other.
    fn of(
        file: &VerifiedFile,
        chunk: &ColumnChunkMetaData,
        rows: i64,
        is_whole: bool,
    ) -> Looked<Self> {
        let rows = usize::try_from(rows).map_err(|_negative| Fault::Damaged)?;
        let mut found = Self::default();
        let reader = Arc::new(file.clone());
        let pages = decoder::guarded(|| SerializedPageReader::new(reader, chunk, rows, None));
        let mut pages = pages.and_then(Result::ok).ok_or(Fault::Damaged)?;
        loop {
            let page = decoder::guarded(|| pages.get_next_page());
            // A page that cannot be had ends the decoder too, which knows the row of it.
            let Some(page) = page.and_then(Result::ok).flatten() else { break };
            let is_dictionary = matches!(page, Decoded::DictionaryPage { .. });
            found.add(chunk, &page)?;
            if !is_whole && !is_dictionary {
                break;
            }
        }
        Ok(found)
    }

    fn add(&mut self, chunk: &ColumnChunkMetaData, page: &Decoded) -> Looked<()> {
        let column = chunk.column_descr();
        let is_text = column.physical_type() == Physical::BYTE_ARRAY;
        let (rep, def) = (column.max_rep_level(), column.max_def_level());
        let bits = |level: i16| u16::BITS - level.unsigned_abs().leading_zeros();
        let (values, levels) = match page {
            Decoded::DictionaryPage { buf, .. } => {
                if is_text {
                    self.entry = self.entry.max(longest(buf));
                }
                return Ok(());
            }
            Decoded::DataPageV2 {
                buf,
                num_values,
                rep_levels_byte_len,
                def_levels_byte_len,
                ..
            } => {
                let (levels, rest) = split(buf, *rep_levels_byte_len)?;
                let (_, values) = split(rest, *def_levels_byte_len)?;
                if rep > 0 {
                    let counted = self.levels.add(levels, bits(rep), u64::from(*num_values));
                    counted.ok_or(Fault::Damaged)?;
                }
                (values, *num_values)
            }
            Decoded::DataPage {
                buf, num_values, rep_level_encoding, def_level_encoding, ..
            } => {
                let mut rest: &[u8] = buf;
                if rep > 0 && *rep_level_encoding == Encoding::RLE {
                    let (levels, behind) = prefixed(rest)?;
                    let counted = self.levels.add(levels, bits(rep), u64::from(*num_values));
                    counted.ok_or(Fault::Damaged)?;
                    rest = behind;
                } else if rep > 0 {
                    self.levels.add_unknown(u64::from(*num_values));
                    rest = behind_packed(rest, bits(rep), *num_values)?;
                }
                if def > 0 && *def_level_encoding == Encoding::RLE {
                    rest = prefixed(rest)?.1;
                } else if def > 0 {
                    rest = behind_packed(rest, bits(def), *num_values)?;
                }
                (rest, *num_values)
            }
        };
        let lists = match page.encoding() {
            _ if !is_text => 0,
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => 0,
        };
        let mut rest = values;
        for _ in 0..lists {
            let (count, behind) = delta_count(rest).ok_or(Fault::Damaged)?;
            if count > u64::from(levels) {
                return Err(Fault::Damaged);
            }
            if count > DELTA_VALUES_MAX {
                let what = format!("a page has more than {DELTA_VALUES_MAX} lengths of texts");
                return Err(Fault::Limit(what));
            }
            rest = behind;
        }
        Ok(())
    }
}

/// The longest of texts that stand behind their lengths.
fn longest(mut entries: &[u8]) -> u64 {
    let mut longest = 0;
    while let Some((len, rest)) = entries.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len);
        // What ends within an entry the decoder refuses.
        let Some(rest) = rest.get(len as usize..) else { break };
        longest = longest.max(u64::from(len));
        entries = rest;
    }
    longest
}

fn split(bytes: &[u8], len: u32) -> Looked<(&[u8], &[u8])> {
    bytes.split_at_checked(len as usize).ok_or(Fault::Damaged)
}

/// What stands behind its length.
fn prefixed(bytes: &[u8]) -> Looked<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>().ok_or(Fault::Damaged)?;
    split(rest, u32::from_le_bytes(*len))
}

/// What stands behind packed levels, as old files have them.
fn behind_packed(bytes: &[u8], bits: u32, levels: u32) -> Looked<&[u8]> {
    let len = (u64::from(bits) * u64::from(levels)).div_ceil(8);
    bytes.get(usize::try_from(len).unwrap_or(usize::MAX)..).ok_or(Fault::Damaged)
}
