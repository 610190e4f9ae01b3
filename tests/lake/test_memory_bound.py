"""Large statements and scans hold a few batches in memory, not the entire table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The client runs in a process of its own, so that the measured peak is the server's.
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
CLIENT = """
import sys, pyarrow as pa, pyarrow.compute as pc
from skiway.client import AirportClient

rows, count = 200_000, int(sys.argv[2])
def batches():
    for start in range(0, rows * count, rows):
        ids = pa.array(range(start, start + rows), pa.int64())
        text = pc.utf8_lpad(ids.cast(pa.string()), 100, "x")
        yield pa.record_batch({"id": ids, "text": text})

with AirportClient(sys.argv[1], "managed") as db:
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    db.create_schema(f"s{count}")
    table = f"s{count}.t"
    db.create_table(table, schema)
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    assert db.insert(table, reader).count == rows * count
    seen = 0
    with db.scan(table) as scanned:
        for batch in scanned:
            seen += batch.num_rows
    assert seen == rows * count
    print(rows * count * (8 + 4 + 100))
"""
UPDATE = """
import sys, pyarrow.compute as pc
from skiway.client import AirportClient

with AirportClient(sys.argv[1], "managed") as db:
    table = f"s{sys.argv[2]}.t"
    changed = db.update(table, {"text": lambda text: pc.utf8_upper(text)}).count
    assert changed == 200_000 * int(sys.argv[2])
    with db.scan(table, columns=["text"]) as scanned:
        assert all(pc.all(pc.starts_with(batch["text"], "X")).as_py() for batch in scanned)
    print(changed * (8 + 4 + 100))
"""


def test_large_insert_and_scan_use_little_memory(tmp_path: Path) -> None:
    """Memory used by a small statement, including one-time loading, is not counted."""
    with serving(tmp_path) as server:
        run_client(CLIENT, server, 1)
        before = peak(server)
        transferred = run_client(CLIENT, server, 25)
        grown = peak(server) - before
    assert grown < transferred / 4, f"memory grew by {grown} bytes while {transferred} bytes were transferred"


def test_large_update_uses_little_memory_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        for count in (1, 25):
            run_client(CLIENT, server, count)
        run_client(UPDATE, server, 1)
        before = peak(server)
        transferred = run_client(UPDATE, server, 25)
        grown = peak(server) - before
    assert grown < transferred / 4, f"memory grew by {grown} bytes while {transferred} bytes were changed"
    assert {file.suffix for file in tmp_path.rglob("*") if file.is_file()} <= {".parquet", ".avro", ".json"}


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
        server.communicate(timeout=30)


def run_client(script: str, server: subprocess.Popen[str], count: int) -> int:
    """Run a client and return how many bytes it transferred."""
    done = subprocess.run(
        [sys.executable, "-c", script, location(server), str(count)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def location(server: subprocess.Popen[str]) -> str:
    return ask(server, "where")


def peak(server: subprocess.Popen[str]) -> int:
    """The peak memory of the server in bytes."""
    return int(ask(server, "how much"))


def ask(server: subprocess.Popen[str], question: str) -> str:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{question}\n")
    server.stdin.flush()
    return server.stdout.readline().strip()
