"""Writes the files of this directory that the crates of the tests cannot write.

    python3 -m venv venv && venv/bin/pip install pyarrow==26.0.1 'pymilvus==3.0.2' minio \
        azure-storage-blob ml_dtypes pandas
    venv/bin/python make.py

Page checksums, INT96 and an embedded Arrow schema with a zone come from pyarrow, the four files of
`bulk/` from the LocalBulkWriter of pymilvus, as it leaves them. `every.jsonl` is what the rows of
`every.parquet` are told as, written by hand of Python's own values.
"""

import datetime
import decimal
import json
import pathlib
import shutil
import sys

import numpy
import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent
BERLIN = "Europe/Berlin"


def every():
    """Types that a user meets, as pyarrow writes them; the second row is null."""
    utc = datetime.timezone.utc
    at = datetime.datetime(2024, 2, 29, 12, 30, 45, 123456, tzinfo=utc)
    columns = {
        "bool": (pyarrow.bool_(), True, True),
        "i8": (pyarrow.int8(), -128, -128),
        "i64": (pyarrow.int64(), -(2**63), -(2**63)),
        "u64": (pyarrow.uint64(), 2**64 - 1, 2**64 - 1),
        "f16": (pyarrow.float16(), numpy.float16(0.5), 0.5),
        "f32": (pyarrow.float32(), 0.25, 0.25),
        "f64": (pyarrow.float64(), 0.1, 0.1),
        "d9": (pyarrow.decimal128(9, 2), decimal.Decimal("-1234567.89"), "-1234567.89"),
        "d38": (pyarrow.decimal128(38, 0), decimal.Decimal("9" * 38), "9" * 38),
        "d76": (pyarrow.decimal256(76, 10), decimal.Decimal("1." + "0" * 9 + "1"), "1.0000000001"),
        "date": (pyarrow.date32(), datetime.date(1969, 12, 31), "1969-12-31"),
        "time_ms": (pyarrow.time32("ms"), datetime.time(1, 2, 3, 4000), "01:02:03.004"),
        "time_us": (pyarrow.time64("us"), datetime.time(1, 2, 3, 4), "01:02:03.000004"),
        "ms": (pyarrow.timestamp("ms"), at.replace(tzinfo=None, microsecond=123000),
               "2024-02-29T12:30:45.123"),
        "us_utc": (pyarrow.timestamp("us", "UTC"), at, "2024-02-29T12:30:45.123456Z"),
        "us_berlin": (pyarrow.timestamp("us", BERLIN), at, "2024-02-29T12:30:45.123456Z"),
        "text": (pyarrow.string(), "caf\u00e9", "caf\u00e9"),
        "large": (pyarrow.large_string(), "x", "x"),
        "binary": (pyarrow.binary(), b"\x00\xff", "00ff"),
        "fixed": (pyarrow.binary(2), b"\x01\x02", "0102"),
        "dict": (pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), "one", "one"),
        "list": (pyarrow.list_(pyarrow.int32()), [1, None, 3], [1, None, 3]),
        "nested": (pyarrow.list_(pyarrow.list_(pyarrow.string())), [["a"], [], None],
                   [["a"], [], None]),
        "struct": (pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string())]),
                   {"a": 1, "b": None}, {"a": 1, "b": None}),
        "map": (pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("k", 1), ("l", None)],
                [{"key": "k", "value": 1}, {"key": "l", "value": None}]),
        "vector": (pyarrow.list_(pyarrow.float32(), 2), [0.5, 1.5], [0.5, 1.5]),
    }
    arrays = {}
    for name, (kind, value, _) in columns.items():
        if pyarrow.types.is_dictionary(kind):
            arrays[name] = pyarrow.array([value, None]).dictionary_encode()
        else:
            arrays[name] = pyarrow.array([value, None], kind)
    table = pyarrow.table(arrays)
    pyarrow.parquet.write_table(table, HERE / "every.parquet", compression="snappy")
    rows = [{name: told for name, (_, _, told) in columns.items()}, dict.fromkeys(columns)]
    lines = (json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
    (HERE / "every.jsonl").write_text("".join(line + "\n" for line in lines))


def checksums():
    """Pages with checksums, in both versions of pages."""
    table = pyarrow.table({
        "id": pyarrow.array(range(1000), pyarrow.int64()),
        "name": [f"name {n % 7}" for n in range(1000)],
        "v": pyarrow.array([n / 8 for n in range(1000)], pyarrow.float64()),
    })
    for version in ("1.0", "2.0"):
        pyarrow.parquet.write_table(
            table, HERE / f"checksums-v{version[0]}.parquet", compression="none",
            write_page_checksum=True, data_page_version=version, data_page_size=1024,
            use_dictionary=["name"], row_group_size=500)


def int96():
    """Timestamps of 12 bytes, as old writers leave them."""
    ns = pyarrow.array([0, None, -1, 1_700_000_000_123_456_789], pyarrow.timestamp("ns"))
    far = pyarrow.array([0, None, -62_135_596_800_000_000, 253_402_300_799_999_999],
                        pyarrow.timestamp("us"))
    table = pyarrow.table({"ns": ns, "far": far})
    pyarrow.parquet.write_table(
        table, HERE / "int96.parquet", use_deprecated_int96_timestamps=True, compression="none")


def bulk():
    """The four formats of pymilvus's LocalBulkWriter."""
    from pymilvus import CollectionSchema, DataType, FieldSchema
    from pymilvus.bulk_writer import BulkFileType, LocalBulkWriter

    fields = [
        FieldSchema("id", DataType.INT64, is_primary=True),
        FieldSchema("title", DataType.VARCHAR, max_length=100),
        FieldSchema("flag", DataType.BOOL),
        FieldSchema("small", DataType.INT8),
        FieldSchema("score", DataType.DOUBLE),
        FieldSchema("info", DataType.JSON),
        FieldSchema("vector", DataType.FLOAT_VECTOR, dim=4),
        FieldSchema("bits", DataType.BINARY_VECTOR, dim=16),
        FieldSchema("half", DataType.FLOAT16_VECTOR, dim=4),
    ]
    target = HERE / "bulk"
    shutil.rmtree(target, ignore_errors=True)
    work = HERE / "work"
    work.mkdir()
    schema = CollectionSchema(fields, enable_dynamic_field=True)
    for kind in (BulkFileType.PARQUET, BulkFileType.NUMPY, BulkFileType.JSON, BulkFileType.CSV):
        writer = LocalBulkWriter(
            schema=schema, local_path=str(work / kind.name), chunk_size=1 << 20, file_type=kind)
        for n in range(5):
            writer.append_row({
                "id": n, "title": f"caf\u00e9 {n}", "flag": n % 2 == 0, "small": -n,
                "score": n / 10, "info": {"k": [n, None]}, "vector": [n / 2] * 4,
                "bits": [n % 2] * 16, "half": numpy.array([n / 4] * 4, dtype=numpy.float16),
                "extra": n})
        writer.commit()
        # Named after the writer's own random directory; what is in it stays as it is.
        for written in (work / kind.name).iterdir():
            shutil.copytree(written, target, dirs_exist_ok=True)
    shutil.rmtree(work)


def long_list():
    """One row of 60,000,000 zeros in 603 bytes."""
    count = 60_000_000
    offsets = pyarrow.array([0, count], pyarrow.int32())
    zeros = pyarrow.array(numpy.zeros(count, dtype=numpy.int32))
    table = pyarrow.table({"l": pyarrow.ListArray.from_arrays(offsets, zeros)})
    pyarrow.parquet.write_table(
        table, HERE / "long-list.parquet", compression="zstd", data_page_size=1 << 30)


if __name__ == "__main__":
    sys.stderr.write(f"pyarrow {pyarrow.__version__}\n")
    every()
    checksums()
    int96()
    bulk()
    long_list()
