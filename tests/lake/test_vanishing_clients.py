"""A client that dies in the middle of a statement leaves no rows, no snapshot and no files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import Lake
from runtime.servers import eventually

# Sends two batches of a statement, reports that, and waits to be killed.
CHILD = """
import sys, threading
import pyarrow as pa
import skiway.client.airport.writing as writing
from skiway.client import AirportClient, col

in_vectors = writing.in_vectors

def halting(batches):
    for number, batch in enumerate(in_vectors(batches)):
        if number == 2:
            print("half", flush=True)
            threading.Event().wait()
        yield batch

writing.in_vectors = halting
with AirportClient(sys.argv[1], "managed") as db:
    match sys.argv[2]:
        case "insert":
            db.insert("s.t", pa.table({"id": range(100_000, 110_000), "v": [0.5] * 10_000}), returning=True)
        case "update":
            db.update("s.t", {"v": -1.0})
        case "delete":
            db.delete("s.t", where=col("id") >= 0)
        case "create as":
            rows = pa.table({"id": range(10_000)})
            with db.transaction():
                db.create_table("s.t", rows.schema)
                db.insert("s.t", rows, returning=True)
"""


@contextmanager
def halted(lake: Lake, operation: str) -> Iterator[subprocess.Popen[str]]:
    """A client that has sent half of a statement."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, lake.location, operation], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        yield child


def files(folder: Path) -> set[str]:
    return {str(file) for file in (folder / "warehouse").rglob("*") if file.is_file()}


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_unfinished_statement_leaves_nothing(lake: Lake, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiway.lake.writing.inserting.BUFFER_BYTES", 1000)  # so that files are started immediately
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64(), "v": pa.float64()}))
        db.insert("s.t", pa.table({"id": range(10_000), "v": [1.0] * 10_000}))
        before = files(lake.folder)
        with halted(lake, operation) as child:
            assert (files(lake.folder) > before) == (operation == "insert")
            child.kill()
        eventually(lambda: files(lake.folder) == before)
        rows = db.scan("s.t").read_all()
        assert rows.num_rows == 10_000
        assert set(rows["v"].to_pylist()) == {1.0}
        assert db.scan("skiway.snapshots").read_all().num_rows == 1


def test_unfinished_create_table_as_leaves_no_table(lake: Lake) -> None:
    def tables() -> list[str]:
        with lake.client() as fresh:
            return [table.name for schema in fresh.schemas() if schema.name == "s" for table in schema.tables]

    with lake.client() as db:
        db.create_schema("s")
    with halted(lake, "create as") as child:
        assert tables() == ["t"]
        child.kill()
    eventually(lambda: tables() == [])
