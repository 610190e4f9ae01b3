"""Importing this module raises `MissingExtra` unless the extra `spark` is installed."""

from __future__ import annotations

from typing import Final

from skiway.foundation.extras import require

LIBRARIES: Final = ("datasketches", "numpy", "pandas", "pyspark")

require(*LIBRARIES, extra="spark", purpose="profiling tables")
