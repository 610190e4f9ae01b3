"""A scan holds a few batches in memory, not the entire table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

PROGRAM = """
import sys, pyarrow as pa
from skiway.formats import open_source

with open_source("parquet", sys.argv[1]) as source:
    table = source.load((), "big")
    rows = 0
    for batch in table.read(table.current()):
        rows += batch.num_rows
        del batch
print(rows, pa.default_memory_pool().max_memory())
"""


@pytest.mark.full
def test_long_scan_uses_little_memory(tmp_path: Path) -> None:
    """Runs in a process of its own, because the memory pool remembers its peak."""
    rows, groups = 1_000_000, 4
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    with pq.ParquetWriter(tmp_path / "big.parquet", schema) as writer:
        for start in range(0, rows * groups, rows):
            ids = pa.array(np.arange(start, start + rows))
            text = pc.utf8_lpad(ids.cast(pa.string()), 100, "x")
            writer.write_table(pa.table({"id": ids, "text": text}), row_group_size=rows)
    decoded = rows * groups * (8 + 4 + 100)
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, capture_output=True, text=True)
    seen, peak = map(int, run.stdout.split())
    assert seen == rows * groups
    assert peak < decoded / 6, f"peak of {peak} bytes while reading {decoded} bytes"
