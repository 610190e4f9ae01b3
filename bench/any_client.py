"""A client of `bench.any_duckdb`: it runs the statements on standard input, and writes how many seconds each takes."""

from __future__ import annotations

import json
import sys
import time

import skiway.duckdb

if __name__ == "__main__":
    with skiway.duckdb.connect(sys.argv[1]) as lake:
        for line in sys.stdin:
            started = time.perf_counter()
            rows = lake.sql(json.loads(line))
            if rows is not None:
                rows.to_arrow_table()
            print(time.perf_counter() - started, flush=True)
