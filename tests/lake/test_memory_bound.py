"""Large statements and scans hold a few batches in memory, not the entire table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from skiway.client import AirportClient

# The server runs in a process of its own, so that the measured peak is not the client's.
SERVER = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lake.lakes import opened_lake

with opened_lake(Path(sys.argv[2])) as lake:
    for line in sys.stdin:
        much = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(lake.location if line.startswith("where") else much, flush=True)
"""
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
BATCH_ROWS = 200_000
ROW_BYTES = 8 + 4 + 100
LARGE = 15  # batches


@pytest.mark.full
def test_large_statements_and_scans_use_little_memory_and_leave_no_temporary_file(tmp_path: Path) -> None:
    """Memory used by small statements, including one-time loading, is not counted."""
    with serving(tmp_path) as server, AirportClient(ask(server, "where"), "managed") as db:
        insert_and_scan(db, 1)
        before = peak(server)
        insert_and_scan(db, LARGE)
        grown_by_insert = peak(server) - before
        update_and_scan(db, 1)
        before = peak(server)
        update_and_scan(db, LARGE)
        grown_by_update = peak(server) - before
    transferred = LARGE * BATCH_ROWS * ROW_BYTES
    assert grown_by_insert < transferred / 4, f"grew by {grown_by_insert} bytes while {transferred} were transferred"
    assert grown_by_update < transferred / 4, f"grew by {grown_by_update} bytes while {transferred} were changed"
    assert {file.suffix for file in tmp_path.rglob("*") if file.is_file()} <= {".parquet", ".avro", ".json"}


def insert_and_scan(db: AirportClient, count: int) -> None:
    """Insert this many batches into a new table, and scan it."""
    db.create_schema(f"s{count}")
    table = f"s{count}.t"
    db.create_table(table, SCHEMA)
    assert db.insert(table, pa.RecordBatchReader.from_batches(SCHEMA, batches(count))).count == BATCH_ROWS * count
    with db.scan(table) as scanned:
        assert sum(batch.num_rows for batch in scanned) == BATCH_ROWS * count


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, BATCH_ROWS * count, BATCH_ROWS):
        ids = pa.array(np.arange(start, start + BATCH_ROWS))
        yield pa.record_batch({"id": ids, "text": pc.utf8_lpad(ids.cast(pa.string()), 100, "x")})


def update_and_scan(db: AirportClient, count: int) -> None:
    """Change every row, and scan the table."""
    table = f"s{count}.t"
    assert db.update(table, {"text": lambda text: pc.utf8_upper(text)}).count == BATCH_ROWS * count
    with db.scan(table, columns=["text"]) as scanned:
        assert all(pc.all(pc.starts_with(batch["text"], "X")).as_py() for batch in scanned)


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(Path(__file__).parents[1]), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield server
        server.communicate(timeout=200)


def peak(server: subprocess.Popen[str]) -> int:
    """The peak memory of the server in bytes."""
    return int(ask(server, "how much"))


def ask(server: subprocess.Popen[str], question: str) -> str:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{question}\n")
    server.stdin.flush()
    return server.stdout.readline().strip()
