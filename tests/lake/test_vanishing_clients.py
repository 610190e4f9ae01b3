"""A client that dies in the middle of a statement leaves no rows, no snapshot and no files."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import Lake

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
"""


def files(folder: Path) -> set[str]:
    return {str(file) for file in (folder / "warehouse").rglob("*") if file.is_file()}


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_unfinished_statement_leaves_nothing(lake: Lake, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiway.lake.inserting.BUFFER_BYTES", 1000)  # so that files are started immediately
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64(), "v": pa.float64()}))
        db.insert("s.t", pa.table({"id": range(10_000), "v": [1.0] * 10_000}))
        before = files(lake.folder)
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, lake.location, operation], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "half\n"
            assert (files(lake.folder) > before) == (operation == "insert")
            child.kill()
        assert eventually(lambda: files(lake.folder) == before)
        rows = db.scan("s.t").read_all()
        assert rows.num_rows == 10_000
        assert set(rows["v"].to_pylist()) == {1.0}
        assert db.scan("skiway.snapshots").read_all().num_rows == 1


def eventually(holds: object) -> bool:
    """Whether the condition becomes true within the time the server needs to notice the lost client."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if holds():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False
