"""The tests run with `make trino`, which downloads Trino before."""

from __future__ import annotations

import os
from pathlib import Path

TRINO = bool(os.environ.get("SKIWAY_TRINO"))

if not TRINO:
    collect_ignore = [each.name for each in Path(__file__).parent.glob("test_*.py")]
