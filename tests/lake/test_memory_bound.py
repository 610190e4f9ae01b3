"""Large INSERTs and scans hold some batches in memory, not the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# The client is in a process of its own, so that the peak is the server's.
SERVER = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from lake.lakes import opened_lake

with opened_lake(Path(sys.argv[2])) as lake:
    print(lake.location, flush=True)
    for line in sys.stdin:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
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


def test_a_large_insert_and_scan_stay_small(tmp_path: Path) -> None:
    """What a small one needs, and all that is loaded once, is not counted."""
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, tests, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        location = server.stdout.readline().strip()
        moved(location, 1)
        before = peak(server)
        much = moved(location, 25)
        grown = peak(server) - before
        server.communicate(timeout=30)
    assert grown < much / 4, f"{grown} bytes more at most, of {much} that were moved"


def moved(location: str, count: int) -> int:
    """How many bytes a client inserted, and read again."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, location, str(count)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def peak(server: subprocess.Popen[str]) -> int:
    """The most that the server has ever used."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("how much\n")
    server.stdin.flush()
    return int(server.stdout.readline())
