//! The files that are imported.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

use crate::table::float;

/// Rows of a batch, and numbers of a vector.
const BATCH_ROWS: usize = 10_000;
const DIM: usize = 768;

/// A number, a short text and a fraction.
pub(crate) fn narrow(path: &Path, rows: usize) {
    write(path, rows, |first, count| {
        let numbers = || first..first + count;
        let ids = numbers().map(|n| i64::try_from(n).unwrap());
        vec![
            ("id", Arc::new(ids.collect::<Int64Array>()) as ArrayRef),
            (
                "name",
                Arc::new(StringArray::from_iter_values(numbers().map(|n| format!("name {n}")))),
            ),
            ("v", Arc::new(numbers().map(|n| float(n) / 2.0).collect::<Float64Array>())),
        ]
    });
}

/// The same, as text.
pub(crate) fn csv(path: &Path, rows: usize) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    writeln!(file, "id,name,v").unwrap();
    for row in 0..rows {
        writeln!(file, "{row},name {row},{}", float(row) / 2.0).unwrap();
    }
    file.flush().unwrap();
}

/// A number and a vector that does not compress.
pub(crate) fn vectors(path: &Path, rows: usize) {
    let mut drawn = 0x9E37_79B9_7F4A_7C15_u64;
    write(path, rows, |first, count| {
        let ids = (first..first + count).map(|n| i64::try_from(n).unwrap());
        let size = i32::try_from(DIM).unwrap();
        let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), size);
        for _ in 0..count {
            for _ in 0..DIM {
                drawn ^= drawn << 13;
                drawn ^= drawn >> 7;
                drawn ^= drawn << 17;
                // From 1 to 2, with every bit of the fraction drawn: no two of them are likely one.
                let fraction = u32::try_from(drawn >> 41).unwrap();
                vectors.values().append_value(f32::from_bits(0x3F80_0000 | fraction));
            }
            vectors.append(true);
        }
        vec![
            ("id", Arc::new(ids.collect::<Int64Array>()) as ArrayRef),
            ("vector", Arc::new(vectors.finish())),
        ]
    });
}

fn write(
    path: &Path,
    rows: usize,
    mut columns: impl FnMut(usize, usize) -> Vec<(&'static str, ArrayRef)>,
) {
    let file = File::create(path).unwrap();
    let mut writer: Option<ArrowWriter<File>> = None;
    for first in (0..rows).step_by(BATCH_ROWS) {
        let count = BATCH_ROWS.min(rows - first);
        let batch = RecordBatch::try_from_iter(columns(first, count)).unwrap();
        let writer = writer.get_or_insert_with(|| {
            ArrowWriter::try_new(file.try_clone().unwrap(), batch.schema(), None).unwrap()
        });
        writer.write(&batch).unwrap();
    }
    writer.expect("there are rows").close().unwrap();
}
