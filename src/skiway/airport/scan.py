"""Scan requests: the columns, filter, limit and point in time that a client asks for, and the data a scan may return."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa

from skiway.airport import filters
from skiway.errors import InvalidArgument

__all__ = [
    "IS_ROWID",
    "ROWID",
    "ArrowData",
    "FilterPushdown",
    "ScanOptions",
    "TimePoint",
    "find_rowid_column",
    "project_schema",
    "with_parsed_filter",
]

ROWID: Final = "rowid"  # the default name of the row id column
IS_ROWID: Final = b"is_rowid"  # field metadata that marks a row id column of any other name

# Arrow data in any form: an object with __arrow_c_stream__ (a pyarrow Table, RecordBatchReader or Scanner, a Polars or
# pandas 3 data frame, a DuckDB relation), a single batch, or an iterable of batches.
ArrowData = Any

R = TypeVar("R", bound="FilterPushdown")


@dataclass(frozen=True, slots=True)
class TimePoint:
    """The point in time of a time travel query: `AT (VERSION => 3)`, `AT (TIMESTAMP => …)`, or a named snapshot."""

    unit: Literal["timestamp", "version", "snapshot"]
    value: str

    @classmethod
    def parse(cls, unit: str, value: str) -> TimePoint | None:
        """Parse the two strings of the wire format. Return None if both are empty."""
        if not unit and not value:
            return None
        lower = unit.lower()
        if lower not in ("timestamp", "version", "snapshot"):
            raise InvalidArgument(f"unknown time travel unit {unit!r}: use VERSION, TIMESTAMP or SNAPSHOT")
        return cls(lower, value)  # type: ignore[arg-type]

    def version(self) -> int:
        """The value as a version number."""
        try:
            return int(self.value)
        except ValueError:
            raise InvalidArgument(f"AT ({self.unit.upper()} => {self.value!r}): expected an integer") from None

    def timestamp(self) -> dt.datetime:
        """The value as a timestamp. A value without a time zone is UTC."""
        try:
            moment = dt.datetime.fromisoformat(self.value)
        except ValueError:
            raise InvalidArgument(
                f"AT ({self.unit.upper()} => {self.value!r}): expected an ISO timestamp such as '2025-01-31 10:00:00'"
            ) from None
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


class FilterPushdown:
    """Parses the pushed-down filter of a request at most once."""

    json_filters: str

    @cached_property
    def filter(self) -> filters.Filter:
        """The pushed-down filter, parsed on first access. It is falsy if there is none."""
        return filters.parse(self.json_filters)


def with_parsed_filter(request: R, parsed: filters.Filter) -> R:
    """Set the `filter` of a request whose `json_filters` are already parsed, and return the request."""
    request.__dict__["filter"] = parsed  # where cached_property stores it
    return request


@dataclass(frozen=True)
class ScanOptions(FilterPushdown):
    """What the client wants to read. All options are hints: a scan may always return more rows and more columns.

    `columns` has the names of the requested columns, without duplicates and in the client's order; None means all. A
    scan may leave out the other columns, and the server fills them with NULL. `limit` and `batch_size` are None unless
    the client sets them (DuckDB never does). `part` is one of the parts that a `Planned` table returned for this scan.
    """

    columns: list[str] | None = None
    json_filters: str = ""
    limit: int | None = None
    batch_size: int | None = None
    time_point: TimePoint | None = None
    part: bytes | None = None


def project_schema(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """Return `schema` with only `columns`, in their order. The metadata is preserved; None means all columns."""
    if columns is None:
        return schema
    names = list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InvalidArgument(f"unknown column {missing[0]!r}; the table has {', '.join(map(repr, schema.names))}")
    return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)


def find_rowid_column(schema: pa.Schema) -> int | None:
    """The index of the row id column: the field with the metadata `is_rowid`, otherwise the field named `rowid`."""
    for index, field in enumerate(schema):
        if field.metadata and field.metadata.get(IS_ROWID):
            return index
    index = int(schema.get_field_index(ROWID))
    return index if index >= 0 else None
