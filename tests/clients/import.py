"""pymilvus against `oncelog serve`, as its users call it: imports, progress, lists, and what is refused.

Usage: import.py PROGRAM; prints a line for each check, and stops at the first that fails.
"""
import logging
import os
import pathlib
import shutil
import sys
import time

from pymilvus import CollectionSchema, DataType, FieldSchema
from pymilvus.bulk_writer import (
    BulkFileType, LocalBulkWriter, bulk_import, get_import_progress, list_import_jobs,
)
from pymilvus.exceptions import MilvusException

from server import TOKEN, Server

DATA = pathlib.Path(__file__).parents[2] / "examples/data"


def keyed(key):
    """What lets `requests` send one header more."""
    def add(request):
        request.headers["Idempotency-Key"] = key
        return request
    return add


def over(server, job):
    """The data of a job behind its end."""
    for _ in range(600):
        data = get_import_progress(server.url, job, api_key=TOKEN).json()["data"]
        if data["state"] in ("Completed", "Failed"):
            return data
        time.sleep(0.1)
    raise AssertionError(f"the job {job} does not end: {data}")


def refused(call):
    try:
        call()
    except MilvusException as e:
        return str(e)
    raise AssertionError("nothing was refused")


def check_files(server):
    shutil.copy(DATA / "airports.parquet", server.root)
    asked = dict(url=server.url, collection_name="airports", files=[["airports.parquet"]],
                 api_key=TOKEN)
    first = bulk_import(**asked, auth=keyed("nightly-1")).json()["data"]
    data = over(server, first["jobId"])
    assert (data["state"], data["importedRows"], data["progress"]) == ("Completed", 3376, 100), data
    again = bulk_import(**asked, auth=keyed("nightly-1")).json()["data"]
    assert again["jobId"] == first["jobId"] and again["duplicated"], again
    assert again["expiresAt"] == first["expiresAt"]
    print(f"a file, asked for twice: job {first['jobId']}, {data['importedRows']} rows once")


def check_writer(server):
    fields = [
        FieldSchema("id", DataType.INT64, is_primary=True, auto_id=False),
        FieldSchema("name", DataType.VARCHAR, max_length=64),
        FieldSchema("price", DataType.DOUBLE),
        FieldSchema("vector", DataType.FLOAT_VECTOR, dim=8),
    ]
    schema = CollectionSchema(fields)
    for kind in (BulkFileType.PARQUET, BulkFileType.JSON, BulkFileType.CSV, BulkFileType.NUMPY):
        writer = LocalBulkWriter(schema, str(server.root / "writer"), file_type=kind)
        for row in range(500):
            writer.append_row({"id": row, "name": f"n{row}", "price": row / 4,
                               "vector": [float(row + at) for at in range(8)]})
        writer.commit()
        sets = [[os.path.relpath(path, server.root) for path in of] for of in writer.batch_files]
        job = bulk_import(server.url, f"w_{kind.name.lower()}", files=sets, api_key=TOKEN)
        data = over(server, job.json()["data"]["jobId"])
        assert (data["state"], data["importedRows"]) == ("Completed", 500), (kind, data)
        print(f"what LocalBulkWriter wrote as {kind.name}: {data['importedRows']} rows")


def check_lists(server):
    records = list_import_jobs(server.url, "airports", api_key=TOKEN).json()["data"]["records"]
    assert [record["state"] for record in records] == ["Completed"], records
    every = list_import_jobs(server.url, api_key=TOKEN, page_size=2).json()["data"]
    assert len(every["records"]) == 2 and every["count"] > 2, every
    print(f"lists: {every['count']} jobs, page by page")


def check_refusals(server):
    ask = dict(url=server.url, collection_name="airports", api_key=TOKEN)
    for what, call, expect in [
        ("a token that is not known", lambda: list_import_jobs(server.url, api_key="wrong"), "401"),
        ("a job that never was", lambda: get_import_progress(server.url, "777", api_key=TOKEN), "2100"),
        ("a file outside", lambda: bulk_import(**ask, files=[["../tokens.csv"]]), "1100"),
        ("a file that is not there", lambda: bulk_import(**ask, files=[["none.csv"]]), "1100"),
        ("another database", lambda: bulk_import(**ask, db_name="other", files=[["a.csv"]]), "1100"),
        ("a store of objects", lambda: bulk_import(**ask, object_url="s3://a/b"), "1100"),
    ]:
        told = refused(call)
        assert expect in told, (what, told)
        assert str(server.home) not in told and "wrong" not in told, told
    (server.root / "b.csv").write_text("id\n1\n")
    told = refused(lambda: bulk_import(**ask, files=[["b.csv"]], auth=keyed("nightly-1")))
    assert "1100" in told and "files" in told, told
    print("refusals: each raises, with its code")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with Server(sys.argv[1]) as running:
        check_files(running)
        check_writer(running)
        check_lists(running)
        check_refusals(running)
