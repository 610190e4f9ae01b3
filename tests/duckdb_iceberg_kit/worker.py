"""Runs test files whose names it reads from standard input, and writes each outcome as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from duckdb_iceberg_kit.running import Settings, run_file


def main() -> None:
    """Run files until standard input is closed. Whatever DuckDB prints goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    settings = Settings(**json.loads(sys.argv[1]))
    for line in sys.stdin:
        answers.write(json.dumps(asdict(run_file(line.rstrip("\n"), settings))) + "\n")


if __name__ == "__main__":
    main()
