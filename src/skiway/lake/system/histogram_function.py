"""The function `histogram`: how the values of a column are distributed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from skiway.airport import Parameter, ScanOptions, Table, TableFunction
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import InvalidArgument, NotFound
from skiway.lake.context import Context
from skiway.lake.system.effects import table_name
from skiway.sql import Find, Query, unknown_column

__all__ = ["HistogramFunction"]

_MAX_BINS: Final = 1000
_DEFAULT_BINS: Final = 20
_BAR: Final = 40


class HistogramFunction(TableFunction):
    """`histogram(table, column)`: counts the values of a column by range, or the most frequent ones of a text column."""

    name = "histogram"
    comment = "Counts the values of a column by range, and those of a text column by value: histogram('s.t', 'price', bins => 20)."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("column", pa.string()),
        Parameter("bins", pa.int32(), named=True),
    )
    result: Final = pa.schema(
        {
            "kind": pa.string(),
            "lower": pa.string(),
            "upper": pa.string(),
            "count": pa.int64(),
            "share": pa.float64(),
            "bar": pa.string(),
        }
    )

    def __init__(self, context: Context, catalog: str, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing is counted yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Count the values."""
        given: dict[str, Any] = {name: value.as_py() for name, value in arguments.items()}
        bins = _DEFAULT_BINS if given["bins"] is None else given["bins"]
        if not 1 <= bins <= _MAX_BINS:
            raise InvalidArgument(f"bins is {bins}: use 1 to {_MAX_BINS}", key="histogram.bins")
        named = table_name(given["name"] or "", self._catalog, self.name)
        table = self._find(self._catalog, named.db, named.name)
        full_name = f"{self._catalog}.{named.db}.{named.name}"
        if table is None:
            raise NotFound(f"table {full_name} does not exist", key="table", table=full_name)
        field = _field(table, given["column"] or "", full_name)
        place = ".".join(map(identifier, (self._catalog, named.db, named.name)))
        column, number = identifier(field.name), _as_number(field)
        sql = _values(place, column, bins) if number is None else _ranges(place, column, number, bins)
        owner = self._context.callers.principal.account_id
        query = Query(sql, self._find, catalog=self._catalog, owner=owner)
        wanted = self.result.names if options.columns is None else options.columns
        for batch in self._context.queries.rows(query):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.result).select(wanted)


def _field(table: Table, name: str, full_name: str) -> pa.Field:
    for field in table.schema:
        if field.name.casefold() == name.casefold():
            return field
    raise unknown_column(f"table {full_name}", name, table.schema.names)


def _as_number(field: pa.Field) -> str | None:
    """The type in which values are divided into ranges; None if they are counted by value."""
    kind = field.type
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return "BIGINT"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        return "DOUBLE"
    return "TIMESTAMP" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else None


def _ranges(table: str, column: str, number: str, bins: int) -> str:
    """Count values in ranges of about equal width with round bounds, and those that are NULL, NaN or infinite."""
    return f"""
        WITH read AS (SELECT CAST({column} AS {number}) AS value FROM {table}),
        finite AS (SELECT value FROM read WHERE isfinite(value)),
        bounds AS (SELECT equi_width_bins(min(value), max(value), {bins}, true) AS ends FROM finite),
        bins AS (
            SELECT unnest(map_entries(histogram(value, (SELECT coalesce(ends, []) FROM bounds)))) AS bin FROM finite
        ),
        counted AS (
            SELECT 'range' AS kind, lag(bin.key) OVER (ORDER BY bin.key) AS lower, bin.key AS upper, bin.value AS count
            FROM bins
            UNION ALL SELECT 'not finite', NULL, NULL, count(*) FROM read WHERE NOT isfinite(value)
            UNION ALL SELECT 'null', NULL, NULL, count(*) FROM read WHERE value IS NULL
        ) {_SHOWN} ORDER BY kind = 'null', kind = 'not finite', counted.upper
    """  # noqa: S608 - all names are quoted


def _values(table: str, column: str, bins: int) -> str:
    """Count the most frequent values, all others together, and NULLs."""
    return f"""
        WITH read AS (SELECT CAST({column} AS VARCHAR) AS value FROM {table}),
        groups AS (SELECT value, count(*) AS count FROM read WHERE value IS NOT NULL GROUP BY value),
        frequent AS (SELECT value, count FROM groups ORDER BY count DESC, value LIMIT {bins}),
        counted AS (
            SELECT 'value' AS kind, value AS lower, value AS upper, count FROM frequent
            UNION ALL SELECT 'other', NULL, NULL, (SELECT sum(count) FROM groups) - (SELECT sum(count) FROM frequent)
            UNION ALL SELECT 'null', NULL, NULL, count(*) FROM read WHERE value IS NULL
        ) {_SHOWN} ORDER BY kind = 'null', kind = 'other', counted.count DESC, counted.lower
    """  # noqa: S608 - all names are quoted


_SHOWN: Final = f"""
    SELECT kind, CAST(lower AS VARCHAR) AS lower, CAST(upper AS VARCHAR) AS upper, CAST(count AS BIGINT) AS count,
        count / sum(count) OVER () AS share, rtrim(bar(count, 0, max(count) OVER (), {_BAR})) AS bar
    FROM counted WHERE count > 0
"""  # noqa: S608 - no names of callers
