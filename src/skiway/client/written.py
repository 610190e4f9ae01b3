"""The outcome of a statement that writes."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

__all__ = ["Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """What a statement did: how many rows it affected, and with `returning` these rows."""

    count: int
    rows: pa.Table | None = None
