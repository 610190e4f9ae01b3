"""Importing this module raises `MissingExtra` unless the extra `spark` is installed."""

from __future__ import annotations

from typing import Final

from skiway.extras import require

__all__ = ["LIBRARIES"]

LIBRARIES: Final = ("datasketches", "numpy", "pandas", "pyspark")

require(*LIBRARIES, extra="spark", purpose="profiling tables")
