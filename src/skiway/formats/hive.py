"""Partition values in paths, as Hive writes them: `year=2026/country=NL/part.parquet`.

The rule for types, over all values of a key: whole numbers of up to 18 digits are BIGINT, dates as `2026-11-15` are
DATE, everything else is VARCHAR. `__HIVE_DEFAULT_PARTITION__` is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from skiway.errors import Unsupported

__all__ = ["partition_columns", "partition_values"]

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def partition_values(path: str) -> dict[str, str | None]:
    """The keys and values in the folders of `path`, which is relative to the table."""
    pairs = [segment.split("=", 1) for segment in path.split("/")[:-1] if "=" in segment]
    return {unquote(key): None if value == _NULL else unquote(value) for key, value in pairs}


def partition_columns(paths: Sequence[str]) -> dict[str, pa.Array]:
    """A column per key, with the value of each path; Unsupported where paths have different keys."""
    values = [partition_values(path) for path in paths]
    keys = list(values[0]) if values else []
    for path, found in zip(paths, values, strict=True):
        if list(found) != keys:
            raise Unsupported(
                f"file {path!r} is partitioned by {', '.join(found) or 'nothing'}, but {paths[0]!r} by "
                f"{', '.join(keys) or 'nothing'}; move it, so that all files of the table agree",
                key="file.disagrees",
                file=path,
            )
    return {key: _typed([found[key] for found in values]) for key in keys}


def _typed(values: list[str | None]) -> pa.Array:
    present = [value for value in values if value is not None]
    if present and all(_WHOLE.fullmatch(value) for value in present):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    if present and all(map(_is_date, present)):
        return pa.array([None if value is None else date.fromisoformat(value) for value in values], pa.date32())
    return pa.array(values, pa.string())


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False
