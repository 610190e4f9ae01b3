"""What a scan is asked for: columns, filter, limit, point in time; and what it may return."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa

from skiway.airport import filters
from skiway.errors import InvalidArgument

__all__ = ["IS_ROWID", "ROWID", "ArrowData", "ScanOptions", "TimePoint", "find_rowid_column", "project_schema"]


ROWID: Final = "rowid"


IS_ROWID: Final = b"is_rowid"


# Anything that gives Arrow data: an object with __arrow_c_stream__ (pyarrow Table, RecordBatchReader, Scanner; Polars;
# a DuckDB relation; pandas 3), one batch, or an iterable of batches.
ArrowData = Any


@dataclass(frozen=True, slots=True)
class TimePoint:
    """The moment a time-travel query asks for: `AT (VERSION => 3)`, `AT (TIMESTAMP => …)`, or a named snapshot."""

    unit: Literal["timestamp", "version", "snapshot"]
    value: str

    @classmethod
    def parse(cls, unit: str, value: str) -> TimePoint | None:
        """From the wire's two texts; both empty means no time point."""
        if not unit and not value:
            return None
        lower = unit.lower()
        if lower not in ("timestamp", "version", "snapshot"):
            raise InvalidArgument(f"unknown time travel unit {unit!r}: use VERSION, TIMESTAMP or SNAPSHOT")
        return cls(lower, value)  # type: ignore[arg-type]

    def version(self) -> int:
        """The version number asked for."""
        try:
            return int(self.value)
        except ValueError:
            raise InvalidArgument(
                f"AT ({self.unit.upper()} => {self.value!r}): a whole number is needed here"
            ) from None

    def timestamp(self) -> dt.datetime:
        """The instant asked for; a text without a time zone is UTC."""
        try:
            moment = dt.datetime.fromisoformat(self.value)
        except ValueError:
            raise InvalidArgument(
                f"AT ({self.unit.upper()} => {self.value!r}): an ISO timestamp such as '2025-01-31 10:00:00' is needed here"
            ) from None
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


@dataclass(frozen=True)
class ScanOptions:
    """What the client wants of a scan. All of it is a hint: more rows and more columns are always right.

    `columns`: the names asked for, in the client's order, each once; None means all. Others may be left out of the
    answer, the server fills them with NULLs. `limit` and `batch_size` are None where nobody set them (DuckDB never does).
    """

    columns: list[str] | None = None
    json_filters: str = ""
    limit: int | None = None
    batch_size: int | None = None
    time_point: TimePoint | None = None
    part: bytes | None = None  # of a `Planned` table: which of the parts that it made of this scan

    @cached_property
    def filter(self) -> filters.Filter:
        """The pushed-down predicate, parsed when first asked for; it is falsy when there is none."""
        return filters.parse(self.json_filters)


def project_schema(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """`schema` with just `columns`, in their order, its metadata kept; None means all."""
    if columns is None:
        return schema
    names = list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InvalidArgument(f"unknown column {missing[0]!r}; the table has {', '.join(map(repr, schema.names))}")
    return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)


def find_rowid_column(schema: pa.Schema) -> int | None:
    """Index of the row id: the field with metadata `is_rowid`, or else the one named `rowid`."""
    for index, field in enumerate(schema):
        if field.metadata and field.metadata.get(IS_ROWID):
            return index
    index = int(schema.get_field_index(ROWID))
    return index if index >= 0 else None
